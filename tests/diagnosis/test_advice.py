"""What is advised, and what it rests on."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from fedvarp.diagnosis import Diagnosis, advise, as_text, diagnose, rank_remedies
from fedvarp.diagnosis.advice_on_steps import _error_to_rank_by
from fedvarp.diagnosis.wording import shares, with_interval
from fedvarp.experiments.files import load_settings
from fedvarp.theory import UpdateSpread
from fedvarp.theory.intervals import VARIATION, Estimate
from fedvarp.theory.step_errors import RowSpread

OLD = RowSpread(around_rows=1e3, rows=1e3, product=0.0)


def changed(found: Diagnosis, **parts: Any) -> Diagnosis:
    """The same diagnosis with another spread of the updates, and nothing trained anew."""
    assert found.updates is not None
    spread = dataclasses.replace(found.updates.spread, **parts)
    updates = dataclasses.replace(found.updates, spread=spread)
    return dataclasses.replace(found, updates=updates, trained_anew={})


def test_it_names_what_dominates(found: Diagnosis) -> None:
    absent = changed(found, noise=0.1, between_clients=100.0, drift=0.01)
    assert "measured: over 99% from the choice of clients" in advise(absent)[0]
    assert "Rows (FedVARP, ClusterFedVARP) remove it" in advise(absent)[0]
    noisy = changed(found, noise=100.0, between_clients=0.1, drift=0.0)
    assert "over 99% from mini-batches" in advise(noisy)[0]
    assert "Larger batches" in advise(noisy)[0]
    drifting = changed(found, noise=0.1, between_clients=1.0, drift=50.0)
    assert "A lower client rate or fewer local steps lessen it" in advise(drifting)[0]


def test_what_the_rows_of_a_run_leave(with_rows: Diagnosis) -> None:
    assert any("With the rows of this run as they are" in line for line in advise(with_rows))
    worse = changed(with_rows, from_rows=OLD)
    assert any("times FedAvg's: they are too old" in line for line in advise(worse))


def test_rows_are_no_matter_before_the_first_round_or_with_everybody(with_rows: Diagnosis) -> None:
    worse = changed(with_rows, from_rows=OLD)
    everybody = with_rows.settings.model_copy(update={"clients_per_round": 20})
    for other in (
        dataclasses.replace(worse, round=0),
        dataclasses.replace(worse, settings=everybody),
    ):
        assert not any("rows of this run" in line for line in advise(other))


def test_everybody_and_whole_batches(config: Path) -> None:
    """Nothing is drawn: neither clients nor examples. FedVARP is FedAvg then."""
    told = ["clients_per_round=20", "local_sgd.batch_size=1000", "local_sgd.epochs=1"]
    lines = advise(diagnose(config, told, progress=False))
    assert "is what training on the pooled data would do" in lines[0]
    assert "FedVARP takes the same steps as FedAvg" in lines[0]
    assert any("next to nothing to remove" in line for line in lines)
    bounds = advise(diagnose(config, told, updates=False, progress=False))
    assert bounds[0].endswith("is 0.")
    assert any("next to nothing is left" in line for line in bounds)
    fast = advise(diagnose(config, [*told, "client_lr=1.5"], updates=False, progress=False))
    assert "the largest for which the theorem is proved here: its formula" in fast[0]


def test_without_clusters_or_a_curve_all_clients_are_to_be_measured(found: Diagnosis) -> None:
    measured = dataclasses.replace(found.measured, sigma_K2=None, cluster_of=None)
    lines = advise(dataclasses.replace(found, measured=measured, curve=[]))
    assert any("Measure all clients to see" in line for line in lines)


def test_clusters_respect_the_share_and_the_budget(found: Diagnosis) -> None:
    def on_clusters(**wish: float) -> str:
        return next(line for line in advise(found, **wish) if "clusters measured" in line)

    # The planted 5 clusters remove 1 − 0.1/2.0 = 95 % of the variance; 4 of them cannot.
    assert "The 5 clusters measured remove 95%" in on_clusters()
    assert '5 clusters found by k-means are the fewest that remove 90%: 95% with 280 B (clusters = "auto:5")' in on_clusters(keep=0.9)  # fmt: skip # noqa: E501
    poor = on_clusters(keep=0.9, memory_budget=250.0)  # 5 rows take 5 · 40 + 80 bytes
    assert "No number of clusters tried removes 90% within 250 B; 4 remove" in poor
    assert "Not even one float32 row fits within 100 B" in on_clusters(memory_budget=100.0)
    with pytest.raises(ValueError, match=r"keep=1\.2 must be above 0"):
        advise(found, keep=1.2)
    for budget in (-1.0, 0.0, float("nan")):
        with pytest.raises(
            ValueError, match=r"holds nothing: give more than 0|memory_budget = nan"
        ):
            advise(found, memory_budget=budget)


def test_clusters_of_clients_that_have_nothing_in_common_remove_none(found: Diagnosis) -> None:
    within = found.measured.sigma_g2  # estimates of both: the one within may come out larger
    unlike = dataclasses.replace(within, value=1.14 * within.value)
    measured = dataclasses.replace(found.measured, sigma_K2=unlike)
    lines = advise(dataclasses.replace(found, measured=measured))
    assert any("5 clusters measured remove none of the variance" in line for line in lines)


def test_it_says_what_it_rests_on(config: Path) -> None:
    told = ["sampling.dropout=0.1", "local_sgd.momentum=0.5", "client_lr=0.5"]
    lines = advise(diagnose(config, told, sample=8, updates=False, progress=False))
    text = " ".join(lines)
    assert "The theorems know nothing of momentum, dropouts, which this run has." in text
    assert "times the largest for which the theorem is proved" in text
    assert "None of this promises an accuracy" in text
    assert "L is at least 1: 8 clients were looked at" in text


def test_it_says_where_local_steps_bounce(config: Path) -> None:
    """Smoothness is 1: at a rate of 3 a step multiplies the offset by 1 − 3."""
    lines = advise(diagnose(config, ["client_lr=3.0"], updates=False, progress=False))
    assert any("curvature is 3, above 2" in line for line in lines)
    assert any("Rates below 2 do not" in line for line in lines)


def test_shares_count_estimates_below_zero_as_none() -> None:
    errors = UpdateSpread(1.0, 1.0, -0.5).errors(10, 2)["fedavg"]
    parts = shares(errors)
    assert parts["client_drift"] == 0
    assert sum(parts.values()) == pytest.approx(1)


@pytest.mark.parametrize(("algorithm", "label"), [("scaffold", "SCAFFOLD"), ("mifa", "MIFA")])
def test_a_step_that_is_not_measured_is_not_said_to_be_the_runs(
    found: Diagnosis, algorithm: str, label: str
) -> None:
    settings = found.settings.model_copy(update={"algorithm": algorithm})
    other = dataclasses.replace(found, settings=settings)
    lines = advise(other)
    said = f"This run trains with {label}, whose step is not measured here"
    assert any(line.startswith(said) for line in lines)
    assert not any("of now" in line or "than now" in line for line in lines)
    ranked = rank_remedies(other)
    assert not any("(now)" in remedy.name for remedy in ranked)
    baseline = next(remedy for remedy in ranked if remedy.is_baseline)
    assert (baseline.name, baseline.setting) == ("FedAvg", "algorithm=fedavg")
    more = next(remedy for remedy in ranked if "clients a round" in remedy.name)
    assert more.setting == "algorithm=fedavg --set clients_per_round=8"
    text = as_text(other, lines)
    assert f"The run trains with {label}" in text
    assert not any("whose step is not measured" in line for line in advise(found))


def test_every_remedy_has_a_setting_that_is_taken(
    found: Diagnosis, with_rows: Diagnosis, config: Path
) -> None:
    aged = RowSpread(around_rows=4.0, rows=4.0, product=2.0)
    for one in (found, changed(with_rows, between_clients=4.0, from_rows=aged)):
        for remedy in rank_remedies(one):
            assert remedy.setting or remedy.is_baseline or "fresh rows" in remedy.name
            settings = remedy.setting.split(" --set ") if remedy.setting else []
            assert load_settings(config, settings)


def test_a_part_of_each_row_is_advised_where_it_is_worth_a_setting(with_rows: Diagnosis) -> None:
    """The best β is never worse than FedVARP: without this it would always come first."""
    of_fedvarp = dataclasses.replace(
        with_rows, settings=with_rows.settings.model_copy(update={"algorithm": "fedvarp"})
    )

    def with_beta(rows: RowSpread) -> list[str]:
        other = changed(of_fedvarp, noise=0.1, between_clients=4.0, drift=0.0, from_rows=rows)
        left = {remedy.name: remedy.total.value for remedy in rank_remedies(other)}
        for name, value in left.items():
            if "its rows, β" in name:
                assert value < 0.95 * min(left["FedVARP, its rows (now)"], left["FedAvg"])
        return [
            remedy.setting
            for remedy in rank_remedies(other)
            if remedy.name.startswith("FedVARP, its")
        ]

    half = RowSpread(around_rows=4.0, rows=4.0, product=2.0)
    nearly_all = RowSpread(around_rows=0.02, rows=4.0, product=3.99)
    assert "algorithm=fedstale --set algorithm.beta=0.50" in with_beta(half)
    assert not any("beta" in setting for setting in with_beta(nearly_all))


def test_a_lopsided_sample_is_said_to_be_one(found: Diagnosis) -> None:
    def warned(draws: float, clients: int, variation: float = VARIATION) -> bool:
        measured = dataclasses.replace(
            found.measured,
            draws=draws,
            clients=found.measured.clients[:clients],
            variation=variation,
        )
        lines = advise(dataclasses.replace(found, measured=measured))
        return any("Others like them may not have been drawn" in line for line in lines)

    assert warned(draws=3.0, clients=12)
    assert warned(draws=10.0, clients=12, variation=4.0)
    assert not warned(draws=10.0, clients=12)
    assert not warned(draws=3.0, clients=len(found.measured.clients))


def test_a_rate_just_above_the_largest_is_not_called_one_times_it(found: Diagnosis) -> None:
    def on_the_rate(factor: float) -> str:
        rate = factor * found.allowed_lr["fedavg"]
        lines = advise(dataclasses.replace(found, client_lr=rate, updates=None))
        return next(line for line in lines if "Theorem 1" in line)

    assert "is just above the largest" in on_the_rate(1.02)
    assert "is 1.4 times the largest" in on_the_rate(1.4)
    assert "is 110 times the largest" in on_the_rate(110)


def test_an_error_below_zero_is_shown_as_none_and_does_not_win_by_luck(found: Diagnosis) -> None:
    """An unbiased estimate of next to nothing is below zero half of the time."""
    assert with_interval(Estimate(-0.1, 0.1, -0.1, 0.3)) == "0 (95%: 0 to 0.3)"
    drifting = changed(found, noise=0.0, between_clients=1.0, drift=-10.0)
    assert drifting.step_errors["fedavg"].total < 0
    for remedy in rank_remedies(drifting):
        assert remedy.total.value >= 0
        assert remedy.total.low >= 0
    noisy, sure = (
        dataclasses.replace(rank_remedies(found)[0], name=name, total=total)
        for name, total in (
            ("noisy", Estimate(0.0, 0.1, 0.0, 0.3)),
            ("sure", Estimate(0.01, 0.001, 0.008, 0.012)),
        )
    )
    assert min([noisy, sure], key=_error_to_rank_by) is sure
    assert not any(": -" in line or "by -" in line for line in advise(drifting))
