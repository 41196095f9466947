"""Means and spreads in one pass."""

from __future__ import annotations

import pytest
import torch

from fedvarp import stream
from fedvarp.clients.running_spread import RunningSpread


def test_spread_of_weighted_vectors_far_from_zero() -> None:
    """Around a mean of 1e8 the difference of two squares would have no digit left."""
    x = 1e8 + torch.randn(30, 3, generator=stream(0, "far"), dtype=torch.float64)
    weights = torch.rand(30, generator=stream(1, "far"), dtype=torch.float64) + 0.1
    spread = RunningSpread(3)
    for row, weight in zip(x, weights.tolist(), strict=True):
        spread.add(row, weight)
    mean = (weights[:, None] * x).sum(0) / weights.sum()
    expected = float((weights * (x - mean).square().sum(1)).sum())
    torch.testing.assert_close(spread.mean, mean, rtol=1e-15, atol=0)
    assert spread.sum_of_squares == pytest.approx(expected, rel=1e-6)
