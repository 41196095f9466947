"""Sketches: squared lengths on average, sums exactly, short vectors as they are."""

from __future__ import annotations

import math

import pytest
import torch

from fedvarp import stream
from fedvarp.clusters.sketch import Sketch


def test_squared_lengths_are_kept_on_average() -> None:
    x = torch.randn(500, generator=stream(0, "x"))
    lengths = torch.stack([Sketch(500, 64, seed)(x).square().sum() for seed in range(200)])
    true = float(x.double().square().sum())
    # Var ‖sketch‖² ≤ 2 ‖x‖⁴ / 64
    assert abs(float(lengths.mean()) - true) < 4 * true * math.sqrt(2 / 64 / 200)
    assert float(lengths.std()) < 1.2 * true * math.sqrt(2 / 64)


def test_sums_are_kept_exactly_and_the_seed_matters() -> None:
    x, y = torch.randn(2, 500, generator=stream(0, "x"))
    sketch = Sketch(500, 64, seed=1)
    torch.testing.assert_close(sketch(x) + sketch(y), sketch(x.double() + y.double()))
    assert not torch.equal(Sketch(500, 64, seed=2)(x), sketch(x))


def test_vectors_no_longer_than_the_sketch_are_left_as_they_are() -> None:
    x = torch.randn(500, generator=stream(0, "x"))
    assert torch.equal(Sketch(500, 500, seed=1)(x), x.double())


def test_a_sketch_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one number, not 0"):
        Sketch(500, 0, seed=1)
