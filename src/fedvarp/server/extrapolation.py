"""FedExP (Jhunjhunwala et al., ICLR 2023): the more updates disagree, the longer the step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from fedvarp.algorithms.round_updates import RoundUpdates
from fedvarp.server.optimizers import ServerOptimizer, walk
from fedvarp.settings.bounds import Positive
from fedvarp.settings.checked import checked


class ServerExP(ServerOptimizer):
    """η_g = max(η, Σ a_i ‖Δ_i‖² / (2 (‖v‖² + ε))), then w ← w − η_g · scale · v.

    Updates that point in different directions cancel out in v, which is then shorter than the way
    to where all of them are content; the step makes up for that. The paper's a_i are 1/M, and it
    judges the mean of the last two models, which is not done here. Over an algorithm with a table v
    is shorter or longer than the mean of Δ_i, and the rule the same.

    Args:
        lr: η, the least η_g, above zero; the paper's is 1, FedAvg's.
        eps: ε, above zero, in units of ‖w − w_i‖²; keeps a short v from being magnified beyond all
            measure.

    Raises:
        ValueError: One of them is out of range.
    """

    follows_lengths: ClassVar[bool] = True

    @checked
    def __init__(self, lr: Positive = 1.0, eps: Positive = 1e-3) -> None:
        self.lr = lr
        self.eps = eps
        self._mean_square = 0.0  # Σ a_i ‖Δ_i‖² of the round that is received

    def observe(self, updates: RoundUpdates) -> None:
        """Σ a_i ‖Δ_i‖²."""
        self._mean_square = 0.0
        if len(updates.clients):
            norms = torch.linalg.vector_norm(updates.deltas, dim=1, dtype=torch.float64)
            self._mean_square = float(updates.averaging_weights @ norms.square())

    def step(self, w: Tensor, v: Tensor, scale: float) -> None:
        """w ← w − η_g · scale · v; η_g = η where nobody answered."""
        square = float(torch.linalg.vector_norm(v, dtype=torch.float64)) ** 2
        rate = scale**2 * self._mean_square / (2 * (scale**2 * square + self.eps))
        walk(w, v, max(self.lr, rate) * scale)

    def describe(self) -> Mapping[str, object]:
        """Name and settings."""
        return {"optimizer": "exp", "server_lr": self.lr, "server_eps": self.eps}
