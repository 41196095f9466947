"""Clusters that follow the gradients: found before the first round, and anew every R rounds.

Each time all clients send a sketch of their gradient (about a thousand numbers, not d), which is
more participation than a round asks for: count it where participation is what you study.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from fedvarp.algorithms import Aggregator
from fedvarp.clients.local_sgd import LocalSGD
from fedvarp.clients.local_training import Loss
from fedvarp.clusters.clustering import by_gradients
from fedvarp.clusters.named import Clusters
from fedvarp.data import FederatedDataset
from fedvarp.server.flat_model import FlatModel
from fedvarp.server.server import Server
from fedvarp.tables import ClusteredTable


@dataclass(frozen=True, eq=False)
class Reclustering:
    """Finds clusters by k-means and moves the rows of the table over.

    What it does in round t depends on w, the seed and t alone; with the clusters in the checkpoint,
    a resumed run goes on as if nothing had happened.
    """

    clusters: Clusters
    table: ClusteredTable
    dataset: FederatedDataset
    model: FlatModel
    loss: Loss
    local_sgd: LocalSGD
    seed: int

    def is_due(self, round: int) -> bool:
        """Whether clusters are made before this round."""
        every = self.clusters.every
        return round == 0 or (every is not None and round % every == 0)

    def renew(self, server: Server, buffers: Mapping[str, Tensor]) -> None:
        """Clusters for the server's present model."""
        assert self.clusters.num_auto is not None
        cluster_of = by_gradients(
            self.dataset,
            self.model,
            self.loss,
            local_sgd=self.local_sgd,
            w=server.w,
            num_clusters=self.clusters.num_auto,
            of="updates" if self.clusters.of_updates else "gradients",
            buffers=buffers,
            round=server.round,
            seed=self.seed,
            progress=False,
        )
        self.table.recluster(cluster_of)


def reclustering(
    clusters: Clusters,
    aggregator: Aggregator,
    dataset: FederatedDataset,
    model: FlatModel,
    loss: Loss,
    local_sgd: LocalSGD,
    seed: int,
) -> Reclustering | None:
    """None if the clusters are known from the start, or nobody shares a row."""
    table = aggregator.table
    if clusters.num_auto is None or not isinstance(table, ClusteredTable):
        return None
    return Reclustering(clusters, table, dataset, model, loss, local_sgd, seed)
