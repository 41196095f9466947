"""FedAvg (McMahan et al., 2017; equation 2 of the FedVARP paper)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedvarp.algorithms.aggregator import Aggregator
from fedvarp.algorithms.round_updates import RoundUpdates


@dataclass
class FedAvg(Aggregator):
    """The average of what came back: a_i = 1/M, β = 0. There is no table; the absent are forgotten.

    >>> import torch
    >>> S, ones = torch.tensor([0, 3]), torch.ones(2, dtype=torch.int64)
    >>> FedAvg().aggregate(RoundUpdates(S, torch.tensor([[1.0], [5.0]]), ones, ones, scale=0.1))
    tensor([3.])
    """

    def aggregate(self, updates: RoundUpdates) -> Tensor:
        """v = 1/M Σ_{i∈S} Δ_i."""
        return updates.average(updates.deltas)
