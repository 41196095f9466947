"""FedVARP and ClusterFedVARP (Jhunjhunwala et al., UAI 2022; Algorithms 2 and 3)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedvarp.algorithms.aggregator import Aggregator
from fedvarp.algorithms.round_updates import RoundUpdates
from fedvarp.server.optimizers import ServerOptimizer
from fedvarp.tables import ClientTable, ClusteredTable, RowTable


@dataclass(eq=False)
class FedVARP(Aggregator):
    """Algorithm 2. The server replays each absent client's latest update (SAGA over clients)."""

    y: ClientTable
    _v: Tensor | None = field(default=None, init=False, repr=False)  # memory to write v into

    def aggregate(self, updates: RoundUpdates) -> Tensor:
        """v = y + 1/M Σ_{i∈S} (Δ_i − y_i), then y_i ← Δ_i for i ∈ S."""
        if self._v is None:
            self._v = torch.empty(self.y.dim, dtype=self.y.dtype, device=updates.deltas.device)
        v = self._v.zero_()
        self.y.exchange(updates, v, rate=-1.0)  # from zero, one unit along v
        return v

    def move(self, w: Tensor, updates: RoundUpdates, optimizer: ServerOptimizer) -> None:
        """Lines 8 to 14 at once where the optimiser's step is line 9 and nothing more."""
        rate = optimizer.plain_rate(updates.scale)
        if rate is None:
            super().move(w, updates, optimizer)
        else:
            self.y.exchange(updates, w, rate)

    def receive_late(self, updates: RoundUpdates) -> bool:
        """y_i ← Δ_i: an update of an older model still says more than the one before it."""
        self.y.put(updates.clients, updates.deltas)
        return True

    @property
    def table(self) -> ClientTable:
        """y_1 … y_N."""
        return self.y


def cluster_fedvarp(
    cluster_of: Tensor, states: RowTable, client_weights: Tensor | None = None
) -> FedVARP:
    """ClusterFedVARP: Algorithm 3 is Algorithm 2 over rows that the clients of a cluster share.

    Args:
        cluster_of: (N,) int64, the cluster of each client, 0 … K-1.
        states: A table with K rows.
        client_weights: (N,) weights of the clients' objectives; None for 1/N each.
    """
    return FedVARP(y=ClusteredTable(cluster_of, states, client_weights))
