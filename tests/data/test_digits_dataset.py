"""scikit-learn's digits over clients, and how their file is found."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from fedvarp.data import digits
from fedvarp.data.digits_dataset import _images


def test_a_hundred_clients_with_two_shards() -> None:
    data = digits()
    assert data.num_clients == 100
    assert data.num_examples is not None
    assert data.num_examples.tolist() == [16] * 100
    assert data.num_classes == 10
    assert data.cluster_of is not None
    assert data.cluster_names is not None
    for i in range(100):
        x, y = data.client(i)
        assert x.shape == (16, 64)
        assert x.dtype == torch.float32
        held = sorted(set(y.tolist()))
        assert y.bincount().max() in (8, 16)
        assert data.cluster_names[int(data.cluster_of[i])] == "+".join(map(str, held))


def test_train_and_test_are_the_whole_set_once() -> None:
    data = digits(seed=5)
    assert data.test is not None
    parts = [data.client(i) for i in range(100)] + [data.test]
    x, y = torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])
    pixels, targets = load_digits(return_X_y=True)
    rows = sorted([*(row * 16).int().tolist(), int(t)] for row, t in zip(x, y, strict=True))
    assert rows == sorted([*map(int, row), int(t)] for row, t in zip(pixels, targets, strict=True))
    assert len(data.test[1]) == 197
    assert x.min() == 0
    assert x.max() == 1


def test_the_seed_decides_clients_and_test_set() -> None:
    first, again, other = digits(seed=1), digits(seed=1), digits(seed=2)
    assert first.client(7)[0].equal(again.client(7)[0])
    assert not first.client(7)[0].equal(other.client(7)[0])
    assert first.test is not None
    assert other.test is not None
    assert not first.test[0].equal(other.test[0])


def test_other_partitions() -> None:
    data = digits(partition="dirichlet", num_clients=30, alpha=0.2)
    assert data.num_examples is not None
    assert set(data.num_examples.tolist()) == {53, 54}
    with pytest.raises(ValueError, match="1600 examples cannot be cut into 99 clients x 2"):
        digits(num_clients=99)


def test_the_images_are_those_of_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = load_digits(return_X_y=True)
    for ours, theirs in zip(_images(), expected, strict=True):
        assert ours.dtype == theirs.dtype
        assert np.array_equal(ours, theirs)
    monkeypatch.setattr(Path, "exists", lambda self: False)  # a release that keeps them elsewhere
    for ours, theirs in zip(_images(), expected, strict=True):
        assert np.array_equal(ours, theirs)


def test_without_scikit_learn_the_command_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r'pip install "fedvarp\[digits\]"'):
        digits()
