"""MIFA (Gu et al., NeurIPS 2021), as the FedVARP paper compares with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedvarp.algorithms.aggregator import LatestUpdates
from fedvarp.algorithms.round_updates import RoundUpdates


@dataclass(eq=False)
class MIFA(LatestUpdates):
    """The plain mean of every client's latest update (SAG over clients): a_i = 1/N, β = 1.

    Rows start at zero and nobody is waited for, as in the paper's experiments: until a client has
    first been seen, v is biased towards zero.

    Args:
        y: A table with one row per client.

    >>> import torch
    >>> from fedvarp import MemoryTable
    >>> S, ones = torch.tensor([0, 3]), torch.ones(2, dtype=torch.int64)
    >>> updates = RoundUpdates(S, torch.tensor([[1.0], [5.0]]), ones, ones, scale=0.1)
    >>> MIFA(MemoryTable(num_clients=4, dim=1)).aggregate(updates)  # (1 + 0 + 0 + 5) / 4
    tensor([1.5000])
    """

    unbiased: ClassVar[bool] = False

    def aggregate(self, updates: RoundUpdates) -> Tensor:
        """y_i ← Δ_i for i ∈ S, then v = 1/N Σ_j y_j."""
        # ȳ + 1/N Σ (Δ_i − y_i) is ȳ after the put. `exchange` would round ȳ and the sum apart, and
        # with a lossy codec add what was sent, not what is stored.
        self.y.put(updates.clients, updates.deltas, updates.largest_entries)
        return self.y.mean()
