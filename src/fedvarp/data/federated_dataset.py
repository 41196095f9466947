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
from typing import Annotated, Any, NamedTuple, overload

import torch
from pydantic import Field, SkipValidation
from torch import Tensor

from fedvarp.errors import FedvarpError, InvalidError, InvalidTypeError, UnknownClientError
from fedvarp.settings.bounds import Count
from fedvarp.settings.checked import checked
from fedvarp.tables import tensors

Examples = tuple[Tensor, Tensor]
"""x (n, ...) and y (n, ...), ready for the model and the loss."""
Augmentation = Callable[[Tensor, torch.Generator], Tensor]
"""Changes a batch of training inputs at random, drawing from the generator."""


class DataError(FedvarpError):
    """A file or a client's data cannot be used; the message says what to do about it."""


class Gathered(NamedTuple):
    """The examples of several clients, as rows of tensors that may hold others' as well."""

    x: Tensor
    y: Tensor
    rows: Tensor  # (n,) int64, of one client after the other
    lengths: list[int]  # how many of them are each client's


@checked
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class FederatedDataset:
    """The clients' examples, loaded when asked for, and what is known without loading them.

    Lists and NumPy arrays are taken where tensors are named: fractions as float32, whole numbers as
    int64.

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
        num_classes: For classification, the number of labels; without it there is no accuracy.

    Raises:
        ValueError: The attributes do not fit together, or a client has no examples.
    """

    load: Callable[[int], Examples]
    num_clients: Count
    num_examples: Annotated[Tensor | None, SkipValidation] = None  # (N,) int64
    test: Annotated[Examples | None, SkipValidation] = None
    cluster_of: Annotated[Tensor | None, SkipValidation] = None  # (N,) int64
    client_names: Annotated[Sequence[str], SkipValidation] = ()  # N names
    cluster_names: Annotated[Sequence[str] | None, SkipValidation] = None  # K names
    augment: Augmentation | None = None
    num_classes: Annotated[Count | None, Field(examples=["num_classes=10"])] = None

    def __post_init__(self) -> None:
        names = self.client_names
        as_tensors = {
            "client_names": _NumberedNames(self.num_clients) if len(names) == 0 else names,
            "num_examples": _as_counts(self.num_examples, self.num_clients),
            "cluster_of": None
            if self.cluster_of is None
            else tensors.cluster_numbers("cluster_of", self.cluster_of, self.num_clients),
            "test": None if self.test is None else _as_examples(self.test, "The test set"),
        }
        for name, value in as_tensors.items():
            object.__setattr__(self, name, value)
        if len(self.client_names) != self.num_clients:
            raise InvalidError(
                f"{len(self.client_names)} client_names for {self.num_clients} clients. "
                "Give one name a client, or leave them out to have them numbered."
            )
        if self.cluster_names is not None and len(self.cluster_names) != self.num_clusters:
            raise InvalidError(
                f"{len(self.cluster_names)} cluster_names for "
                f"{self.num_clusters or 'no'} clusters. Give one for each number in cluster_of."
            )

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
            TypeError: It is no whole number.
            DataError: The client's data is empty, or x and y do not belong together.
        """
        try:
            i = operator.index(i)
        except TypeError:
            raise InvalidTypeError(
                f"A client is a whole number, not {i!r}: {self._known}"
            ) from None
        if not 0 <= i < self.num_clients:
            raise UnknownClientError(f"There is no client {i}: {self._known}")
        return _as_examples(self.load(i), f"Client {i} ({self.client_names[i]})")

    def gathered(self, clients: Sequence[int]) -> Gathered | None:
        """Finds several clients at once, where their examples are rows of one tensor.

        Args:
            clients: Their numbers.

        Returns:
            Where their examples are; None where clients are loaded one by one: where `load` has no
            method `gathered` of its own, or a subclass has a `client` of its own.

        Raises:
            IndexError: There is no such client.
            DataError: x and y do not belong together.
        """
        if not self._gathers:
            return None
        for i in (min(clients), max(clients)):
            if not 0 <= i < self.num_clients:
                raise UnknownClientError(f"There is no client {i}: {self._known}")
        x, y, rows, lengths = self.load.gathered(clients)  # type: ignore[attr-defined]
        return Gathered(*_as_examples((x, y), "A cohort"), rows, lengths)

    @property
    def rows_are_known(self) -> bool:
        """Whether clients are rows of tensors as they lie: `gathered` then looks at none."""
        inherited = type(self).gathered is FederatedDataset.gathered  # another may look at them
        return inherited and self._gathers and getattr(self.load, "rows_are_known", False)

    @property
    def _gathers(self) -> bool:
        """Whether `load` finds several clients, and nobody else's code stands between."""
        inherited = type(self).client is FederatedDataset.client  # another may change the examples
        return inherited and hasattr(type(self.load), "gathered")  # and so may one that wraps it

    @property
    def _known(self) -> str:
        return (
            f"this data set has {self.num_clients} clients, numbered 0 to {self.num_clients - 1}."
        )

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


def _as_counts(given: Any, num_clients: int) -> Tensor | None:
    if given is None:
        return None
    num_examples = tensors.whole_numbers("num_examples", given, num_clients)
    empty = (num_examples < 1).nonzero().flatten().tolist()
    if empty:
        named = ", ".join(map(str, empty[:10])) + (", ..." if len(empty) > 10 else "")
        raise InvalidError(
            f"{len(empty)} of {len(num_examples)} clients have no examples: {named}. A client "
            "without data has no update to send. Leave these clients out and number the rest from "
            "0, or split the data over fewer clients."
        )
    return num_examples


def _as_examples(given: Any, whose: str) -> Examples:
    a_pair = f"{whose} must be a pair of tensors (x, y) with one row an example"
    where = "Check the function or data set it is loaded from."
    if not (isinstance(given, tuple | list) and len(given) == 2):
        raise DataError(f"{a_pair}; got {type(given).__name__}. {where}")
    try:
        x, y = map(tensors.examples, given)
    except ValueError as error:
        raise DataError(f"{a_pair}. {error} {where}") from error
    if x.ndim == 0 or y.ndim == 0:
        raise DataError(f"{a_pair}; got shapes {tuple(x.shape)} and {tuple(y.shape)}. {where}")
    if len(x) != len(y):
        raise DataError(
            f"{whose} has {len(x)} inputs x but {len(y)} targets y; row j of both must be one "
            f"example. {where}"
        )
    if len(x) == 0:
        raise DataError(
            f"{whose} has no examples. Nothing can be computed on it: leave it out, or split the "
            "data over fewer clients."
        )
    return x, y
