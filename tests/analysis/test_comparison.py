"""The figures of a comparison: rounds, bytes, speed-ups, the end, and what is noted about them."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest

from fedvarp.analysis.comparison import compare
from fedvarp.analysis.comparison_tables import formatted
from fedvarp.runs.directory import RunDirectory
from fedvarp.runs.errors import RunError
from fedvarp.simulation.callbacks import Record
from some_runs import write_run


def test_rounds_bytes_and_speed_up_by_the_first_rule(two_algorithms: Path) -> None:
    fedavg, fedvarp = compare([two_algorithms], target=0.5).rows
    assert fedavg.first is not None
    assert fedvarp.first is not None
    assert fedavg.first.rounds == (30, 50)
    assert fedvarp.first.rounds == (20, 20)
    assert fedvarp.first.mean_sent == 20 * 300
    assert fedavg.first.mean_sent == 40 * 300
    assert fedvarp.first_speed_up is not None
    assert fedvarp.first_speed_up.factor == 40 / 20  # (30 + 50) / 2 rounds against 20
    assert not fedvarp.first_speed_up.is_lower_bound


def test_the_second_rule_wants_the_mean_of_the_last_evaluations(two_algorithms: Path) -> None:
    fedavg, fedvarp = compare([two_algorithms], target=0.5, smooth=2).rows
    assert fedavg.smoothed is not None
    assert fedvarp.smoothed is not None
    # Means of two, v0: .25 .5 .5 .55 .75, first 0.5 at round 20; v1: .25 .45 .6, at round 30.
    assert fedvarp.smoothed.rounds == (20, 30)
    # a0: .15 .3 .45 .55, at round 40; a1: .15 .25 .3 .35 .45, never.
    assert fedavg.smoothed.rounds == (40, None)
    assert fedavg.smoothed.mean_rounds is None
    # FedAvg took at least (40 + 50) / 2 rounds, as seed 1 had 50 and did not get there.
    assert fedvarp.smoothed_speed_up is not None
    assert fedvarp.smoothed_speed_up.factor == pytest.approx(45 / 25)
    assert fedvarp.smoothed_speed_up.is_lower_bound


def test_figures_at_the_end(two_algorithms: Path) -> None:
    fedavg, fedvarp = compare([two_algorithms], target=0.5).rows
    assert fedavg.final_accuracy is not None
    assert fedvarp.best_accuracy is not None
    assert fedavg.final_accuracy.mean == pytest.approx(0.6)
    # With n − 1: sqrt((0.1² + 0.1²) / 1).
    assert fedavg.final_accuracy.std == pytest.approx(math.sqrt(0.02))
    assert fedvarp.best_accuracy.per_seed == (0.8, 0.9)
    assert fedvarp.server_bytes == 1050
    assert fedvarp.sent == 50 * 300
    assert fedvarp.seconds is not None
    assert fedvarp.seconds.mean == 51 * 2.0  # the evaluation of the initial model included


def test_validation_figures_are_shown_where_they_were_recorded(tmp_path: Path) -> None:
    with_both = write_run(
        tmp_path / "a", [0.1, 0.5], validation_accuracy=[0.1, 0.6], validation_loss=[2.3, 1.25]
    )
    comparison = compare([with_both])
    (row,) = comparison.rows
    assert row.validation_accuracy is not None
    assert row.validation_accuracy.mean == 0.6
    text = formatted(comparison)
    assert all(shown in text for shown in ("validation accuracy", "60.0 %", "1.25"))
    (line,) = csv.DictReader(formatted(comparison, "csv").splitlines())
    assert float(line["validation_loss_mean"]) == 1.25
    without = formatted(compare([write_run(tmp_path / "b", [0.1, 0.5])]))
    assert "validation accuracy" not in without


def test_the_quickest_fedavg_is_the_baseline(tmp_path: Path) -> None:
    write_run(tmp_path / "slow", [0.1, 0.1, 0.1, 0.1, 0.5], algorithm="fedavg", lr=0.01)
    write_run(tmp_path / "good", [0.1, 0.1, 0.5, 0.5, 0.5], algorithm="fedavg", lr=0.1)
    # Never gets there, and was not given long: no excuse to call it quick.
    write_run(tmp_path / "short", [0.1, 0.1], algorithm="fedavg", lr=1.0)
    write_run(tmp_path / "mine", [0.1, 0.5, 0.5, 0.5, 0.5], algorithm="fedvarp")
    mine = compare([tmp_path], target=0.5).rows[-1]
    assert mine.first_speed_up is not None
    assert mine.first_speed_up.factor == 20 / 10
    assert not mine.first_speed_up.is_lower_bound


def test_a_speed_up_is_over_the_seeds_that_both_have(tmp_path: Path) -> None:
    write_run(tmp_path / "a0", [0.1, 0.1, 0.1, 0.5], algorithm="fedavg", seed=0)
    write_run(tmp_path / "a1", [0.1, 0.5, 0.5, 0.5], algorithm="fedavg", seed=1)
    write_run(tmp_path / "s0", [0.1, 0.1, 0.5, 0.5], algorithm="scaffold", seed=0)
    write_run(tmp_path / "s7", [0.1, 0.5, 0.5, 0.5], algorithm="scaffold", seed=7)
    write_run(tmp_path / "v7", [0.1, 0.5, 0.5, 0.5], algorithm="fedvarp", seed=7)
    fedavg, scaffold, fedvarp = compare([tmp_path], target=0.5).rows
    assert fedavg.first_speed_up is not None
    assert scaffold.first_speed_up is not None
    assert fedvarp.first_speed_up is not None
    assert fedavg.first_speed_up.factor == 1
    assert scaffold.first_speed_up.factor == 30 / 20  # seed 0 of both
    assert fedvarp.first_speed_up.factor == 20 / 10  # none in common: all that there are


def test_a_rate_tried_with_one_seed_is_no_baseline_where_another_has_them_all(
    tmp_path: Path,
) -> None:
    write_run(tmp_path / "tried", [0.1, 0.5, 0.5, 0.5], algorithm="fedavg", lr=0.01, seed=1)
    for seed, first in ((0, 1), (1, 3)):
        curve = [0.1] * first + [0.5] * (4 - first)
        write_run(tmp_path / f"a{seed}", curve, algorithm="fedavg", lr=0.1, seed=seed)
        write_run(tmp_path / f"v{seed}", [0.1, 0.5, 0.5, 0.5], seed=seed)
    fedvarp = compare([tmp_path], target=0.5).rows[-1]
    assert fedvarp.first_speed_up is not None
    assert fedvarp.first_speed_up.factor == (10 + 30) / 2 / 10  # and not 10 / 10 of seed 1 alone


def test_the_baseline_is_of_the_same_task(tmp_path: Path) -> None:
    five, ten = ({"clients_per_round": M} for M in (5, 10))
    write_run(tmp_path / "a5", [0.1, 0.1, 0.1, 0.5], algorithm="fedavg", settings=five)
    write_run(tmp_path / "a10", [0.1, 0.5, 0.5, 0.5], algorithm="fedavg", settings=ten)
    write_run(tmp_path / "v5", [0.1, 0.1, 0.5, 0.5], settings=five)
    write_run(tmp_path / "v10", [0.1, 0.5, 0.5, 0.5], settings=ten)
    write_run(tmp_path / "alone", [0.1, 0.5, 0.5, 0.5], settings={"clients_per_round": 20})
    rows = compare([tmp_path], target=0.5, allow_different=True).rows
    factors = {
        (row.group.algorithm, row.group.settings["clients_per_round"]): row.first_speed_up
        and row.first_speed_up.factor
        for row in rows
    }
    assert factors == {
        ("fedavg", 5): 1,
        ("fedavg", 10): 1,
        ("fedvarp", 5): 30 / 20,
        ("fedvarp", 10): 1,
        ("fedvarp", 20): None,
    }


def test_the_accuracy_of_the_last_evaluations(two_algorithms: Path, tmp_path: Path) -> None:
    fedavg, fedvarp = compare([two_algorithms], target=0.5, smooth=3).rows
    assert fedavg.late_accuracy is not None
    assert fedvarp.late_accuracy is not None
    assert fedavg.late_accuracy.per_seed == pytest.approx((0.6, 0.4))
    assert fedvarp.late_accuracy.per_seed == pytest.approx((1.9 / 3, 0.8))
    (line, _) = csv.DictReader(formatted(compare([two_algorithms], smooth=3), "csv").splitlines())
    assert float(line["late_accuracy_mean"]) == pytest.approx(0.5)
    (row,) = compare([write_run(tmp_path / "short", [0.1, 0.2])], smooth=3).rows
    assert row.late_accuracy is None


def test_a_target_that_is_never_reached(two_algorithms: Path) -> None:
    comparison = compare([two_algorithms], target=0.99)
    assert all(row.first is not None and row.first.count == 0 for row in comparison.rows)
    assert all(row.first_speed_up is None for row in comparison.rows)
    assert formatted(comparison).count("not reached") == 4  # two groups by two rules
    halfway = formatted(compare([two_algorithms], target=0.6))
    assert "only 1 of 2 seeds" in halfway


def test_tasks_without_classes_count_rounds_to_a_loss(tmp_path: Path) -> None:
    write_run(tmp_path / "a", train_loss=[4.0, 3.0, 2.0, 1.0], algorithm="fedavg")
    write_run(tmp_path / "v", train_loss=[4.0, 2.0, 1.0, 0.5], algorithm="fedvarp")
    comparison = compare([tmp_path], target_loss=2.0, smooth=2)
    first = [row.first for row in comparison.rows]
    assert [reached.rounds for reached in first if reached] == [(20,), (10,)]
    assert "To training loss 2" in formatted(comparison)
    plain = compare([tmp_path])
    assert plain.target is None
    assert "accuracy" not in formatted(plain)  # neither a column nor a note
    with pytest.raises(RunError, match=r"no test accuracy.*target-loss"):
        compare([tmp_path], target=0.5)


def test_impossible_targets_are_refused(two_algorithms: Path) -> None:
    with pytest.raises(RunError, match=r"not between 0 and 1 \(did you mean 0.5\?\)"):
        compare([two_algorithms], target=50)
    with pytest.raises(RunError, match="give one of them"):
        compare([two_algorithms], target=0.5, target_loss=1)


def test_a_diverged_run_is_not_finite_rather_than_good(tmp_path: Path) -> None:
    write_run(tmp_path / "x", [0.1, 0.3, 0.1], train_loss=[2.3, 1.0, None])
    comparison = compare([tmp_path], target=0.5)
    (row,) = comparison.rows
    assert row.train_loss is not None
    assert math.isnan(row.train_loss.mean)
    assert "not finite" in formatted(comparison)
    assert json.loads(formatted(comparison, "json"))["groups"][0]["train_loss"]["mean"] is None
    aimed = compare([tmp_path], target_loss=1.0).rows[0].first
    assert aimed is not None
    assert aimed.rounds == (10,)


def test_real_figures_are_those_of_the_metrics_file(real_runs: Path) -> None:
    row = compare([real_runs / "fedvarp-0"]).rows[0]
    records: list[Record] = RunDirectory(real_runs / "fedvarp-0").metrics()
    assert row.final_accuracy is not None
    assert row.final_accuracy.mean == records[-1]["test_accuracy"]
    # 20 rounds of 2 clients, who get and send 650 floats of 4 bytes.
    assert row.sent == 20 * 2 * 2 * 650 * 4
    timings = RunDirectory(real_runs / "fedvarp-0").timings()
    assert row.seconds is not None
    assert row.seconds.mean == pytest.approx(sum(line["seconds"] for line in timings))


def test_seeds_of_unequal_length_are_cut_to_the_shortest(tmp_path: Path) -> None:
    write_run(tmp_path / "0", [0.1, 0.2, 0.3, 0.9], seed=0)
    write_run(tmp_path / "1", [0.1, 0.4, 0.5], seed=1)
    comparison = compare([tmp_path], target=0.6)
    (row,) = comparison.rows
    assert row.rounds == 20
    assert row.final_accuracy is not None
    assert row.final_accuracy.per_seed == (0.3, 0.5)
    assert row.sent == 20 * 300
    assert row.server_bytes == 1020
    # But each seed has all its rounds to reach the target in.
    assert row.first is not None
    assert row.first.rounds == (30, None)
    assert any("ended after rounds 30, 20" in note for note in comparison.notes)


def test_too_few_evaluations_for_a_mean_are_noted_without_a_target_too(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.01, 0.02])
    write_run(tmp_path / "l", train_loss=[2.0, 1.0], algorithm="fedavg")
    comparison = compare([tmp_path], smooth=3)
    assert comparison.target is None
    few = f"{tmp_path / 'l'} has 2 evaluations, too few for a running mean over 3 (2 such runs)."
    assert [note for note in comparison.notes if "too few" in note] == [few]
    few = f"{tmp_path / 'a'} has 2 evaluations, too few for a running mean over 3."
    assert few in compare([tmp_path / "a"], smooth=3).notes
    losses = compare([tmp_path / "l"], smooth=3)
    assert not any("too few" in note for note in losses.notes)
