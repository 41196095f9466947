"""What can be compiled is, once; what cannot is trained without, to the same bits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fedvarp.data import FederatedDataset
from small_federation import CLASSES, FEATURES, StepCounter, bits, linear, run, seeded


@pytest.mark.parametrize(
    ("module", "reason"), [(StepCounter, "it changes its own buffers"), (linear, "no compiler")]
)
def test_what_cannot_be_compiled_is_trained_without(
    module: Callable[[], nn.Module],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def failing(function: object, **options: object) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            raise RuntimeError("no compiler")

        return call

    expected = run(module=seeded(module))
    monkeypatch.setattr(torch, "compile", failing)
    found = run(module=seeded(module), compile=True)
    assert bits(found) == bits(expected)
    for name, buffer in expected.model.named_buffers():
        assert int(buffer) == int(found.model.get_buffer(name)) > 0
    assert caplog.text.count(f"here ({reason})") == 1


class Following(nn.Module):
    """Puts a new tensor in the place of its buffer; a functional call would lose it."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, CLASSES)
        self.register_buffer("mean", torch.zeros(FEATURES))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0).detach()
        logits: Tensor = self.linear(x - self.mean)
        return logits


def test_a_model_that_replaces_its_buffers_is_not_compiled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    expected = run(module=seeded(Following))
    found = run(module=seeded(Following), compile=True)
    assert bits(found) == bits(expected)
    assert torch.equal(found.model.get_buffer("mean"), expected.model.get_buffer("mean"))
    assert "it changes its own buffers" in caplog.text


def test_one_shape_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts of many lengths would each compile a graph, and soon be refused one."""
    compiled = set()

    def compiling(function: Callable[..., object], **options: object) -> Callable[..., object]:
        def call(w: Tensor, x: Tensor, y: Tensor) -> object:
            compiled.add((x.shape, y.shape))
            return function(w, x, y)

        return call

    monkeypatch.setattr(torch, "compile", compiling)
    parts = [(torch.randn(8, length, FEATURES), torch.arange(8) % CLASSES) for length in (2, 3, 4)]
    data = FederatedDataset(load=parts.__getitem__, num_clients=3)
    summing = nn.Sequential(nn.Linear(FEATURES, CLASSES), _Sum())
    found = run(data, summing, compile=True, trainer="sequential")
    assert found.server.round == 7
    assert len(compiled) == 1


class _Sum(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum(1)
