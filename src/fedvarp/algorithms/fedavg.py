"""FedAvg (McMahan et al., 2017; equation 2 of the FedVARP paper)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedvarp.algorithms.aggregator import Aggregator
from fedvarp.algorithms.round_updates import RoundUpdates


@dataclass
class FedAvg(Aggregator):
    """The average of what came back. Remembers nothing, so the absent are forgotten."""

    def aggregate(self, updates: RoundUpdates) -> Tensor:
        """v = 1/M Σ_{i∈S} Δ_i."""
        return updates.average(updates.deltas)
