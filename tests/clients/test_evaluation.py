"""Evaluating a model leaves nothing behind that training could stumble over."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from small_federation import CLASSES, linear, run


class Caching(nn.Module):
    """Makes a tensor when it is first needed, and keeps it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = linear()
        self.scale: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.scale is None:
            self.scale = torch.full((CLASSES,), 2.0)
        logits: Tensor = self.linear(x) * self.scale
        return logits


def test_what_a_model_keeps_from_an_evaluation_can_be_trained_with() -> None:
    result = run(module=Caching())
    assert "train_loss" in result.metrics[0], "it is evaluated before it is trained"
    assert result.server.round == 7
