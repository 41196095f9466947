"""Comparing runs: what is read, what belongs together, when a target is met, what is printed."""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from fedvarp.analysis import as_csv, as_json, as_text, compare, group_runs, read_runs
from fedvarp.analysis.styles import LOOKS, look_of
from fedvarp.analysis.targets import running_mean
from fedvarp.analysis.units import in_bytes, in_seconds
from fedvarp.runs.directory import RunDirectory, RunError
from fedvarp.simulation.round_loop import Record
from some_runs import digits_runs, write_run


@pytest.fixture(scope="module")
def real_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return digits_runs(tmp_path_factory.mktemp("real"))


@pytest.fixture
def two_algorithms(tmp_path: Path) -> Path:
    """FedAvg reaches 0.5 at rounds 30 and 50; FedVARP at 20 and 20, but falls back in seed 0."""
    write_run(tmp_path / "a0", [0.1, 0.2, 0.4, 0.5, 0.6, 0.7], algorithm="fedavg", seed=0)
    write_run(tmp_path / "a1", [0.1, 0.2, 0.3, 0.3, 0.4, 0.5], algorithm="fedavg", seed=1)
    write_run(tmp_path / "v0", [0.1, 0.4, 0.6, 0.4, 0.7, 0.8], algorithm="fedvarp", seed=0)
    write_run(tmp_path / "v1", [0.1, 0.4, 0.5, 0.7, 0.9, 0.8], algorithm="fedvarp", seed=1)
    return tmp_path


# The figures


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
    (line, _) = csv.DictReader(as_csv(compare([two_algorithms], smooth=3)).splitlines())
    assert float(line["late_accuracy_mean"]) == pytest.approx(0.5)
    (row,) = compare([write_run(tmp_path / "short", [0.1, 0.2])], smooth=3).rows
    assert row.late_accuracy is None


def test_a_target_that_is_never_reached(two_algorithms: Path) -> None:
    comparison = compare([two_algorithms], target=0.99)
    assert all(row.first is not None and row.first.count == 0 for row in comparison.rows)
    assert all(row.first_speed_up is None for row in comparison.rows)
    assert as_text(comparison).count("not reached") == 4  # two groups by two rules
    halfway = as_text(compare([two_algorithms], target=0.6))
    assert "only 1 of 2 seeds" in halfway


def test_without_a_target_the_highest_that_all_reach(two_algorithms: Path, tmp_path: Path) -> None:
    # The lowest of the best: a1 has 0.5, and a mean of two of 0.45.
    target = compare([two_algorithms], smooth=2).target
    assert target is not None
    assert target.value == 0.45
    stops = {"target_accuracy": 0.37}
    run = write_run(tmp_path / "stop" / "x", [0.1, 0.4], settings=stops)
    target = compare([run]).target
    assert target is not None
    assert target.value == 0.37


def test_tasks_without_classes_count_rounds_to_a_loss(tmp_path: Path) -> None:
    write_run(tmp_path / "a", train_loss=[4.0, 3.0, 2.0, 1.0], algorithm="fedavg")
    write_run(tmp_path / "v", train_loss=[4.0, 2.0, 1.0, 0.5], algorithm="fedvarp")
    comparison = compare([tmp_path], target_loss=2.0, smooth=2)
    first = [row.first for row in comparison.rows]
    assert [reached.rounds for reached in first if reached] == [(20,), (10,)]
    assert "To training loss 2" in as_text(comparison)
    plain = compare([tmp_path])
    assert plain.target is None
    assert "accuracy" not in as_text(plain)  # neither a column nor a note
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
    assert "not finite" in as_text(comparison)
    assert json.loads(as_json(comparison))["groups"][0]["train_loss"]["mean"] is None
    aimed = compare([tmp_path], target_loss=1.0).rows[0].first
    assert aimed is not None
    assert aimed.rounds == (10,)


def test_a_mean_that_is_the_target_but_for_rounding_meets_it(tmp_path: Path) -> None:
    run = write_run(tmp_path / "x", [0.7, 0.7, 0.7, 0.7], train_loss=[0.7, 0.7, 0.7, 0.7])
    assert running_mean(np.full(3, 0.7), 3)[-1] < 0.7
    comparison = compare([run], smooth=3)
    assert comparison.target is not None
    assert comparison.target.value == 0.7
    smoothed = comparison.rows[0].smoothed
    assert smoothed is not None
    assert smoothed.rounds == (20,)


def test_running_mean_against_a_loop() -> None:
    values = np.array([3.0, 1.0, 4.0, 1.0, 5.0, 9.0])
    for k in range(1, 8):
        expected = [
            np.mean(values[i - k + 1 : i + 1]) if i >= k - 1 else np.nan for i in range(len(values))
        ]
        np.testing.assert_allclose(running_mean(values, k), expected)
    with pytest.raises(ValueError, match="at least 1"):
        running_mean(values, 0)


# What belongs together


def test_groups_come_in_the_papers_order_and_are_told_apart_by_what_differs(tmp_path: Path) -> None:
    for algorithm in ("fedvarp", "mine", "fedavg"):
        for seed in (0, 1):
            run = tmp_path / f"{algorithm}{seed}"
            write_run(run, [0.1, 0.2], algorithm=algorithm, seed=seed)
    write_run(tmp_path / "other", [0.1, 0.2], algorithm="fedvarp", lr=0.03)
    groups = compare([tmp_path]).groups
    labels = [group.label for group in groups]
    assert labels == ["FedAvg", "FedVARP (lr=0.03)", "FedVARP (lr=0.1)", "mine"]
    assert [len(group.runs) for group in groups] == [2, 1, 2, 2]
    assert [group.client_rate for group in groups] == [0.1, 0.03, 0.1, 0.1]


def test_real_runs_make_one_group_for_each_algorithm(real_runs: Path) -> None:
    groups = compare([real_runs]).groups
    assert [group.label for group in groups] == ["FedAvg", "MIFA", "FedVARP"]
    assert [[run.seed for run in group.runs] for group in groups] == [[0, 1]] * 3
    assert all(group.rounds.tolist() == [0, 5, 10, 15, 20] for group in groups)


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


def test_a_seed_of_the_data_is_part_of_the_task(tmp_path: Path) -> None:
    # data.seed is 0 in both runs, and no copy of the run's seed: they share their federation.
    for seed in (0, 1):
        write_run(tmp_path / "same" / str(seed), [0.1], seed=seed, settings={"data": {"seed": 0}})
    assert len(compare([tmp_path / "same"]).groups) == 1
    for seed in (0, 1):
        other = {"data": {"seed": 7 + seed}}
        write_run(tmp_path / "other" / str(seed), [0.1], seed=seed, settings=other)
    with pytest.raises(RunError, match=r"data\.seed: 7 .*, 8 "):
        compare([tmp_path / "other"])


def test_different_tasks_are_refused_with_their_differences(tmp_path: Path) -> None:
    write_run(tmp_path / "one", [0.1, 0.2], settings={"data": {"name": "digits"}})
    for seed in (0, 1):
        setting = {"data": {"name": "cifar10"}}
        write_run(tmp_path / f"two{seed}", [0.1, 0.2], seed=seed, settings=setting)
    with pytest.raises(RunError) as refusal:
        compare([tmp_path])
    assert f"data.name: digits ({tmp_path / 'one'}), cifar10 ({tmp_path / 'two0'} and 1 more)" in (
        str(refusal.value)
    )
    assert "--allow-different" in str(refusal.value)
    allowed = compare([tmp_path], allow_different=True)
    assert [group.label for group in allowed.groups] == [
        "FedVARP (name=cifar10)",
        "FedVARP (name=digits)",
    ]
    assert any("different tasks" in note for note in allowed.notes)


def test_of_many_differences_those_that_both_sides_set_come_first(tmp_path: Path) -> None:
    many = {"extra": {f"s{i}": i for i in range(20)}}
    write_run(tmp_path / "a", [0.1], settings=many | {"clients_per_round": 2})
    write_run(tmp_path / "b", [0.1], settings={"clients_per_round": 5})
    with pytest.raises(RunError) as refusal:
        compare([tmp_path])
    lines = str(refusal.value).splitlines()
    assert lines[1].startswith("  clients_per_round: 2 ")
    assert lines[-2] == "  and 13 more settings"  # 21 differences, 8 of them listed


def test_method_and_machine_may_differ(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.1, 0.2], settings={"server_lr": 0.5, "states": {"dtype": "int8"}})
    other = {
        "threads": 4,
        "states": {"dtype": "float32", "where": "disk"},
        "commit_every": 5,
        "trainer": "parallel",
        "workers": 2,
        "compile": True,
        "exact": False,
        "auto": "parallel 0.1 s a round",
    }
    write_run(tmp_path / "b", [0.1, 0.2], seed=1, settings=other)
    write_run(tmp_path / "c", [0.1, 0.2], seed=2, settings={"states": {"dtype": "float32"}})
    groups = compare([tmp_path]).groups
    assert [[run.seed for run in group.runs] for group in groups] == [[0], [1, 2]]


def test_another_initial_model_is_another_task(tmp_path: Path) -> None:
    write_run(tmp_path / "a", train_loss=[2.3, 1.0], algorithm="fedavg")
    write_run(tmp_path / "b", train_loss=[2.2, 1.0], algorithm="fedvarp")
    with pytest.raises(RunError, match=r"initial model with seed 0: 2\.3 .*, 2\.2 "):
        compare([tmp_path])
    write_run(tmp_path / "c", train_loss=[2.2001, 1.0], algorithm="mifa")
    compare([tmp_path / "b", tmp_path / "c"])  # another machine's rounding


def test_the_same_run_twice(tmp_path: Path) -> None:
    run = write_run(tmp_path / "x", [0.1, 0.2])
    (tmp_path / "link").symlink_to(run)
    assert len(read_runs([run, tmp_path, tmp_path / "link"])[0]) == 1
    shutil.copytree(run, tmp_path / "copy")
    with pytest.raises(RunError, match="would count twice"):
        compare([tmp_path])


# What is on disk


def test_directories_that_are_no_runs(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="does not exist"):
        compare([tmp_path / "nowhere"])
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="not a file of compacted runs"):
        compare([tmp_path / "file"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match="holds no run"):
        compare([tmp_path / "empty"])
    with pytest.raises(RunError, match="No run was named"):
        compare([])


def test_damaged_files_are_named(tmp_path: Path) -> None:
    run = write_run(tmp_path / "x", [0.1, 0.2])
    metrics = RunDirectory(run).metrics_file
    metrics.write_text('{"round": 0}\n{"round": \n')
    with pytest.raises(RunError, match=r"x/metrics\.jsonl is damaged in its line 2 .*Restore it"):
        compare([run])
    with pytest.raises(RunError, match=r"x/metrics\.jsonl is damaged in its last whole line"):
        _ = RunDirectory(run).rounds_done
    for content in (b"rounds = \n", b"\xff"):
        RunDirectory(run).config_file.write_bytes(content)
        with pytest.raises(RunError, match=r"x/config\.toml is damaged .*Restore it"):
            RunDirectory(run).settings()


def test_a_run_without_a_round_is_left_out_and_said_so(tmp_path: Path) -> None:
    write_run(tmp_path / "x", [0.1, 0.2])
    RunDirectory(tmp_path / "y").create({"algorithm": "fedavg", "seed": 0})
    RunDirectory(tmp_path / "y").metrics_file.touch()
    comparison = compare([tmp_path])
    assert len(comparison.groups) == 1
    assert any("y is left out" in note for note in comparison.notes)
    with pytest.raises(RunError, match="no round of it"):
        compare([tmp_path / "y"])


def test_unfinished_runs_are_marked(tmp_path: Path) -> None:
    write_run(tmp_path / "x", [0.1, 0.2], settings={"rounds": 500})
    comparison = compare([tmp_path])
    assert "FedVARP *" in as_text(comparison)
    assert any("round 10 of 500" in note for note in comparison.notes)
    # One that was told to stop at an accuracy, and did, is finished.
    stopped = {"rounds": 500, "target_accuracy": 0.2}
    write_run(tmp_path / "y", [0.1, 0.2], seed=1, settings=stopped)
    assert compare([tmp_path / "y"]).rows[0].unfinished == []


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


def test_runs_without_timings_have_no_wall_time(tmp_path: Path) -> None:
    run = write_run(tmp_path / "x", [0.1, 0.2], seconds=None)
    assert compare([run]).rows[0].seconds is None
    RunDirectory(run).timings_file.unlink()
    assert compare([run]).rows[0].seconds is None


# What is printed


def test_csv_and_json_agree_with_the_rows(two_algorithms: Path) -> None:
    comparison = compare([two_algorithms], target=0.5, smooth=2)
    lines = list(csv.DictReader(io.StringIO(as_csv(comparison))))
    objects = json.loads(as_json(comparison))["groups"]
    assert [line["algorithm"] for line in lines] == ["fedavg", "fedvarp"]
    for line, described, row in zip(lines, objects, comparison.rows, strict=True):
        assert row.final_accuracy is not None
        assert row.first is not None
        assert float(line["final_accuracy_mean"]) == row.final_accuracy.mean
        assert described["final_accuracy"]["per_seed"] == list(row.final_accuracy.per_seed)
        assert float(line["rounds_first"]) == row.first.mean_rounds
        assert described["first"]["rounds_per_seed"] == list(row.first.rounds)
    assert lines[0]["rounds_smoothed"] == ""  # not reached in seed 1
    assert lines[0]["reached_smoothed"] == "1"
    assert objects[0]["smoothed"]["rounds"] is None
    assert objects[1]["smoothed"]["speed_up_is_lower_bound"] is True


def test_text_shows_names_in_brackets_as_they_are(tmp_path: Path) -> None:
    write_run(tmp_path / "x", [0.1, 0.2], algorithm="[bold]mine[/bold]")
    assert "[bold]mine[/bold]" in as_text(compare([tmp_path]))


def test_text_of_the_two_algorithms(two_algorithms: Path) -> None:
    lines = as_text(compare([two_algorithms], target=0.5, smooth=2)).splitlines()
    assert lines[0] == "To 50 % test accuracy"
    found = [" ".join(line.split()) for line in lines]
    assert "FedAvg 40 1.00× only 1 of 2 seeds – 12 kB" in found
    assert "FedVARP 20 2.00× 25 > 1.80× 6 kB" in found
    assert "FedVARP 80.0 ± 0.0 % 80.0 ± 7.1 % 85.0 ± 7.1 %" in found
    seed_by_seed = found[found.index("Seed by seed") :]
    assert "FedAvg 0, 1 30, 50 40, – 70.0, 50.0 65.0, 45.0" in seed_by_seed
    assert "FedVARP 0, 1 20, 20 20, 30 80.0, 80.0 75.0, 85.0" in seed_by_seed
    assert "FedVARP 0.1 2 50 15 kB 1.05 kB 1 min 42 s" in found


def test_rates_of_the_papers_grid_are_powers_of_ten(tmp_path: Path) -> None:
    for lr in (0.1, 10**-1.5):
        write_run(tmp_path / str(lr), [0.1, 0.2], lr=lr)
    labels = [row.group.label for row in compare([tmp_path]).rows]
    assert labels == ["FedVARP (lr=10^-1.5)", "FedVARP (lr=0.1)"]


def test_a_single_seed_needs_no_table_of_seeds(tmp_path: Path) -> None:
    write_run(tmp_path / "only", [0.1, 0.2])
    assert "Seed by seed" not in as_text(compare([tmp_path]))


def test_runs_without_an_accuracy_have_a_table_of_seeds_too(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path / str(seed), train_loss=[3.0, 2.0, 1.0], seed=seed)
    found = as_text(compare([tmp_path], target_loss=2.0, smooth=2))
    table = found[found.index("Seed by seed") :]
    assert "10, 10" in table
    assert "accuracy" not in table


def test_a_seed_that_diverged_is_named_so_in_the_table_of_seeds(tmp_path: Path) -> None:
    for seed, end in ((0, 0.2), (1, None)):
        write_run(tmp_path / str(seed), [0.1, end], seed=seed)
    found = as_text(compare([tmp_path], smooth=1))
    assert "20.0, not finite" in found[found.index("Seed by seed") :]


def test_too_few_evaluations_for_a_mean_are_noted_without_a_target_too(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.01, 0.02])
    write_run(tmp_path / "l", train_loss=[2.0, 1.0], algorithm="fedavg")
    comparison = compare([tmp_path], smooth=3)
    assert comparison.target is None
    assert f"{tmp_path / 'a'} has 2 evaluations, too few for a running mean over 3." in (
        comparison.notes
    )
    losses = compare([tmp_path / "l"], smooth=3)
    assert not any("too few" in note for note in losses.notes)


def test_every_algorithm_looks_different() -> None:
    assert len({look.colour for look in LOOKS.values()}) == len(LOOKS)
    assert len({look.dash for look in LOOKS.values()}) == len(LOOKS)
    assert len({look.marker for look in LOOKS.values()}) == len(LOOKS)
    assert look_of("mine") == look_of("mine")
    assert look_of("mine").colour not in {look.colour for look in LOOKS.values()}
    assert len({look_of("fedvarp", variant).dash for variant in range(5)}) == 5


def test_units_do_not_round_into_nonsense() -> None:
    assert in_bytes(0) == "0 B"
    assert in_bytes(999_600) == "1 MB"
    assert in_seconds(59.97) == "1 min 00 s"
    assert in_seconds(3599.6) == "1 h 00 min"


def test_groups_need_a_common_round(tmp_path: Path) -> None:
    runs = []
    for seed in (0, 1):
        run = write_run(tmp_path / str(seed), [0.1, 0.2], seed=seed)
        metrics = RunDirectory(run).metrics_file
        lines = metrics.read_text().splitlines(keepends=True)
        metrics.write_text(lines[0] if seed else lines[10])
        runs.append(run)
    (group,) = group_runs(read_runs(runs)[0])
    with pytest.raises(RunError, match="share no evaluated round"):
        _ = group.rounds
