"""The algorithms by the names that settings and command lines use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from fedvarp.algorithms.aggregator import Aggregator
from fedvarp.algorithms.fedavg import FedAvg
from fedvarp.algorithms.fedvarp import FedVARP
from fedvarp.algorithms.mifa import MIFA
from fedvarp.algorithms.scaffold import Scaffold
from fedvarp.tables import ClusteredTable, DiskTable, MemoryTable, RowTable


@dataclass(frozen=True, eq=False)
class TableSettings:
    """What an algorithm needs to know to make its table.

    Attributes:
        num_clients: N.
        dim: d.
        codec: How rows are stored.
        folder: Where rows live on disk; None: in memory.
        cluster_of: (N,) for ClusterFedVARP.
        clustering: How the clusters are made, if they change with time.
        client_weights: (N,) p_i of the objective; None for 1/N each.
        device: Where the rows are needed.
    """

    num_clients: int
    dim: int
    codec: str = "float32"
    folder: str | None = None
    cluster_of: Tensor | None = None
    clustering: str | None = None
    client_weights: Tensor | None = None
    device: torch.device | str = "cpu"

    def rows(self, count: int, weights: Tensor | None) -> RowTable:
        """A table with that many rows."""
        if self.folder is None:
            return MemoryTable(
                count, self.dim, self.codec, client_weights=weights, device=self.device
            )
        return DiskTable(
            self.folder, count, self.dim, self.codec, client_weights=weights, device=self.device
        )

    def row_per_client(self) -> RowTable:
        """A table with one row for each client."""
        return self.rows(self.num_clients, self.client_weights)


def _clustered(settings: TableSettings) -> Aggregator:
    if settings.cluster_of is None:
        raise ValueError(
            "ClusterFedVARP needs to know the clusters, and this data set has no natural ones. "
            "Give cluster_of, the cluster of each client, or use FedVARP."
        )
    rows = settings.rows(int(settings.cluster_of.max()) + 1, None)
    return FedVARP(
        ClusteredTable(settings.cluster_of, rows, settings.client_weights, settings.clustering)
    )


ALGORITHMS: Final[Mapping[str, Callable[[TableSettings], Aggregator]]] = {
    "fedavg": lambda settings: FedAvg(),
    "fedvarp": lambda settings: FedVARP(settings.row_per_client()),
    "cluster_fedvarp": _clustered,
    "mifa": lambda settings: MIFA(settings.row_per_client()),
    "scaffold": lambda settings: Scaffold(settings.row_per_client()),
}


def make_algorithm(name: str, settings: TableSettings) -> Aggregator:
    """The algorithm of that name with a table of its own."""
    if name not in ALGORITHMS:
        raise ValueError(f"No algorithm is called {name!r}; there are {', '.join(ALGORITHMS)}.")
    return ALGORITHMS[name](settings)
