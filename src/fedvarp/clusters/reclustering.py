"""Clusters that follow the gradients: found before the first round, and anew every R rounds.

Each time all clients send a sketch of their gradient (about a thousand numbers, not d), which is
more participation than a round asks for: count it where participation is what you study.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from fedvarp.algorithms.aggregator import Aggregator
from fedvarp.clients.local_sgd import LocalSGD
from fedvarp.clients.local_training import Loss
from fedvarp.clusters.from_gradients import by_gradients
from fedvarp.clusters.names import ClusterPlan
from fedvarp.data.federated_dataset import FederatedDataset
from fedvarp.server.flat_model import FlatModel
from fedvarp.server.server import Server
from fedvarp.tables.clustered import ClusteredTable


@dataclass(frozen=True, eq=False)
class Reclustering:
    """Finds clusters by k-means and moves the rows of the table over.

    What it does in round t depends on w, the seed and t alone; with the clusters in the checkpoint,
    a resumed run goes on as if nothing had happened.

    Attributes:
        clusters: How many clusters, from what, and how often.
        table: Whose rows are shared.
        dataset: The clients' examples.
        model: Computes the output; its parameters end up bound to another vector.
        loss: (output, targets) → mean loss of a batch.
        local_sgd: What a client does.
        seed: The run's seed.
    """

    clusters: ClusterPlan
    table: ClusteredTable
    dataset: FederatedDataset
    model: FlatModel
    loss: Loss
    local_sgd: LocalSGD
    seed: int

    def is_due(self, round: int) -> bool:
        """Says whether clusters are found before a round.

        Args:
            round: t, from 0.

        Returns:
            True before the first round, and before every R-th if they are found anew.
        """
        every = self.clusters.every
        return round == 0 or (every is not None and round % every == 0)

    def renew(self, server: Server, buffers: Mapping[str, Tensor]) -> None:
        """Finds clusters for the server's present model, and moves the rows over.

        Args:
            server: Holds w and t.
            buffers: The model's buffers at w.
        """
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
        )
        self.table.recluster(cluster_of)


def reclustering(
    clusters: ClusterPlan,
    aggregator: Aggregator,
    dataset: FederatedDataset,
    model: FlatModel,
    loss: Loss,
    local_sgd: LocalSGD,
    seed: int,
) -> Reclustering | None:
    """Prepares the re-clustering of a run.

    Args:
        clusters: What the settings say about clusters.
        aggregator: The algorithm, with its table.
        dataset: The clients' examples.
        model: Computes the output.
        loss: (output, targets) → mean loss of a batch.
        local_sgd: What a client does.
        seed: The run's seed.

    Returns:
        The re-clustering; None if all clusters are known at first, or nobody shares a row.
    """
    below = () if aggregator.table is None else aggregator.table.made_of()
    shared = [table for table in below if isinstance(table, ClusteredTable)]
    if clusters.num_auto is None or not shared:
        return None
    return Reclustering(clusters, shared[0], dataset, model, loss, local_sgd, seed)
