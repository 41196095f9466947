"""A few clients of unequal sizes, models for them, and how the tests of trainers run them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedvarp import Broadcast, FlatModel, LocalSGD, RoundUpdates, SimulationResult, stream
from fedvarp.clients.local_training import Loss
from fedvarp.data import FederatedDataset
from fedvarp.models import LogisticRegression, initialised
from fedvarp.trainers import ClientTrainer, SequentialTrainer
from simulating import simulate

SIZES = [7, 1, 12, 4, 9]
FEATURES, CLASSES = 5, 3
EVERYONE = torch.arange(len(SIZES))
SGD = LocalSGD(lr=0.1, batch_size=4, epochs=2)


def dataset(
    note: Callable[[int], None] = lambda client: None,
    augment: bool = False,
    diverging: int | None = None,
) -> FederatedDataset:
    """The clients.

    Args:
        note: Called with each client that is loaded.
        augment: Whether inputs are changed at random.
        diverging: A client whose data no model survives.
    """
    draws = stream(0, "examples")
    parts = [
        (torch.randn(n, FEATURES, generator=draws), torch.randint(CLASSES, (n,), generator=draws))
        for n in SIZES
    ]
    if diverging is not None:
        parts[diverging][0].fill_(torch.inf)

    def load(client: int) -> tuple[Tensor, Tensor]:
        note(client)
        return parts[client]

    return FederatedDataset(
        load=load,
        num_clients=len(SIZES),
        num_examples=torch.tensor(SIZES),
        augment=_jitter if augment else None,
    )


def _jitter(x: Tensor, generator: torch.Generator) -> Tensor:
    return x + torch.randn(x.shape, generator=generator)


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    """The same weights each time."""
    return initialised(make, seed=0)


def linear() -> nn.Module:
    return nn.Linear(FEATURES, CLASSES)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 4), nn.Tanh(), nn.Linear(4, CLASSES))


class StepCounter(nn.Module):
    """Its only buffer depends on no example, so vmap has nothing against writing to it."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, CLASSES)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.count += 1
        logits: Tensor = self.linear(x)
        return logits


class Counting(nn.Module):
    """Counts its calls in an integer buffer, and keeps a mean of its inputs in a float one."""

    count: Tensor
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, CLASSES)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(FEATURES))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.count += 1
            self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        logits: Tensor = self.linear(x - self.mean)
        return logits


def plain(
    data: FederatedDataset | None = None,
    module: nn.Module | None = None,
    sgd: LocalSGD = SGD,
    loss: Loss = cross_entropy,
    seed: int = 5,
) -> SequentialTrainer:
    """The plain loop over these clients."""
    model = FlatModel(seeded(linear) if module is None else module)
    return SequentialTrainer(dataset() if data is None else data, model, loss, sgd, seed)


def broadcast_of(model: FlatModel, corrected: bool = False) -> Broadcast:
    """To everyone; fewer may answer. If corrected, by both of the things that may be asked."""
    rows = torch.randn(len(SIZES), model.dim, generator=stream(3, "broadcast"))
    sent = Broadcast(7, EVERYONE, model.vector(), None, model.buffers())
    return dataclasses.replace(sent, corrections=rows, proximal=0.7) if corrected else sent


class Changed(ClientTrainer):
    """The plain loop's updates, changed, and a memory of what was asked for."""

    def __init__(
        self,
        inner: ClientTrainer,
        change: Callable[[RoundUpdates], RoundUpdates] = lambda updates: updates,
    ) -> None:
        self.inner, self.change = inner, change
        self.rounds: list[int] = []
        self.foretold: list[int] = []
        self.closed = False

    def foretell(self, cohorts: Mapping[int, Tensor]) -> None:
        self.foretold += cohorts

    def train(self, broadcast: Broadcast, clients: Tensor, round: int) -> RoundUpdates:
        self.rounds.append(round)
        return self.change(self.inner.train(broadcast, clients, round))

    def close(self) -> None:
        self.closed = True


def run(
    data: FederatedDataset | None = None, module: nn.Module | None = None, **changes: Any
) -> SimulationResult:
    """A short run; a linear model with the same weights each time unless another is given."""
    data = dataset() if data is None else data
    x, _ = data.client(0)
    features, classes = x[0].numel(), data.num_classes or CLASSES
    if module is None:
        module = seeded(lambda: LogisticRegression(features, classes))
    settings: dict[str, Any] = {
        "local_sgd": SGD,
        "rounds": 7,
        "clients_per_round": 3,
        "evaluate_every": 2,
        "progress": False,
    }
    return simulate(data, module, **(settings | changes))


def bits(result: SimulationResult) -> tuple[list[float], list[dict[str, Any]]]:
    """What must not differ by a bit: the final model, and the metrics of every round."""
    return result.server.w.tolist(), result.metrics


def assert_same_updates(found: RoundUpdates, expected: RoundUpdates, exact: bool) -> None:
    """The same updates: bit for bit, or to float tolerance."""
    assert found.clients.tolist() == expected.clients.tolist()
    assert found.num_steps.tolist() == expected.num_steps.tolist()
    assert found.num_examples.tolist() == expected.num_examples.tolist()
    assert found.refused == expected.refused
    assert found.losses.keys() == expected.losses.keys()
    assert found.buffers.keys() == expected.buffers.keys()
    for client, buffers in expected.buffers.items():
        for name, buffer in buffers.items():
            assert torch.equal(found.buffers[client][name], buffer)
            assert found.buffers[client][name].dtype == buffer.dtype
    if exact:
        assert torch.equal(found.deltas, expected.deltas)
        assert found.scale == expected.scale
        assert found.losses == expected.losses
        assert found.largest_entries.values == expected.largest_entries.values
    else:
        torch.testing.assert_close(found.deltas, expected.deltas, rtol=1e-4, atol=1e-6)
        assert found.scale == pytest.approx(expected.scale, rel=1e-6)
        assert found.losses == pytest.approx(expected.losses, rel=1e-5)
