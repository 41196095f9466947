"""Anybody's own data as a `FederatedDataset`: tensors, torch data sets, functions.

>>> import torch
>>> two_clients = [(torch.zeros(3, 2), torch.zeros(3)), (torch.ones(5, 2), torch.ones(5))]
>>> data = from_tensors(two_clients, client_names=["Ada", "Grace"])
>>> data, data.num_examples.tolist()
(FederatedDataset(2 clients, 8 examples), [3, 5])
>>> whole = torch.utils.data.TensorDataset(torch.arange(10.0), torch.arange(10) % 2)
>>> from_indices(whole, [[0, 2, 4], [9]]).client(0)
(tensor([0., 2., 4.]), tensor([0, 0, 0]))
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict, Unpack, cast

import numpy as np
import torch
from pydantic import BeforeValidator, InstanceOf, SkipValidation
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from fedvarp.data.federated_dataset import (
    Augmentation,
    DataError,
    Examples,
    FederatedDataset,
    Gathered,
)
from fedvarp.errors import InvalidError
from fedvarp.settings.checked import checked
from fedvarp.tables import tensors

Rows = Annotated[Tensor, BeforeValidator(tensors.examples)]
"""One row for each example; lists and NumPy arrays are taken too."""


class About(TypedDict, total=False):
    """What else can be said of the clients; see the attributes of `FederatedDataset`."""

    cluster_of: Tensor | None
    client_names: Sequence[str]
    cluster_names: Sequence[str] | None
    augment: Augmentation | None
    num_classes: int | None


@checked
def from_tensors(
    clients: InstanceOf[Sequence[Examples]],
    *,
    test: Annotated[Examples | None, SkipValidation] = None,
    **about: Unpack[About],
) -> FederatedDataset:
    """Makes clients of pairs of tensors that are held in memory.

    Args:
        clients: One pair (x, y) for each client.
        test: Held-out examples.
        **about: What else can be said of the clients; see `FederatedDataset`.

    Returns:
        The clients in the order given.

    Raises:
        ValueError: What is said of the clients does not fit together.
        DataError: A pair is none of two tensors with one row an example, or has no examples.
    """
    # They are here already, so a bad one is refused now and not in round 700, and nobody converts
    # an array twice.
    pairs = FederatedDataset(load=tuple(clients).__getitem__, num_clients=len(clients), **about)
    whole = tuple(pairs.client(i) for i in range(pairs.num_clients))
    return dataclasses.replace(
        pairs,
        load=whole.__getitem__,
        num_examples=torch.tensor([len(x) for x, _ in whole], dtype=torch.int64),
        test=test,
    )


@checked
def from_partition(
    x: Rows,
    y: Rows,
    partition: InstanceOf[Sequence[Tensor]],
    *,
    prepare: Callable[[Tensor], Tensor] | None = None,
    test: Annotated[Examples | None, SkipValidation] = None,
    **about: Unpack[About],
) -> FederatedDataset:
    """Makes clients of the rows of two big tensors.

    Args:
        x: All inputs, in whatever compact form they are stored.
        y: All targets.
        partition: The rows of each client; `fedvarp.data.partition` makes such partitions.
        prepare: Turns the gathered rows of x into what the model takes (say, uint8 into scaled
            floats), so that only one client at a time is held in that larger form.
        test: Held-out examples, already prepared.
        **about: What else can be said of the clients; see `FederatedDataset`.

    Returns:
        The clients in the order given.

    Raises:
        ValueError: x and y do not pair up, or a client is given rows that do not exist, or none.
    """
    if len(x) != len(y):
        raise InvalidError(f"{len(x)} inputs x but {len(y)} targets y: they must pair up.")
    rows = _IndexLists.checked(partition, len(y))
    return FederatedDataset(
        load=_Rows(x, y, rows, prepare),
        num_clients=len(partition),
        num_examples=rows.lengths.clone(),
        test=test,
        **about,
    )


@checked
def from_indices(
    dataset: Annotated[Dataset[Any], SkipValidation],
    indices: InstanceOf[Sequence[Sequence[int] | Tensor]],
    *,
    test: Annotated[Examples | None, SkipValidation] = None,
    **about: Unpack[About],
) -> FederatedDataset:
    """Makes clients of the items of a map-style torch data set of (input, target) pairs.

    The items of a client are fetched and stacked each time it is asked for, so transforms of the
    data set apply and nothing stays in memory.

    Args:
        dataset: The data set.
        indices: The items of each client.
        test: Held-out examples.
        **about: What else can be said of the clients; see `FederatedDataset`.

    Returns:
        The clients in the order given.

    Raises:
        ValueError: A client is given items that do not exist, or none.
    """
    items = _IndexLists.checked(indices, len(cast(Sized, dataset)))
    return FederatedDataset(
        load=_Items(dataset, items),
        num_clients=len(indices),
        num_examples=items.lengths.clone(),
        test=test,
        **about,
    )


def from_function(
    load: Callable[[int], Examples],
    num_clients: int,
    *,
    num_examples: Tensor | None = None,
    test: Examples | None = None,
    **about: Unpack[About],
) -> FederatedDataset:
    """Makes clients that need not fit in memory: each is loaded when it is asked for.

    Args:
        load: Reads or makes the examples of a client, given its number.
        num_clients: N.
        num_examples: (N,) int64, how many examples each client has, if that is known.
        test: Held-out examples.
        **about: What else can be said of the clients; see `FederatedDataset`.

    Returns:
        Clients 0 to N-1.

    Raises:
        ValueError: What is said of the clients does not fit together.
    """
    return FederatedDataset(
        load=load, num_clients=num_clients, num_examples=num_examples, test=test, **about
    )


@dataclass(frozen=True, eq=False)
class _IndexLists:
    """The indices of all clients end to end.

    A list of tensors would not do: parts of one tensor are each pickled with the whole of it.
    """

    flat: Tensor  # (examples,) int64
    lengths: Tensor  # (N,) int64
    starts: Tensor  # (N,) int64

    @classmethod
    def checked(cls, lists: Sequence[Sequence[int] | Tensor], size: int) -> _IndexLists:
        own = [_indices(indices, client) for client, indices in enumerate(lists)]
        lengths = torch.tensor([len(indices) for indices in own], dtype=torch.int64)
        flat = torch.cat([*own, torch.empty(0, dtype=torch.int64)])
        outside = ((flat < 0) | (flat >= size)).nonzero().flatten()
        if len(outside):
            client = int(torch.searchsorted(lengths.cumsum(0), outside[0], right=True))
            raise InvalidError(
                f"Client {client} is given example {int(flat[outside[0]])}, but the data set has "
                f"{size}, numbered 0 to {size - 1}. Was the partition made for another one?"
            )
        return cls(flat, lengths, lengths.cumsum(0) - lengths)

    def __getitem__(self, i: int) -> Tensor:
        start = int(self.starts[i])
        return self.flat[start : start + int(self.lengths[i])]

    def gathered(self, clients: Sequence[int]) -> tuple[Tensor, list[int]]:
        """The indices of several clients, end to end, and how many each has."""
        # NumPy reads the same memory: on a handful of numbers its operations take a fifth of the
        # time of torch's.
        flat = self.flat.numpy()
        starts, lengths = (of_all.numpy()[list(clients)] for of_all in (self.starts, self.lengths))
        ends = lengths.cumsum()
        within = np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)
        return torch.from_numpy(flat[np.repeat(starts, lengths) + within]), lengths.tolist()


def _indices(given: Sequence[int] | Tensor, client: int) -> Tensor:
    if len(given) == 0:  # refused later, together with all other clients that have none
        return torch.empty(0, dtype=torch.int64)
    return tensors.whole_numbers(f"What client {client} is given", given, of_what="example")


@dataclass(frozen=True, eq=False)
class _Rows:
    x: Tensor
    y: Tensor
    partition: _IndexLists
    prepare: Callable[[Tensor], Tensor] | None

    def __call__(self, i: int) -> Examples:
        rows = self.partition[i]
        x = self.x[rows]
        return x if self.prepare is None else self.prepare(x), self.y[rows]

    @property
    def rows_are_known(self) -> bool:
        return self.prepare is None

    def gathered(self, clients: Sequence[int]) -> Gathered:
        rows, lengths = self.partition.gathered(clients)
        if self.prepare is None:
            return Gathered(self.x, self.y, rows, lengths)
        # It may go by the client, say subtract its own mean.
        x = [self.prepare(own) for own in torch.split(self.x.index_select(0, rows), lengths)]
        return Gathered(
            torch.cat(x), self.y.index_select(0, rows), torch.arange(len(rows)), lengths
        )


@dataclass(frozen=True, eq=False)
class _Items:
    dataset: Dataset[Any]
    indices: _IndexLists

    def __call__(self, i: int) -> Examples:
        items = [self.dataset[j] for j in self.indices[i].tolist()]
        if not all(isinstance(item, tuple | list) and len(item) == 2 for item in items):
            raise DataError(
                f"The data set must give (input, target) pairs; for client {i} it gave "
                f"{type(items[0]).__name__}. Wrap it in one whose __getitem__ returns such pairs."
            )
        try:
            x, y = default_collate(items)
        except (RuntimeError, TypeError) as error:
            raise DataError(
                f"The examples of client {i} cannot be stacked into one tensor: {error} Give the "
                "data set a transform that makes every input a tensor of one shape."
            ) from error
        return x, y
