"""FedVARP (Jhunjhunwala et al., UAI 2022, Algorithm 2)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedvarp.algorithms.aggregator import LatestUpdates
from fedvarp.algorithms.round_updates import RoundUpdates


@dataclass(eq=False)
class FedVARP(LatestUpdates):
    """The server replays each absent client's latest update (SAGA over clients): a_i = 1/M, β = 1.

    Args:
        y: A table with one row per client.

    >>> import torch
    >>> from fedvarp import MemoryTable
    >>> fedvarp = FedVARP(MemoryTable(num_clients=4, dim=1))
    >>> S, ones = torch.tensor([0, 3]), torch.ones(2, dtype=torch.int64)
    >>> updates = RoundUpdates(S, torch.tensor([[1.0], [5.0]]), ones, ones, scale=0.1)
    >>> fedvarp.aggregate(updates)  # 0 + ½ (1 − 0) + ½ (5 − 0)
    tensor([3.])
    >>> fedvarp.aggregate(updates)  # 6/4 + ½ (1 − 1) + ½ (5 − 5)
    tensor([1.5000])
    """

    def aggregate(self, updates: RoundUpdates) -> Tensor:
        """v = ȳ + 1/M Σ_{i∈S} (Δ_i − y_i), then y_i ← Δ_i for i ∈ S."""
        S, delta, a = updates.clients, updates.deltas, updates.averaging_weights
        # line 8: v = ȳ + Σ a_i (Δ_i − y_i); lines 10 to 14: y_i ← Δ_i; line 9 is the optimiser's
        return self.y.exchange(S, delta, a, self.beta, largest=updates.largest_entries)
