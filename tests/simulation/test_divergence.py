"""`simulate` warns of what went wrong, once and at the end."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from fedvarp import DivergenceWarning, LocalSGD, SimulationResult, simulate
from fedvarp.data import digits, from_tensors
from fedvarp.models import LogisticRegression
from fedvarp.runs.directory import RunDirectory


def regression(lr: float, rounds: int = 20) -> SimulationResult:
    draws = torch.Generator().manual_seed(0)
    inputs = [10 * torch.randn(20, 5, generator=draws) for _ in range(10)]
    return simulate(
        from_tensors([(x, x.sum(1, keepdim=True)) for x in inputs]),
        nn.Linear(5, 1),
        mse_loss,
        local_sgd=LocalSGD(lr=lr, batch_size=10, epochs=1),
        clients_per_round=2,
        rounds=rounds,
    )


def test_replies_that_are_all_refused_are_warned_of_and_the_run_is_kept(tmp_path: Path) -> None:
    with pytest.warns(DivergenceWarning) as caught:
        simulate(
            digits(),
            LogisticRegression(64, 10),
            local_sgd=LocalSGD(lr=1e38, batch_size=10, epochs=1),
            clients_per_round=2,
            rounds=3,
            recording=str(tmp_path / "run"),
        )
    (warning,) = caught
    assert "Nothing was learned" in str(warning.message)
    assert "6 of 6 replies were refused" in str(warning.message)
    assert "local_sgd.lr" in str(warning.message)
    assert warning.filename == __file__  # where the user called, not where we warn
    assert RunDirectory(tmp_path / "run").rounds_done == 3


def test_a_regression_that_explodes_is_warned_of() -> None:
    with pytest.warns(DivergenceWarning, match="Nothing was learned"):
        regression(lr=1.0)


def test_one_that_learns_is_not() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert regression(lr=1e-3).final("train_loss") < 1.0
