"""What settings call clusters: "own", "labels", "auto:K" and "auto:K:updates".

This module is imported without torch, so that settings can be checked at once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedvarp.errors import InvalidError
from fedvarp.tables.settings import CLUSTERS_PATTERN

if TYPE_CHECKING:
    from torch import Tensor

    from fedvarp.data.federated_dataset import FederatedDataset


@dataclass(frozen=True, eq=False)
class ClusterPlan:
    """Which clients share a row at first, and whether and when that changes.

    Attributes:
        at_first: (N,) int64 for the table to begin with; None: there are no clusters.
        num_auto: K, if clusters are to be found by k-means before the first round; else None.
        of_updates: Whether k-means looks at updates in place of gradients.
        every: Rounds after which clusters are found anew; None: never.
    """

    at_first: Tensor | None
    num_auto: int | None = None
    of_updates: bool = False
    every: int | None = None

    @property
    def changing(self) -> str | None:
        """How clusters are found, for a checkpoint to compare; None if all are known at first."""
        if self.num_auto is None:
            return None
        what = "updates" if self.of_updates else "gradients"
        return f"auto:{self.num_auto} of {what}, every {self.every} rounds"


def clusters_by_name(
    name: Sequence[int] | str | None, every: int | None, dataset: FederatedDataset
) -> ClusterPlan:
    """Looks up what a setting says about clusters.

    Args:
        name: "own" or None: the data set's natural clusters; "labels": clients with the same
            labels; "auto:K": k-means on gradients; "auto:K:updates": k-means on updates; or the
            cluster of each client.
        every: With "auto:…", rounds after which clusters are found anew; None: never.
        dataset: Whose clients they are.

    Returns:
        The clusters to begin with and how they change.

    Raises:
        ValueError: If there is no such name, K is above N, clients cannot be grouped by labels, or
            clusters that never change are to be found anew.
    """
    is_auto = isinstance(name, str) and name.startswith("auto:")
    if every is not None and (every < 1 or not is_auto):
        raise InvalidError(
            f'recluster_every={every}: it takes 1 round or more, and goes with "auto:K"; clusters '
            f"that are given never change."
        )
    if name is None or (isinstance(name, str) and name == "own"):
        return ClusterPlan(dataset.cluster_of)
    if not isinstance(name, str):
        from fedvarp.tables.tensors import cluster_numbers

        return ClusterPlan(cluster_numbers("clusters", name, dataset.num_clients))
    if not re.match(CLUSTERS_PATTERN, name):
        raise InvalidError(
            f'No clusters are called {name!r}; there are "own", "labels", "auto:K" and '
            f'"auto:K:updates" with a number K.'
        )
    if name == "labels":
        from fedvarp.clusters.known_groups import by_labels

        return ClusterPlan(by_labels(dataset))
    _, K, *of = name.split(":")
    num_clusters = int(K)
    if num_clusters > dataset.num_clients:
        raise InvalidError(
            f"{dataset.num_clients} clients cannot form {num_clusters} clusters: choose K from 1 "
            f"to {dataset.num_clients}."
        )
    import torch

    # Rows are zero until the first round, so it does not matter yet who shares them.
    anyhow = torch.arange(dataset.num_clients) % num_clusters
    return ClusterPlan(anyhow, num_clusters, bool(of), every)
