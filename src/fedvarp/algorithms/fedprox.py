"""FedProx (Li et al., MLSys 2020, Algorithm 2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from fedvarp.algorithms.aggregator import Aggregator
from fedvarp.algorithms.round_updates import RoundUpdates
from fedvarp.settings.bounds import NotNegative
from fedvarp.settings.checked import check_fields


@dataclass(eq=False)
class FedProx(Aggregator):
    """FedAvg whose clients are held back: each descends f_i(w_i) + μ/2 ‖w_i − w‖².

    The term is known to whoever has w, so that nothing more is sent than in FedAvg. μ = 0 is
    FedAvg, bit for bit. The paper's clients stop at an inexact minimum; ours after their epochs or
    steps, as in its experiments.

    Args:
        mu: μ, how strongly clients are drawn back to the model they were sent; the paper's best
            are among 0.001, 0.01, 0.1 and 1.
    """

    mu: NotNegative = 0.01

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def proximal(self) -> float:
        """μ: each local gradient has μ (w_i − w) added, the gradient of the proximal term."""
        return self.mu

    def aggregate(self, updates: RoundUpdates) -> Tensor:
        """v = 1/M Σ_{i∈S} Δ_i: the mean of the clients' models."""
        return updates.average(updates.deltas)

    def describe(self) -> Mapping[str, object]:
        """What must be the same for a saved run to go on: μ too."""
        return {**super().describe(), "mu": self.mu}
