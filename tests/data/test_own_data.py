"""Tensors, torch data sets and functions become clients."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from fedvarp.data import (
    DataError,
    from_function,
    from_indices,
    from_partition,
    from_tensors,
)
from fedvarp.data.partition import iid


class Squares(Dataset[tuple[np.ndarray, int]]):
    """Items that are made when asked for, and counted."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.fetched: list[int] = []

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        self.fetched.append(index)
        return np.array([index, index**2], dtype=np.float32), index % 3


def test_tensors() -> None:
    clients = [(torch.zeros(3, 2), torch.zeros(3)), (torch.ones(5, 2), torch.ones(5))]
    data = from_tensors(
        clients, test=clients[0], cluster_of=torch.tensor([0, 0]), cluster_names=["all"]
    )
    assert data.num_examples is not None
    assert data.num_examples.tolist() == [3, 5]
    assert data.client(1)[0].equal(torch.ones(5, 2))
    assert data.test is not None
    assert data.test[0] is clients[0][0]  # a tensor is not copied
    assert data.cluster_names == ["all"]


def test_tensors_are_checked_at_once() -> None:
    good = (torch.zeros(3, 2), torch.zeros(3))
    with pytest.raises(DataError, match=r"Client 1 .* 3 inputs x but 2 targets y"):
        from_tensors([good, (torch.zeros(3, 2), torch.zeros(2))])
    with pytest.raises(DataError, match=r"Client 1 .* has no examples"):
        from_tensors([good, (torch.zeros(0, 2), torch.zeros(0))])


def test_partition_gathers_and_prepares_one_client() -> None:
    x = torch.arange(12, dtype=torch.uint8).view(6, 2)
    y = torch.arange(6)
    data = from_partition(
        x, y, [torch.tensor([5, 0]), torch.tensor([1])], prepare=lambda rows: rows.float() / 2
    )
    assert data.client(0)[0].tolist() == [[5.0, 5.5], [0.0, 0.5]]
    assert data.client(0)[1].tolist() == [5, 0]
    assert data.num_examples is not None
    assert data.num_examples.tolist() == [2, 1]


@pytest.mark.parametrize("prepare", [None, lambda x: x - x.mean()])
def test_several_clients_of_a_partition_at_once(
    prepare: Callable[[Tensor], Tensor] | None,
) -> None:
    rows = [torch.tensor(own) for own in ([5, 0, 2], [4], [1, 3])]
    data = from_partition(torch.arange(6.0), torch.arange(6), rows, prepare=prepare)
    x, y, at, lengths = data.gathered([2, 0]) or pytest.fail("they are rows of one tensor")
    for own, here in zip((2, 0), torch.split(at, lengths), strict=True):
        expected = data.client(own)
        assert torch.equal(x[here], expected[0])
        assert torch.equal(y[here], expected[1])
    with pytest.raises(IndexError, match="no client 3: this data set has 3 clients"):
        data.gathered([0, 3])
    assert from_tensors([(x, y)]).gathered([0]) is None


def test_what_is_written_to_the_numbers_of_examples_moves_no_client() -> None:
    rows = [torch.tensor([0, 1, 2]), torch.tensor([3, 4])]
    for data in (
        from_partition(torch.arange(5.0), torch.arange(5), rows),
        from_indices(TensorDataset(torch.arange(5.0), torch.arange(5)), rows),
    ):
        assert data.num_examples is not None
        data.num_examples.fill_(1)
        assert data.client(0)[1].tolist() == [0, 1, 2]


def test_partition_of_another_data_set_is_refused() -> None:
    x, y = torch.zeros(6, 2), torch.zeros(6)
    with pytest.raises(ValueError, match=r"Client 1 is given example 6, .* numbered 0 to 5"):
        from_partition(x, y, [torch.tensor([0]), torch.tensor([2, 6])])
    with pytest.raises(ValueError, match="6 inputs x but 5 targets y"):
        from_partition(x, y[:5], [torch.tensor([0])])
    with pytest.raises(ValueError, match="clients have no examples: 1"):
        from_partition(x, y, [torch.tensor([0]), torch.tensor([], dtype=torch.int64)])


def test_indices_fetch_only_the_client_asked_for() -> None:
    squares = Squares(10)
    data = from_indices(squares, [[1, 2], torch.tensor([9, 4, 0])], num_classes=3)
    assert squares.fetched == []
    x, y = data.client(1)
    assert squares.fetched == [9, 4, 0]
    assert x.tolist() == [[9.0, 81.0], [4.0, 16.0], [0.0, 0.0]]
    assert x.dtype == torch.float32
    assert y.tolist() == [0, 1, 0]
    assert y.dtype == torch.int64
    assert data.num_examples is not None
    assert data.num_examples.tolist() == [2, 3]


def test_indices_are_checked_at_once() -> None:
    with pytest.raises(ValueError, match=r"Client 0 is given example -1, "):
        from_indices(Squares(10), [[3, -1], [0]])
    with pytest.raises(ValueError, match=r"clients have no examples: 1.*Leave these clients out"):
        from_indices(Squares(10), [[0], []])


def test_items_that_cannot_be_stacked_are_explained() -> None:
    class Ragged(Squares):
        def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
            return np.zeros(index + 1), 0

    with pytest.raises(DataError, match=r"client 0 cannot be stacked.*transform"):
        from_indices(Ragged(5), [[0, 1]]).client(0)
    with pytest.raises(DataError, match=r"\(input, target\) pairs; for client 0 it gave tuple"):
        from_indices(TensorDataset(torch.zeros(3)), [[0, 1]]).client(0)


def test_function_is_called_each_time() -> None:
    asked = []

    def load(client: int) -> tuple[Tensor, Tensor]:
        asked.append(client)
        return torch.full((client + 1, 2), 1.0), torch.zeros(client + 1)

    data = from_function(load, 10**6, client_names=())
    assert data.num_examples is None
    assert len(data.client(41)[0]) == 42
    data.client(41)
    assert asked == [41, 41]


def test_they_can_be_sent_to_another_process() -> None:
    x, y = torch.arange(6.0).view(6, 1), torch.arange(6)
    for data in (
        from_tensors([(x, y), (x, y)]),
        from_partition(x, y, [torch.tensor([5, 0])], prepare=torch.neg),
        from_indices(TensorDataset(x, y), [[5, 0]]),
    ):
        copy = pickle.loads(pickle.dumps(data))  # noqa: S301 - our own bytes
        assert copy.client(0)[0].equal(data.client(0)[0])


def test_what_is_sent_does_not_grow_with_the_square_of_the_clients() -> None:
    # iid() returns views of one permutation, and torch pickles a view with all that it views.
    x, y = torch.zeros(10_000, 1), torch.zeros(10_000)
    data = from_partition(x, y, iid(torch.zeros(10_000, dtype=torch.int64), num_clients=1000))
    assert len(pickle.dumps(data)) < 2 * (4 + 4 + 8) * 10_000
