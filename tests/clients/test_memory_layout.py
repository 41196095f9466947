"""Images are laid out with their channels last, unless their model cannot take them so."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fedvarp import FlatModel, stream
from fedvarp.clients.memory_layout import gathered, laid_out
from fedvarp.data import FederatedDataset
from small_federation import CLASSES, SIZES, run, seeded


class Tutorial(nn.Module):
    """Flattens by `view`, as many a tutorial does; that fails on channels that come last."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 4, 3)
        self.head = nn.Linear(4 * 4 * 4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        features = self.conv(x).relu()
        logits: Tensor = self.head(features.view(-1, 4 * 4 * 4))
        return logits


class ViewingInTraining(Tutorial):
    def forward(self, x: Tensor) -> Tensor:
        features = self.conv(x).relu()
        flat = features.view(-1, 64) if self.training else features.flatten(1)
        logits: Tensor = self.head(flat)
        return logits


class Particular(Tutorial):
    """Has an exception of its own for what it does not like."""

    def forward(self, x: Tensor) -> Tensor:
        if not x.is_contiguous():
            raise ValueError("need contiguous images")
        logits: Tensor = self.head(self.conv(x).relu().flatten(1))
        return logits


class Flattening(Tutorial):
    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.conv(x).relu().flatten(1))
        return logits


def images(channels: int) -> FederatedDataset:
    draws = stream(0, "images")
    parts = [
        (torch.randn(n, channels, 6, 6, generator=draws), torch.arange(n) % CLASSES) for n in SIZES
    ]
    return FederatedDataset(load=parts.__getitem__, num_clients=len(SIZES), test=parts[0])


@pytest.mark.parametrize("channels", [1, 3])
def test_a_model_that_views_its_features(channels: int) -> None:
    data = images(channels)
    found = run(data, seeded(lambda: Tutorial(channels)), trainer="sequential")
    for trainer in ("parallel", "vectorised"):
        other = run(data, seeded(lambda: Tutorial(channels)), trainer=trainer, workers=2)
        assert torch.allclose(other.server.w, found.server.w, atol=1e-6), trainer
    flattening = run(data, seeded(lambda: Flattening(channels)), trainer="sequential")
    assert torch.allclose(flattening.server.w, found.server.w, atol=1e-6)


@pytest.mark.parametrize(
    ("module", "takes"),
    [(Tutorial, False), (ViewingInTraining, False), (Particular, False), (Flattening, True)],
)
def test_images_are_laid_out_as_the_model_takes_them(
    module: Callable[[int], nn.Module], takes: bool
) -> None:
    x = torch.randn(5, 3, 6, 6)
    chosen = torch.tensor([4, 1])
    model = FlatModel(module(3).eval())
    rows = gathered(laid_out(x, model), chosen, model)
    assert model.channels_last is takes
    assert rows.is_contiguous(memory_format=torch.channels_last) is takes
    assert torch.equal(rows, x[chosen])
    assert not model.module.training
