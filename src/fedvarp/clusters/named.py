"""The clusters of ClusterFedVARP by the names that settings use."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # settings are checked with CLUSTERS_PATTERN, and need not wait for torch
    from torch import Tensor

    from fedvarp.data import FederatedDataset

CLUSTERS_PATTERN: Final = r"^(own|labels|auto:[1-9]\d*(:updates)?)$"


@dataclass(frozen=True, eq=False)
class Clusters:
    """Which clients share a row.

    Attributes:
        at_first: (N,) int64 for the table to begin with; None: there are none.
        num_auto: K, if the clusters are to be found by k-means before the first round; else None.
        of_updates: Whether k-means looks at updates, not at gradients.
        every: Rounds after which they are found anew; None: never.
    """

    at_first: Tensor | None
    num_auto: int | None = None
    of_updates: bool = False
    every: int | None = None

    @property
    def changing(self) -> str | None:
        """How they are made, for a checkpoint; None if they are known from the start."""
        if self.num_auto is None:
            return None
        what = "updates" if self.of_updates else "gradients"
        return f"auto:{self.num_auto} of {what}, every {self.every} rounds"


def clusters_by_name(
    name: Sequence[int] | str | None, every: int | None, dataset: FederatedDataset
) -> Clusters:
    """What "own", "labels", "auto:K", "auto:K:updates" or a tensor stand for; None is "own"."""
    is_auto = isinstance(name, str) and name.startswith("auto:")
    if every is not None and (every < 1 or not is_auto):
        raise ValueError(
            f'recluster_every={every}: it takes 1 round or more, and goes with "auto:K"; clusters '
            f"that are given never change."
        )
    if name is None or (isinstance(name, str) and name == "own"):
        return Clusters(dataset.cluster_of)
    if not isinstance(name, str):
        import torch

        return Clusters(torch.as_tensor(name))
    if not re.match(CLUSTERS_PATTERN, name):
        raise ValueError(
            f'No clusters are called {name!r}; there are "own", "labels", "auto:K" and '
            f'"auto:K:updates" with a number K.'
        )
    if name == "labels":
        from fedvarp.clusters.clustering import by_label_sets

        return Clusters(by_label_sets(dataset))
    _, K, *of = name.split(":")
    num_clusters = int(K)
    if num_clusters > dataset.num_clients:
        raise ValueError(
            f"{dataset.num_clients} clients cannot form {num_clusters} clusters: choose K from 1 "
            f"to {dataset.num_clients}."
        )
    import torch

    # Rows are zero until the first round, so it does not matter yet who shares them.
    anyhow = torch.arange(dataset.num_clients) % num_clusters
    return Clusters(anyhow, num_clusters, bool(of), every)
