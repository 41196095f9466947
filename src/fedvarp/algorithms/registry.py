"""The algorithms by the names that settings and command lines use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from fedvarp.algorithms.aggregator import Aggregator
from fedvarp.algorithms.cluster_fedvarp import ClusterFedVARP
from fedvarp.algorithms.fedavg import FedAvg
from fedvarp.algorithms.fedvarp import FedVARP
from fedvarp.algorithms.mifa import MIFA
from fedvarp.algorithms.scaffold import Scaffold
from fedvarp.tables.clustered import ClusteredTable
from fedvarp.tables.registry import TABLES
from fedvarp.tables.row_table import RowTable


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
        fsync: Whether rows on disk wait for the disk.
    """

    num_clients: int
    dim: int
    codec: str = "float32"
    folder: str | None = None
    cluster_of: Tensor | None = None
    clustering: str | None = None
    client_weights: Tensor | None = None
    device: torch.device | str = "cpu"
    fsync: bool = True

    def rows(self, count: int, weights: Tensor | None) -> RowTable:
        """A new table in the place and with the codec of these settings.

        Args:
            count: How many rows it has.
            weights: (count,) what each row counts for in the mean; None for the same.

        Returns:
            The table.
        """
        make = TABLES["memory" if self.folder is None else "disk"]
        return make(
            self.folder,
            count,
            self.dim,
            self.codec,
            client_weights=weights,
            device=self.device,
            fsync=self.fsync,
        )

    def row_per_client(self) -> RowTable:
        """A new table with one row for each client."""
        return self.rows(self.num_clients, self.client_weights)

    def row_per_cluster(self) -> ClusteredTable:
        """A new table with one row for each cluster.

        Raises:
            ValueError: The clusters are not known.
        """
        if self.cluster_of is None:
            raise ValueError(
                "ClusterFedVARP needs to know the clusters, and this data set has no natural ones. "
                "Give cluster_of, the cluster of each client, or use FedVARP."
            )
        rows = self.rows(int(self.cluster_of.max()) + 1, None)
        return ClusteredTable(self.cluster_of, rows, self.client_weights, self.clustering)


ALGORITHMS: Final[dict[str, Callable[[TableSettings], Aggregator]]] = {
    "fedavg": lambda table: FedAvg(),
    "fedvarp": lambda table: FedVARP(table.row_per_client()),
    "cluster_fedvarp": lambda table: ClusterFedVARP(table.row_per_cluster()),
    "mifa": lambda table: MIFA(table.row_per_client()),
    "scaffold": lambda table: Scaffold(table.row_per_client()),
}
"""One line registers an algorithm of one's own, and settings then find it by its name:
``ALGORITHMS["mine"] = lambda table: Mine(table.row_per_client())``. The tests in tests/laws run
over whatever stands here."""


def make_algorithm(name: str, settings: TableSettings) -> Aggregator:
    """The algorithm of that name with a table of its own.

    Args:
        name: A name in `ALGORITHMS`.
        settings: What its table is to be like.

    Returns:
        A new algorithm.

    Raises:
        ValueError: There is no algorithm of that name.
    """
    if name not in ALGORITHMS:
        raise ValueError(f"No algorithm is called {name!r}; there are {', '.join(ALGORITHMS)}.")
    return ALGORITHMS[name](settings)
