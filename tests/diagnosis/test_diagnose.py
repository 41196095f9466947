"""`fedvarp diagnose`: from a config or a run to tables, a figure, JSON, advice and the report."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from fedvarp.analysis import read_runs
from fedvarp.analysis.report.diagnosed import DIAGNOSIS_FILE
from fedvarp.analysis.styles import CAUSES
from fedvarp.diagnosis.advice import advice, shares
from fedvarp.diagnosis.diagnose import Diagnosis, diagnose, write_json
from fedvarp.diagnosis.text import as_text, tables
from fedvarp.experiments.build import build
from fedvarp.experiments.files import load_settings
from fedvarp.runs.errors import RunError
from fedvarp.settings.problems import SettingsError
from fedvarp.theory import error_terms
from fedvarp.theory.step_errors import UpdateSpread

CONFIG = """
rounds = 4
clients_per_round = 4
evaluate_every = 2
[data]
name = "quadratics"
sigma2 = 0.5
sigma_g2 = 2.0
sigma_K2 = 0.1
[local_sgd]
lr = 0.001
batch_size = 5
epochs = 2
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("config") / "small.toml"
    file.write_text(CONFIG)
    return file


@pytest.fixture(scope="module")
def found(config: Path) -> Diagnosis:
    return diagnose(config, progress=False)


@pytest.fixture(scope="module")
def run(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    build(load_settings(config, ["client_lr=0.05"])).run(folder, progress=False)
    return folder


def changed(found: Diagnosis, **parts: Any) -> Diagnosis:
    """The same diagnosis with another spread of the updates."""
    assert found.updates is not None
    return dataclasses.replace(found, updates=dataclasses.replace(found.updates, **parts))


def test_the_bounds_are_the_theorems_at_the_measured_constants(found: Diagnosis) -> None:
    terms = found.terms(found.client_lr)["cluster_fedvarp"]
    m = found.measured
    assert m.sigma_K2 is not None
    expected = error_terms(
        algorithm="cluster_fedvarp", num_clients=20, clients_per_round=4, rounds=4, num_steps=4,
        client_lr=0.001, server_lr=1.0, smoothness=m.smoothness.value, sigma2=m.sigma2.value,
        sigma_g2=m.sigma_g2.value, sigma_K2=m.sigma_K2.value, initial_gap=m.loss.value,
        num_clusters=5, initial_gradient_norm2=m.gradient_norm2.value,
    )  # fmt: skip
    assert terms == expected
    assert found.algorithms == ["fedavg", "cluster_fedvarp", "fedvarp"]
    assert found.round == 0


def test_a_run_is_measured_where_it_stands(run: Path) -> None:
    after = diagnose(run, progress=False)
    assert after.round == 4
    # The last line of metrics.jsonl holds the same f(w), over all clients.
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert after.measured.loss.value == pytest.approx(last["train_loss"], rel=1e-4)


def test_clusters_that_a_run_has_found_are_those_measured(config: Path, tmp_path: Path) -> None:
    told = ["algorithm=cluster_fedvarp", "table.clusters=auto:3"]
    build(load_settings(config, told)).run(tmp_path / "run", progress=False)
    after = diagnose(tmp_path / "run", updates=False, progress=False)
    assert len(after.measured.cluster_sizes or []) == 3
    # Another K was not found yet: the data set's own five stand in for it.
    other = diagnose(tmp_path / "run", ["table.clusters=auto:4"], updates=False, progress=False)
    assert len(other.measured.cluster_sizes or []) == 5


@pytest.mark.parametrize("told", [[], ["table.where=disk"], ["table.codec=int8"]], ids=str)
def test_rows_of_a_run_are_measured_as_they_are(
    config: Path, tmp_path: Path, told: list[str]
) -> None:
    """At a rate of nearly nothing rows do not age: those seen leave only the noise of batches."""
    told = [*told, "client_lr=1e-6", "clients_per_round=10", "rounds=30"]
    told += ["local_sgd.batch_size=1000", "algorithm=fedvarp"]
    build(load_settings(config, told)).run(tmp_path / "a", progress=False)
    after = diagnose(tmp_path / "a", progress=False)
    own, fresh = after.step_errors_with_rows, after.step_errors
    assert own is not None
    assert own.partial_participation < 1e-3 * fresh["fedavg"].partial_participation
    # After a single round half of the rows are zero: those clients are replayed as nothing.
    build(load_settings(config, [*told, "rounds=1"])).run(tmp_path / "b", progress=False)
    unseen = diagnose(tmp_path / "b", progress=False)
    assert unseen.step_errors_with_rows is not None
    assert (
        unseen.step_errors_with_rows.partial_participation
        > 0.1 * unseen.step_errors["fedavg"].partial_participation
    )


def test_rows_are_shown_in_tables_advice_json_and_figure(config: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra fedvarp[plots] is not installed")
    from fedvarp.diagnosis.figure import figure

    told = ["algorithm=cluster_fedvarp", "client_lr=0.05"]
    build(load_settings(config, told)).run(tmp_path / "run", progress=False)
    after = diagnose(tmp_path / "run", progress=False)
    text = as_text(after, [])
    assert "ClusterFedVARP, its rows" in text
    assert "Spread of the updates, by parameter" in text
    assert "With the rows of this run as they are" in advice(after)[0]
    worse = changed(after, around_rows=1e3)
    assert "times FedAvg's: they are too old" in advice(worse)[0]
    assert "rows of this run" not in advice(dataclasses.replace(worse, round=0))[0]
    everybody = after.settings.model_copy(update={"clients_per_round": 20})
    assert "rows of this run" not in advice(dataclasses.replace(worse, settings=everybody))[0]
    kept = after.as_json()["step_errors_with_rows"]
    assert kept["algorithm"] == "cluster_fedvarp"
    assert kept["total"] > 0
    ticks = [label.get_text() for label in figure(after).axes[0].get_xticklabels()]
    assert ticks[-1] == "ClusterFedVARP,\nits rows"


def test_rows_of_other_settings_or_of_other_algorithms_are_left_alone(
    config: Path, run: Path, tmp_path: Path
) -> None:
    assert diagnose(run, ["clients_per_round=2"], progress=False).step_errors_with_rows is None
    build(load_settings(config, ["algorithm=mifa"])).run(tmp_path / "run", progress=False)
    assert diagnose(tmp_path / "run", progress=False).step_errors_with_rows is None


def test_the_rate_is_that_of_the_round(config: Path, run: Path) -> None:
    told = ["local_sgd.schedule.name=exponential", "local_sgd.schedule.decay=0.5"]
    assert diagnose(config, told, updates=False, progress=False).client_lr == 0.001
    after = diagnose(run, told, updates=False, progress=False)
    assert after.client_lr == pytest.approx(0.05 * 0.5**4)


def test_allowed_rates_meet_every_condition_and_no_larger_one_does(found: Diagnosis) -> None:
    kept = found.as_json()
    for name in found.algorithms:
        tightest = min(c["largest_client_lr"] for c in kept["conditions"][name])
        assert kept["allowed_client_lr"][name] == tightest
    assert found.smallest_allowed_lr == min(found.allowed_lr.values())


def test_json_holds_all_of_it_and_no_infinity(found: Diagnosis, tmp_path: Path) -> None:
    write_json(found, ["Do this."], tmp_path / DIAGNOSIS_FILE)
    kept = json.loads((tmp_path / DIAGNOSIS_FILE).read_text())
    assert kept["advice"] == ["Do this."]
    assert kept["measured"]["sigma_g2"]["value"] == found.measured.sigma_g2.value
    assert kept["step_errors"]["fedavg"]["total"] == found.step_errors["fedavg"].total
    assert [point["num_clusters"] for point in kept["curve"]] == [1, 2, 4, 5, 8, 16, 20]
    # 20 rows of 10 float32 numbers and a sum of 10 float64 ones; int8 has a scale of 4 bytes a row.
    assert kept["table_bytes"]["20"]["float32"] == 20 * 40 + 80
    assert kept["table_bytes"]["20"]["int8"] == 20 * 14 + 80


def test_advice_names_what_dominates(found: Diagnosis) -> None:
    absent = changed(found, noise=0.1, between_clients=100.0, drift=0.01)
    assert "measured: over 99% from the choice of clients" in advice(absent)[0]
    assert "FedVARP with fresh states would leave under 1% of it" in advice(absent)[0]
    noisy = changed(found, noise=100.0, between_clients=0.1, drift=0.0)
    assert "over 99% from mini-batches" in advice(noisy)[0]
    assert "FedVARP would not make it smaller" in advice(noisy)[0]
    assert any("more than 4 local steps" in line for line in advice(noisy))
    drifting = changed(found, noise=0.1, between_clients=1.0, drift=50.0)
    assert any("a lower client rate is the better next move" in line for line in advice(drifting))


def test_advice_with_everybody_and_whole_batches(config: Path) -> None:
    """Nothing is drawn: neither clients nor examples. FedVARP is FedAvg then."""
    told = ["clients_per_round=20", "local_sgd.batch_size=1000", "local_sgd.epochs=1"]
    lines = advice(diagnose(config, told, progress=False))
    assert lines[0].startswith("Chance changes next to nothing in one FedAvg step")
    assert "FedVARP takes the same steps as FedAvg" in lines[0]
    assert "outweighs" not in lines[0]
    assert any("next to nothing is left" in line for line in lines)
    bounds = advice(diagnose(config, told, updates=False, progress=False))
    assert "nothing, there is none." in bounds[0]
    assert any("next to nothing is left" in line for line in bounds)


def test_a_sample_without_two_clients_of_a_cluster_says_nothing_of_clusters(config: Path) -> None:
    """Three of five clusters of four: some draws have no pair, and 0 ± 0 would be a lie."""
    for seed in range(20):
        some = diagnose(config, [f"seed={seed}"], sample=3, progress=False)
        clusters = some.measured.clients // 4
        if len(set(clusters.tolist())) == 3:
            assert some.measured.sigma_K2 is None
            assert some.algorithms == ["fedavg", "fedvarp"] == list(some.step_errors)
            assert any("Measure all clients to see" in line for line in advice(some))
            return
    raise AssertionError("no draw of three clusters in twenty seeds")


def test_advice_on_clusters_respects_the_share_and_the_budget(found: Diagnosis) -> None:
    def on_clusters(**wish: float) -> str:
        return next(line for line in advice(found, **wish) if "clusters measured" in line)

    # The planted 5 clusters remove 1 − 0.1/2.0 = 95 % of the variance; 4 of them cannot.
    assert "The 5 clusters measured remove 95%" in on_clusters()
    assert '5 clusters found by k-means are the fewest that remove 90%: 95% with 280 B (clusters = "auto:5")' in on_clusters(keep=0.9)  # fmt: skip # noqa: E501
    poor = on_clusters(keep=0.9, memory_budget=250.0)  # 5 rows take 5 · 40 + 80 bytes
    assert "No number of clusters tried removes 90% within 250 B; 4 remove" in poor
    assert "Not even one float32 row fits within 100 B" in on_clusters(memory_budget=100.0)
    with pytest.raises(ValueError, match=r"keep=1\.2 must be above 0"):
        advice(found, keep=1.2)
    for budget in (-1.0, 0.0, float("nan")):
        with pytest.raises(ValueError, match="holds nothing: give more than 0"):
            advice(found, memory_budget=budget)


def test_advice_says_what_it_rests_on(config: Path) -> None:
    told = ["sampling.dropout=0.1", "local_sgd.momentum=0.5", "client_lr=0.5"]
    lines = advice(diagnose(config, told, sample=8, updates=False, progress=False))
    text = " ".join(lines)
    assert "The theorems know nothing of momentum, dropouts, which this run has." in text
    assert "times the largest for which the theorem is proved" in text
    assert "None of this promises an accuracy" in text
    assert "lower bound, from 5 clients" in text


def test_drift_is_no_verdict_where_local_steps_bounce(config: Path) -> None:
    """Smoothness is 1: at a rate of 3 a step multiplies the offset by 1 − 3."""
    lines = advice(diagnose(config, ["client_lr=3.0"], updates=False, progress=False))
    assert any("The client rate times L is 3, above 2" in line for line in lines)
    assert not any("is the better next move" in line for line in lines)


def test_shares_count_estimates_below_zero_as_none() -> None:
    errors = UpdateSpread(1.0, 1.0, None, -0.5, 0).errors(10, 2)["fedavg"]
    parts = shares(errors)
    assert parts["client_drift"] == 0
    assert sum(parts.values()) == pytest.approx(1)


def test_tables_show_every_number(found: Diagnosis) -> None:
    text = as_text(found, ["Advice."])
    for what in ("σ_g²", "FedVARP", "ClusterFedVARP", "- Advice.", "all 20 clients", "95%"):
        assert what in text
    assert max(map(len, text.splitlines())) <= 100
    titles = [table.title for table in tables(found)]
    assert sum("Bounds" in title for title in titles) == (
        2 if found.client_lr > found.smallest_allowed_lr else 1
    )


def test_a_sample_states_errors_and_has_no_curve(config: Path) -> None:
    some = diagnose(config, sample=8, updates=False, progress=False)
    assert some.curve == []
    assert some.step_errors == {}
    text = as_text(some, [])
    assert "8 of 20 clients" in text
    assert "±" in text


def test_what_cannot_be_diagnosed_is_refused(config: Path, run: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"--set sampling.objective=equal"):
        diagnose(config, ["sampling.objective=examples"])
    (tmp_path / "config.toml").write_text((run / "config.toml").read_text())
    with pytest.raises(RunError, match="has no checkpoint"):
        diagnose(tmp_path)


def test_the_figure_has_a_bar_for_every_cause(found: Diagnosis, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra fedvarp[plots] is not installed")
    from fedvarp.diagnosis.figure import draw, figure

    drawn = figure(found)
    step, bound, curve = drawn.axes
    for axes in (step, bound):
        assert len(axes.patches) == 3 * len(CAUSES)
    highest: list[Any] = step.patches[-3:]
    tops = [bar.get_y() + bar.get_height() for bar in highest]
    for top, name in zip(tops, found.algorithms, strict=True):
        one = found.step_errors[name]
        assert top == pytest.approx(sum(max(getattr(one, cause), 0.0) for cause in CAUSES))
    assert curve.lines[0].get_xdata().tolist() == [1, 2, 4, 5, 8, 16, 20]  # type: ignore[union-attr]
    first, again = (draw(found, tmp_path / name).read_bytes() for name in ("a.svg", "b.svg"))
    assert first == again


def test_the_report_has_a_section_for_runs_that_were_diagnosed(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("plotly", reason="the extra fedvarp[plots] is not installed")
    from fedvarp.analysis.report import write_report

    file = run / DIAGNOSIS_FILE
    file.unlink(missing_ok=True)
    before = write_report([run], tmp_path / "before.html").read_text()
    assert "What holds training back" not in before
    after = diagnose(run, progress=False)
    write_json(after, ["<b>Bold</b> advice."], file)
    page = write_report([run], tmp_path / "after.html").read_text()
    assert "What holds training back" in page
    assert "&lt;b&gt;Bold&lt;/b&gt; advice." in page
    section = page[page.index("diagnosis-title") : page.index("settings-title")]
    # Three algorithms twice, the rows of the run once; and the keys of both figures.
    assert section.count("<rect") == (2 * 3 + 1) * len(CAUSES) + 2 * len(CAUSES)
    assert "FedVARP, its rows" in section
    assert f"{after.step_errors['fedavg'].client_drift:.3g}" in section
    assert "(approx.)" not in section
    kept = json.loads(file.read_text())
    kept["terms_at_allowed_lr"]["cluster_fedvarp"]["exact"] = False  # clusters of unequal sizes
    file.write_text(json.dumps(kept))
    unequal = write_report([run], tmp_path / "unequal.html").read_text()
    assert unequal.count("ClusterFedVARP (approx.)") == 1
    file.write_text("{")
    with pytest.raises(RunError, match="writes it anew"):
        write_report([run], tmp_path / "again.html")
    file.unlink()
    assert len(read_runs([run])[0]) == 1
