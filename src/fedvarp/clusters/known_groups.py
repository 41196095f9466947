"""Clusters from what is known about clients: the labels they hold, or any value for each."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from fedvarp.data.federated_dataset import FederatedDataset
from fedvarp.errors import InvalidError


def by_metadata(values: Sequence[Hashable] | Tensor) -> Tensor:
    """Puts clients with the same value (region, device, play, ...) into one cluster.

    >>> by_metadata(["north", "south", "north", "east"]).tolist()
    [0, 1, 0, 2]

    Args:
        values: One for each client, in the order of the clients.

    Returns:
        (N,) int64, numbered in the order in which the values first appear.
    """
    numbers: dict[Hashable, int] = {}
    # The elements of a tensor are tensors, which are equal to nothing but themselves.
    plain = values.tolist() if isinstance(values, Tensor) else values
    return torch.tensor(
        [numbers.setdefault(value, len(numbers)) for value in plain], dtype=torch.int64
    )


def by_labels(dataset: FederatedDataset) -> Tensor:
    """Puts clients that hold the same set of labels into one cluster, as the paper does.

    Args:
        dataset: The clients' examples; all of them are loaded once.

    Returns:
        (N,) int64, numbered in the order of the sorted label sets.

    Raises:
        ValueError: If the targets of the data set are no classes.
    """
    if dataset.num_classes is None:
        raise InvalidError(
            "This data set has no classes (num_classes), so its clients cannot be grouped by "
            'labels. Clusters called "auto:K" are found from gradients instead.'
        )
    sets = [
        tuple(sorted(set(dataset.client(i)[1].flatten().tolist())))
        for i in range(dataset.num_clients)
    ]
    numbers = {labels: k for k, labels in enumerate(sorted(set(sets)))}
    return torch.tensor([numbers[labels] for labels in sets])
