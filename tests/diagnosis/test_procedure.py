"""What is measured for a config, for a run and for changed settings, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedvarp.diagnosis import advise, as_json, as_text, diagnose
from fedvarp.experiments.build import build
from fedvarp.experiments.files import load_settings
from fedvarp.runs.errors import RunError
from fedvarp.settings.problems import SettingsError


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


@pytest.mark.parametrize(
    "told",
    [
        [],
        pytest.param(["table.where=disk"], marks=pytest.mark.slow),
        pytest.param(["table.codec=int8"], marks=pytest.mark.slow),
    ],
    ids=str,
)
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


def test_rows_of_other_settings_or_of_other_algorithms_are_left_alone(
    config: Path, run: Path, tmp_path: Path
) -> None:
    assert diagnose(run, ["clients_per_round=2"], progress=False).step_errors_with_rows is None
    build(load_settings(config, ["algorithm=mifa"])).run(tmp_path / "run", progress=False)
    assert diagnose(tmp_path / "run", progress=False).step_errors_with_rows is None


@pytest.mark.parametrize(
    ("told", "says"),
    [
        (["table.rows=fc9"], "table.rows = 'fc9' matches no parameter"),
        (["table.max_rows=1", "clients_per_round=3"], "max_rows = 1 is less than a cohort of 3"),
    ],
)
def test_what_no_run_could_have_is_not_measured(config: Path, told: list[str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        diagnose(config, told, updates=False, progress=False)


def test_the_rate_is_that_of_the_round(config: Path, run: Path) -> None:
    told = ["local_sgd.schedule.name=exponential", "local_sgd.schedule.decay=0.5"]
    assert diagnose(config, told, updates=False, progress=False).client_lr == 0.001
    after = diagnose(run, told, updates=False, progress=False)
    assert after.client_lr == pytest.approx(0.05 * 0.5**4)


def test_a_sample_without_two_clients_of_a_cluster_says_nothing_of_clusters(config: Path) -> None:
    """Three of five clusters of four: some draws have no pair, and 0 ± 0 would be a lie."""
    for seed in range(20):
        some = diagnose(config, [f"seed={seed}"], sample=3, progress=False)
        clusters = some.measured.clients // 4
        if len(set(clusters.tolist())) == 3:
            assert some.measured.sigma_K2 is None
            assert some.algorithms == ["fedavg", "fedvarp"] == list(some.step_errors)
            return
    raise AssertionError("no draw of three clusters in twenty seeds")


def test_without_updates_nothing_is_trained_and_a_sample_has_no_curve(config: Path) -> None:
    some = diagnose(config, sample=8, updates=False, progress=False)
    assert some.curve == []
    assert some.step_errors == {}
    assert some.step_errors_with_rows is None


def test_another_objective_than_that_of_the_theorems_is_refused(config: Path) -> None:
    with pytest.raises(SettingsError, match=r"another objective.*--set sampling.objective=equal"):
        diagnose(config, ["sampling.objective=examples"])


def test_a_run_without_a_checkpoint_is_refused(run: Path, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text((run / "config.toml").read_text())
    with pytest.raises(RunError, match=r"no checkpoint.*fedvarp diagnose .*config\.toml"):
        diagnose(tmp_path)


@pytest.mark.parametrize(
    ("algorithm", "tables"),
    [
        ("cluster_fedvarp", ["cluster"]),
        pytest.param("fedvarp", ["own"], marks=pytest.mark.slow),
        pytest.param("fedstale(beta=0.3)", ["own"], marks=pytest.mark.slow),
        pytest.param("fedvarp_adaptive", ["own"], marks=pytest.mark.slow),
        ("fedvarp_mixed(beta=one)", ["own", "cluster"]),
        ("fedavg", None),
        ("scaffold", None),
    ],
)
def test_how_far_rows_are_to_be_trusted_is_measured_wherever_there_are_some(
    config: Path, tmp_path: Path, algorithm: str, tables: list[str] | None
) -> None:
    told = [f"algorithm={algorithm}", "client_lr=0.05", "rounds=12"]
    result = build(load_settings(config, told)).run(tmp_path / "run", progress=False)
    found = diagnose(tmp_path / "run", progress=False)
    plain = json.loads(json.dumps(as_json(found, [])))["trust"]
    text = as_text(found, advise(found))
    assert (plain is None) == (tables is None)
    assert ("How far rows are to be trusted" in text) == (tables is not None)
    if tables is None:
        return
    measured = plain["measured"]
    assert list(measured["whole"]) == tables
    assert all(0 <= b <= 1 for b in measured["whole"].values())
    assert list(measured["by_parameter"]) == ["w"]  # all there is in a quadratic
    assert measured["by_parameter"]["w"] == pytest.approx(measured["whole"])
    assert "is worth" in text
    # What the run itself goes by is what its last round recorded.
    last = result.metrics[-1]
    recorded = {"own": last.get("trust_in_rows"), "cluster": last.get("trust_in_clusters")}
    if algorithm.startswith(("fedvarp_adaptive", "fedvarp_mixed")):
        assert plain["run"]["whole"] == {name: recorded[name] for name in tables}
        assert "as the run has it" in text
    else:
        assert plain["run"] is None


def test_rows_that_do_not_age_are_to_be_trusted(config: Path, tmp_path: Path) -> None:
    """At a rate of nearly nothing, with whole batches, all clients seen."""
    told = ["client_lr=1e-6", "clients_per_round=10", "rounds=30", "algorithm=fedvarp"]
    told += ["local_sgd.batch_size=1000"]
    build(load_settings(config, told)).run(tmp_path / "a", progress=False)
    found = diagnose(tmp_path / "a", progress=False)
    assert found.trust is not None
    assert found.trust["measured"]["whole"]["own"] == pytest.approx(1, abs=1e-3)
