"""FedStale (Rodio and Neglia, 2024): FedVARP that believes its rows by half, or as you say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from fedvarp.algorithms.fedvarp import FedVARP
from fedvarp.algorithms.round_updates import RoundUpdates
from fedvarp.settings.bounds import Share


@dataclass(eq=False)
class FedStale(FedVARP):
    """FedVARP with another β: 0 is FedAvg, 1 is FedVARP, to the bit; between them a mixture.

    Args:
        y: A table with one row per client.
        beta: β, from 0 to 1.

    >>> import torch
    >>> from fedvarp import MemoryTable, RoundUpdates
    >>> fedstale = FedStale(MemoryTable(num_clients=4, dim=1), beta=0.5)
    >>> S, ones = torch.tensor([0, 3]), torch.ones(2, dtype=torch.int64)
    >>> updates = RoundUpdates(S, torch.tensor([[1.0], [5.0]]), ones, ones, scale=0.1)
    >>> fedstale.aggregate(updates)  # 0 + ½ (1 − 0) + ½ (5 − 0)
    tensor([3.])
    >>> fedstale.aggregate(updates)  # ½·6/4 + ½ (1 − ½·1) + ½ (5 − ½·5)
    tensor([2.2500])
    """

    beta: Share = 0.5  # type: ignore[misc]  # what FedVARP has once for all is set here

    def aggregate(self, updates: RoundUpdates) -> Tensor:
        """v = β·ȳ + 1/M Σ_{i∈S} (Δ_i − β·y_i), then y_i ← Δ_i for i ∈ S."""
        if self.beta:
            return super().aggregate(updates)
        # A table would add the same v up in another order than FedAvg does.
        self.y.put(updates.clients, updates.deltas, updates.largest_entries)
        return updates.average(updates.deltas)

    def describe(self) -> Mapping[str, object]:
        """What must be the same for a saved run to go on with this algorithm."""
        return {**super().describe(), "beta": self.beta}
