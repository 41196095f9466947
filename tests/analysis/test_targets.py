"""When a run reaches a target."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedvarp.analysis.comparison import compare
from fedvarp.analysis.targets import running_mean
from some_runs import write_run


def test_running_mean_against_a_loop() -> None:
    values = np.array([3.0, 1.0, 4.0, 1.0, 5.0, 9.0])
    for k in range(1, 8):
        expected = [
            np.mean(values[i - k + 1 : i + 1]) if i >= k - 1 else np.nan for i in range(len(values))
        ]
        np.testing.assert_allclose(running_mean(values, k), expected)
    with pytest.raises(ValueError, match="at least 1"):
        running_mean(values, 0)


def test_a_mean_that_is_the_target_but_for_rounding_meets_it(tmp_path: Path) -> None:
    run = write_run(tmp_path / "x", [0.7, 0.7, 0.7, 0.7], train_loss=[0.7, 0.7, 0.7, 0.7])
    assert running_mean(np.full(3, 0.7), 3)[-1] < 0.7
    comparison = compare([run], smooth=3)
    assert comparison.target is not None
    assert comparison.target.value == 0.7
    smoothed = comparison.rows[0].smoothed
    assert smoothed is not None
    assert smoothed.rounds == (20,)


def test_without_a_target_the_highest_that_all_reach(two_algorithms: Path, tmp_path: Path) -> None:
    # The lowest of the best: a1 has 0.5, and a mean of two of 0.45.
    target = compare([two_algorithms], smooth=2).target
    assert target is not None
    assert target.value == 0.45
    stops = {"evaluation": {"target_accuracy": 0.37}}
    run = write_run(tmp_path / "stop" / "x", [0.1, 0.4], settings=stops)
    target = compare([run]).target
    assert target is not None
    assert target.value == 0.37
