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
