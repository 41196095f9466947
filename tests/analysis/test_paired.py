"""Groups beside a baseline, seed by seed: the differences and their intervals."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from scipy import stats  # type: ignore[import-untyped]

from fedvarp.analysis import compare, formatted
from fedvarp.analysis.paired import Difference
from fedvarp.runs.errors import RunError
from some_runs import write_run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Evaluated at rounds 0 to 40; FedVARP has one seed more, and FedAvg a longer run."""
    write_run(tmp_path / "a0", [0.1, 0.2, 0.3, 0.5, 0.5, 0.9], algorithm="fedavg", seed=0)
    write_run(tmp_path / "a1", [0.1, 0.2, 0.3, 0.4, 0.5, 0.9], algorithm="fedavg", seed=1)
    write_run(tmp_path / "v0", [0.1, 0.5, 0.6, 0.6, 0.6], seed=0)
    write_run(tmp_path / "v1", [0.1, 0.2, 0.5, 0.6, 0.8], seed=1)
    write_run(tmp_path / "v2", [0.0, 0.0, 0.0, 0.0, 0.0], seed=2)
    return tmp_path


def test_differences_are_taken_within_seeds_and_up_to_the_last_common_round(runs: Path) -> None:
    compared = compare([runs], target=0.5, smooth=1, beside="fedavg")
    assert compared.baseline is not None
    assert compared.baseline.group.algorithm == "fedavg"
    itself, found = compared.differences
    assert itself is not None
    assert itself.late_accuracy is not None
    assert itself.late_accuracy.per_seed == (0.0, 0.0)
    assert found is not None
    assert found.seeds == (0, 1)
    assert found.rounds == 40
    assert found.speed_up is not None
    assert found.speed_up.per_seed == (3.0, 2.0)
    assert found.speed_up.mean == pytest.approx(math.sqrt(6))
    assert found.late_accuracy is not None
    assert found.late_accuracy.per_seed == pytest.approx((0.1, 0.3))
    assert found.half_accuracy is not None  # rounds 30 and 40
    assert found.half_accuracy.per_seed == pytest.approx((0.1, 0.25))


def test_no_speed_up_where_a_seed_never_got_there(runs: Path) -> None:
    _, found = compare([runs], target=0.7, smooth=1, beside="fedavg").differences
    assert found is not None
    assert found.speed_up is None


@pytest.mark.parametrize("n", [2, 3, 5, 11, 12, 40])
def test_intervals_are_students(n: int) -> None:
    values = [math.sin(i) for i in range(n)]
    interval = Difference(tuple(values)).interval
    assert interval is not None
    expected = stats.t.interval(0.95, n - 1, stats.tmean(values), stats.sem(values))
    assert interval == pytest.approx(expected, rel=0.005)
    ratios = Difference(tuple(math.exp(value) for value in values), is_ratio=True).interval
    assert ratios == pytest.approx([math.exp(end) for end in expected], rel=0.005)


def test_one_seed_has_no_interval() -> None:
    assert Difference((0.1,)).interval is None


def test_the_table_and_the_json(runs: Path) -> None:
    compared = compare([runs], target=0.5, smooth=1, beside="fedavg")
    text = formatted(compared)
    assert "Beside FedAvg, seed by seed" in text
    assert "+20.0 (-107.1 to +147.1)" in text  # 0.2 ± 12.706 · 0.1
    assert "Student's t" in text
    beside = [group["beside"] for group in json.loads(formatted(compared, "json"))["groups"]]
    assert beside[1]["speed_up"]["per_seed"] == [3.0, 2.0]
    assert "Beside" not in formatted(compare([runs], target=0.5))


def test_the_best_of_several_rates_is_taken(tmp_path: Path) -> None:
    write_run(tmp_path / "low", [0.1, 0.3], algorithm="fedavg", lr=0.1)
    write_run(tmp_path / "high", [0.1, 0.6], algorithm="fedavg", lr=0.3)
    write_run(tmp_path / "v", [0.1, 0.7])
    compared = compare([tmp_path], smooth=1, beside="fedavg")
    assert compared.baseline is not None
    assert compared.baseline.group.client_rate == 0.3


def test_an_algorithm_that_is_not_there(runs: Path) -> None:
    with pytest.raises(RunError, match=r"no run of 'mifa'.*fedavg, fedvarp"):
        compare([runs], beside="mifa")


def test_no_seed_in_common_is_said(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.1, 0.5], algorithm="fedavg", seed=0)
    write_run(tmp_path / "v", [0.1, 0.5], seed=1)
    assert "No seed is shared with FedAvg: FedVARP." in formatted(
        compare([tmp_path], smooth=1, beside="fedavg")
    )


@pytest.mark.parametrize("name", ["fedstale", "FedStale (beta=0.7)"])
def test_options_may_be_left_out(tmp_path: Path, name: str) -> None:
    write_run(tmp_path / "a", [0.1, 0.5], algorithm="fedstale(beta=0.3)")
    write_run(tmp_path / "b", [0.1, 0.6], algorithm="fedstale(beta=0.7)")
    baseline = compare([tmp_path], smooth=1, beside=name).baseline
    assert baseline is not None
    assert baseline.group.algorithm == "fedstale(beta=0.7)"
