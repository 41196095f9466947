"""A federated data set: a function from a client's id to its examples, and what is known of them.

>>> import torch
>>> def load(client: int) -> tuple[torch.Tensor, torch.Tensor]:
...     return torch.full((2, 3), float(client)), torch.tensor([0, 1])
>>> data = FederatedDataset(load=load, num_clients=4, cluster_of=torch.tensor([0, 0, 1, 1]))
>>> data
FederatedDataset(4 clients, 2 clusters)
>>> x, y = data.client(2)
>>> x.shape, y.tolist(), data.client_names[2]
(torch.Size([2, 3]), [0, 1], 'client 2')
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import overload

import torch
from torch import Tensor

from fedvarp.errors import FedvarpError

Examples = tuple[Tensor, Tensor]
"""x (n, ...) and y (n, ...), ready for the model and the loss."""
Augmentation = Callable[[Tensor, torch.Generator], Tensor]
"""Changes a batch of training inputs at random, drawing from the generator."""


class DataError(FedvarpError):
    """A file or a client's data cannot be used; the message says what to do about it."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class FederatedDataset:
    """The clients' examples, loaded when asked for, and what is known without loading them.

    Attributes:
        load: Returns the examples of a client. Any function will do; only to train on Ray, whose
            workers are sent it, it and what it refers to must be picklable.
        num_clients: N.
        num_examples: How many training examples each client has; None where that is only known
            after loading.
        test: Examples held out from all clients.
        cluster_of: The natural cluster of each client, numbered 0 to K-1, every number used.
        client_names: One name a client; numbered if left out.
        cluster_names: One name a cluster.
        augment: Random changes to a batch of training inputs, drawn from the given generator.
        num_classes: For classification, the number of labels.

    Raises:
        ValueError: The attributes do not fit together, or a client has no examples.
    """

    load: Callable[[int], Examples]
    num_clients: int
    num_examples: Tensor | None = None  # (N,) int64
    test: Examples | None = None
    cluster_of: Tensor | None = None  # (N,) int64
    client_names: Sequence[str] = ()  # N names
    cluster_names: Sequence[str] | None = None  # K names
    augment: Augmentation | None = None
    num_classes: int | None = None

    def __post_init__(self) -> None:
        if self.num_clients < 1:
            raise ValueError(f"A federated data set needs clients; num_clients={self.num_clients}.")
        if len(self.client_names) == 0:
            object.__setattr__(self, "client_names", _NumberedNames(self.num_clients))
        if len(self.client_names) != self.num_clients:
            raise ValueError(
                f"{len(self.client_names)} client_names for {self.num_clients} clients. "
                "Give one name a client, or leave them out to have them numbered."
            )
        if self.num_examples is not None:
            _check_num_examples(self.num_examples, self.num_clients)
        if self.cluster_of is not None:
            _check_clusters(self.cluster_of, self.num_clients)
        if self.cluster_names is not None and len(self.cluster_names) != self.num_clusters:
            raise ValueError(
                f"{len(self.cluster_names)} cluster_names for "
                f"{self.num_clusters or 'no'} clusters. Give one for each number in cluster_of."
            )
        if self.test is not None:
            _check_examples(self.test, "The test set")

    @property
    def num_clusters(self) -> int | None:
        """K, or None without natural clusters."""
        return None if self.cluster_of is None else int(self.cluster_of.max()) + 1

    def client(self, i: int) -> Examples:
        """Loads the training examples of a client.

        Args:
            i: The client's number, from 0.

        Returns:
            x (n, ...) and y (n, ...), with n at least 1.

        Raises:
            IndexError: There is no such client.
            DataError: The client's data is empty, or x and y do not belong together.
        """
        i = operator.index(i)
        if not 0 <= i < self.num_clients:
            raise IndexError(
                f"There is no client {i}: this data set has {self.num_clients} clients, "
                f"numbered 0 to {self.num_clients - 1}."
            )
        examples = self.load(i)
        _check_examples(examples, f"Client {i} ({self.client_names[i]})")
        return examples

    def largest_first(self, clients: Sequence[int]) -> list[int]:
        """Sorts clients by their number of examples, so that no long one is trained last.

        Args:
            clients: Some clients.

        Returns:
            The same clients, the largest first and equal ones in the order given; all in the order
            given where the numbers are not known.
        """
        sizes = self.num_examples
        return sorted(clients, key=lambda i: 0 if sizes is None else -int(sizes[i]))

    def fingerprint(self) -> str:
        """Sums the data up, so that a resumed run notices if it is no longer the same.

        Returns:
            A text that changes with the sizes, the clusters, the test set, and the examples of the
            first and the last client, which are loaded.
        """
        digest = hashlib.sha256(str(self.num_clients).encode())
        parts = [self.num_examples, self.cluster_of, *(self.test or ())]
        for part in [*parts, *self.client(0), *self.client(self.num_clients - 1)]:
            if part is not None:
                digest.update(f"{part.dtype}{tuple(part.shape)}".encode())
                digest.update(part.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()[:16]

    def describe(self) -> Mapping[str, object]:
        """What a run that was made with this data set has on record of it."""
        told = {"summary": repr(self), "fingerprint": self.fingerprint()}
        return told if self.augment is None else {**told, "augment": self.augment}

    def __repr__(self) -> str:
        parts = [f"{self.num_clients:,} clients"]
        if self.num_examples is not None:
            parts.append(f"{int(self.num_examples.sum()):,} examples")
        if self.num_classes is not None:
            parts.append(f"{self.num_classes:,} classes")
        if self.num_clusters is not None:
            parts.append(f"{self.num_clusters:,} clusters")
        if self.test is not None:
            parts.append(f"{len(self.test[0]):,} test examples")
        return f"{type(self).__name__}({', '.join(parts)})"


@dataclass(frozen=True)
class _NumberedNames(Sequence[str]):
    """The names "client 0", "client 1", ... without holding a million strings."""

    num_clients: int

    def __len__(self) -> int:
        return self.num_clients

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        numbers = range(self.num_clients)[index]
        return f"client {numbers}" if isinstance(numbers, int) else [f"client {i}" for i in numbers]


def _check_num_examples(num_examples: Tensor, num_clients: int) -> None:
    if num_examples.shape != (num_clients,) or num_examples.dtype != torch.int64:
        raise ValueError(
            f"num_examples must be an int64 tensor of shape ({num_clients},), one count a client; "
            f"got {num_examples.dtype} of shape {tuple(num_examples.shape)}."
        )
    empty = (num_examples < 1).nonzero().flatten().tolist()
    if empty:
        named = ", ".join(map(str, empty[:10])) + (", ..." if len(empty) > 10 else "")
        raise ValueError(
            f"{len(empty)} of {len(num_examples)} clients have no examples: {named}. A client "
            "without data has no update to send. Leave these clients out and number the rest from "
            "0, or split the data over fewer clients."
        )


def _check_clusters(cluster_of: Tensor, num_clients: int) -> None:
    if cluster_of.shape != (num_clients,) or cluster_of.dtype != torch.int64:
        raise ValueError(
            f"cluster_of must be an int64 tensor of shape ({num_clients},), one cluster a client; "
            f"got {cluster_of.dtype} of shape {tuple(cluster_of.shape)}."
        )
    used = sorted(set(cluster_of.tolist()))
    if used != list(range(len(used))):
        raise ValueError(
            f"cluster_of uses {len(used)} numbers from {used[0]} to {used[-1]}; clusters "
            "are numbered 0 to K-1 with every number used. "
            "torch.unique(cluster_of, return_inverse=True)[1] renumbers them so."
        )


def _check_examples(examples: Examples, whose: str) -> None:
    if not (
        isinstance(examples, tuple)
        and len(examples) == 2
        and all(isinstance(part, Tensor) and part.ndim > 0 for part in examples)
    ):
        raise DataError(
            f"{whose} must be a pair of tensors (x, y) with one row an example; "
            f"got {type(examples).__name__}. Check the function or data set it is loaded from."
        )
    x, y = examples
    if len(x) != len(y):
        raise DataError(
            f"{whose} has {len(x)} inputs x but {len(y)} targets y; row j of both must be one "
            "example. Check the function or data set it is loaded from."
        )
    if len(x) == 0:
        raise DataError(
            f"{whose} has no examples. Nothing can be computed on it: leave it out, or split the "
            "data over fewer clients."
        )
