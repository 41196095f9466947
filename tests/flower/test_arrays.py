"""Named arrays as one vector, and back."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord

from fedvarp.flower.arrays import Layout, UnusableArraysError


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_go_there_and_back_whatever_their_type_and_order(dtype: str, order: str) -> None:
    numbers = np.arange(6, dtype=dtype).reshape(2, 3)
    stored = Array(np.asfortranarray(numbers) if order == "F" else numbers)
    arrays = ArrayRecord({"a": stored, "b": Array(np.array(0.5, dtype=dtype))})
    layout = Layout.of(arrays)
    vector = layout.vector(arrays)
    assert vector.tolist() == [0, 1, 2, 3, 4, 5, 0.5]
    back = layout.record(vector, {})
    assert back["a"].dtype == dtype
    assert np.array_equal(back["a"].numpy(), numbers)
    assert back["b"].shape == ()
    out = torch.empty(7)
    largest, norm = layout.difference(torch.ones(7), arrays, out)
    assert out.tolist() == [1, 0, -1, -2, -3, -4, 0.5]
    assert largest == 4
    assert norm == pytest.approx(math.sqrt(1 + 1 + 4 + 9 + 16 + 0.25))


def test_a_model_without_numbers_to_train_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing to train"):
        Layout.of(ArrayRecord({"steps": Array(np.array(1))}))
    layout = Layout.of(ArrayRecord({"a": Array(np.zeros(2, dtype=np.float32))}))
    with pytest.raises(UnusableArraysError, match="not known"):
        layout.check({"b": Array(np.zeros(2, dtype=np.float32))})


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e15])
def test_a_difference_of_any_size_is_measured_while_it_is_written(size: float) -> None:
    """Squares of float32 vanish below 1e-45 and overflow above 3e38; the norm does neither."""
    sent = {"a": torch.linspace(-1, 2, 300_001) * size, "b": torch.full((5,), size)}
    arrays = ArrayRecord({name: Array(tensor.numpy()) for name, tensor in sent.items()})
    layout, w = Layout.of(arrays), torch.zeros(300_006)
    largest, norm = layout.difference(w, arrays, torch.full_like(w, torch.nan))
    assert largest == float(sent["a"].max())
    assert norm == pytest.approx(float(torch.cat(list(sent.values())).double().norm()), rel=1e-6)


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_what_is_not_finite_shows_in_what_is_measured(value: float) -> None:
    numbers = np.ones(300_001, dtype=np.float32)
    numbers[200_000] = value
    arrays = ArrayRecord({"a": Array(numbers)})
    w = torch.zeros(len(numbers))
    assert not any(map(math.isfinite, Layout.of(arrays).difference(w, arrays, w.clone())))
