"""ClusterFedVARP (Jhunjhunwala et al., UAI 2022, Algorithm 3)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedvarp.algorithms.aggregator import LatestUpdates
from fedvarp.algorithms.round_updates import RoundUpdates
from fedvarp.tables.clustered import ClusteredTable
from fedvarp.tables.partial import PartialTable


@dataclass(eq=False)
class ClusterFedVARP(LatestUpdates):
    """FedVARP over rows that the clients of a cluster share: a_i = 1/M, β = 1, y_i is row c_i.

    Args:
        y: A table with one row per cluster.

    >>> import torch
    >>> from fedvarp import MemoryTable
    >>> y = ClusteredTable(torch.tensor([0, 0, 1, 1]), MemoryTable(num_clients=2, dim=1))
    >>> algorithm = ClusterFedVARP(y)
    >>> S, ones = torch.tensor([0, 3]), torch.ones(2, dtype=torch.int64)
    >>> updates = RoundUpdates(S, torch.tensor([[1.0], [5.0]]), ones, ones, scale=0.1)
    >>> algorithm.aggregate(updates)  # 0 + ½ (1 − 0) + ½ (5 − 0)
    tensor([3.])
    >>> y.get(torch.arange(4)).T
    tensor([[1., 1., 5., 5.]])
    """

    y: ClusteredTable | PartialTable

    def aggregate(self, updates: RoundUpdates) -> Tensor:
        """v = 1/N Σ_j y_{c_j} + 1/M Σ_{i∈S} (Δ_i − y_{c_i}), then y_k ← mean Δ_i of cluster k."""
        S, delta, a = updates.clients, updates.deltas, updates.averaging_weights
        # line 8: v = ȳ + Σ a_i (Δ_i − y_i); lines 11 to 13: the rows; line 9 is the optimiser's
        return self.y.exchange(S, delta, a, self.beta, largest=updates.largest_entries)
