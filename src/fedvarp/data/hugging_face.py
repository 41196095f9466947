"""Hugging Face data sets as the clients of a `FederatedDataset`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Unpack

import torch
from torch import Tensor

from fedvarp.data.federated_dataset import DataError, Examples, FederatedDataset
from fedvarp.data.own_data import About
from fedvarp.errors import InvalidError

if TYPE_CHECKING:
    import datasets


def from_hugging_face(
    partitions: Sequence[datasets.Dataset],
    *,
    features: str | Sequence[str],
    label: str,
    prepare: Callable[[Tensor], Tensor] | None = None,
    test: datasets.Dataset | None = None,
    **about: Unpack[About],
) -> FederatedDataset:
    """Makes clients of Hugging Face ``datasets.Dataset`` objects, as their partitioners give them.

    Args:
        partitions: One data set a client.
        features: The column of inputs; or several columns of numbers, which become one row.
        label: The column of targets.
        prepare: Turns the inputs into what the model takes: images, for instance, come as uint8.
        test: A data set with the same columns.
        **about: What else can be said of the clients; see `FederatedDataset`.

    Returns:
        The clients in the order given.

    Raises:
        ValueError: A data set lacks a column or a length.
        DataError: A column of the test set does not form one tensor.
    """
    load_one = _Columns(features, label, prepare)
    for i, partition in enumerate(partitions):
        load_one.check(partition, f"Client {i}")
    if test is not None:
        load_one.check(test, "The test set")
    return FederatedDataset(
        load=_Partitions(partitions, load_one),
        num_clients=len(partitions),
        num_examples=torch.tensor([len(own) for own in partitions], dtype=torch.int64),
        test=None if test is None else load_one(test),
        **about,
    )


@dataclass(frozen=True)
class _Columns:
    """Reads the same columns of any Hugging Face data set."""

    features: str | Sequence[str]
    label: str
    prepare: Callable[[Tensor], Tensor] | None

    @property
    def feature_columns(self) -> list[str]:
        return [self.features] if isinstance(self.features, str) else list(self.features)

    def check(self, dataset: datasets.Dataset, whose: str) -> None:
        columns = getattr(dataset, "column_names", None)
        if not isinstance(columns, list) or not hasattr(dataset, "__len__"):
            raise InvalidError(
                f"{whose} is a {type(dataset).__name__}, not a datasets.Dataset with a length. A "
                "DatasetDict needs one split picked from it; an IterableDataset must be read into "
                "a Dataset first."
            )
        missing = [name for name in (*self.feature_columns, self.label) if name not in columns]
        if missing:
            raise InvalidError(
                f"{whose} has no column {missing[0]!r}; its columns are {columns}. Pass the right "
                "names as features= and label=."
            )

    def __call__(self, dataset: datasets.Dataset) -> Examples:
        wanted = [*self.feature_columns, self.label]
        rows = dataset.with_format("torch", columns=wanted)[:]
        for name in wanted:
            if not isinstance(rows[name], Tensor):
                raise DataError(
                    f"Column {name!r} does not form one tensor: its rows differ in shape or are "
                    "not numbers. Map the data set to rows of one shape first."
                )
        if isinstance(self.features, str):
            x = rows[self.features]
        else:
            x = torch.stack([rows[name] for name in self.features], dim=1)
        return x if self.prepare is None else self.prepare(x), rows[self.label]


@dataclass(frozen=True)
class _Partitions:
    partitions: Sequence[datasets.Dataset]
    load_one: _Columns

    def __call__(self, i: int) -> Examples:
        return self.load_one(self.partitions[i])
