"""Recorded gradients in the plain loop: its bits, for models that are known to allow it."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedvarp import LocalSGD
from fedvarp.clients.local_training import Loss
from fedvarp.data import FederatedDataset, from_tensors
from fedvarp.models import LogisticRegression, Quadratic, quadratic_loss
from fedvarp.server.flat_model import FlatModel
from fedvarp.server.server import Broadcast
from fedvarp.trainers.replayed_gradient import ReplayedGradient
from fedvarp.trainers.sequential import SequentialTrainer

SIZES = (7, 12, 12, 5)


class Own(nn.Linear):
    """Somebody's own layer: what it does besides is not known."""


def own_loss(output: Tensor, target: Tensor) -> Tensor:
    return cross_entropy(output, target)


def federation() -> FederatedDataset:
    draw = torch.Generator().manual_seed(0)
    return from_tensors(
        [(torch.randn(n, 6, generator=draw), torch.randint(4, (n,), generator=draw)) for n in SIZES]
    )


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.GELU(), nn.LayerNorm(5), nn.Linear(5, 4))


@pytest.mark.parametrize(
    "sgd",
    [
        LocalSGD(lr=0.1, batch_size=5, epochs=4),
        LocalSGD(lr=0.1, batch_size=4, epochs=3, momentum=0.9, weight_decay=0.01, clip_norm=0.5),
    ],
    ids=["plain", "momentum, decay and clipping"],
)
@pytest.mark.parametrize("make", [dense, lambda: LogisticRegression(6, 4)])
@pytest.mark.parametrize("loss", [cross_entropy, nn.CrossEntropyLoss(label_smoothing=0.1)])
def test_rounds_have_the_bits_of_the_plain_loop(sgd: LocalSGD, make: object, loss: Loss) -> None:
    torch.manual_seed(0)
    module = make()  # type: ignore[operator]
    data, model = federation(), FlatModel(module)
    replayed = ReplayedGradient.where_safe(model, loss)
    assert replayed is not None
    w = model.vector()
    for round in range(3):
        clients = torch.arange(len(SIZES))
        sent = Broadcast(round, clients, w, None, proximal=0.1 * round)
        trained = [
            SequentialTrainer(data, model, loss, sgd, 0, of).train(sent, clients, round)
            for of in (None, replayed)
        ]
        assert torch.equal(trained[0].deltas, trained[1].deltas)
        assert trained[0].losses == trained[1].losses
        w = w - 0.1 * trained[0].deltas.mean(0)
    assert not replayed._replay.gave_up


def test_recorded_gradients_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python runs the model five times for each size of batch, however many steps are taken."""
    calls = []

    def counted(layer: nn.Linear, x: Tensor) -> Tensor:
        calls.append(len(x))
        return nn.functional.linear(x, layer.weight, layer.bias)

    model = FlatModel(nn.Linear(6, 4))
    monkeypatch.setattr(nn.Linear, "forward", counted)
    sgd = LocalSGD(lr=0.1, batch_size=6, epochs=10)
    replayed = ReplayedGradient(model, cross_entropy)
    trainer = SequentialTrainer(federation(), model, cross_entropy, sgd, 0, replayed)
    trainer.train(Broadcast(0, torch.tensor([1]), model.vector(), None), torch.tensor([1]), 0)
    assert calls == [6] * 5


def test_large_steps_are_taken_as_ever() -> None:
    flat = FlatModel(nn.Sequential(nn.Conv2d(3, 8, 5), nn.ReLU(), nn.Flatten()))
    inputs, targets = torch.randn(64, 3, 32, 32), torch.arange(64)
    replayed = ReplayedGradient.where_safe(flat, cross_entropy)
    assert replayed is not None
    w, found, expected = flat.vector(), torch.empty(flat.dim), torch.empty(flat.dim)
    for _ in range(6):
        flat.bind(w, expected)
        value = cross_entropy(flat.module(inputs), targets)
        flat.backward(value)
        flat.bind(w, found)
        assert torch.equal(replayed(w, inputs, targets, out=found), value.detach())
        assert torch.equal(found, expected)
    assert replayed._replay.gave_up


def test_mixed_precision_is_left_alone() -> None:
    """Autocast keeps the weights it has cast: a recording would have those of its own step."""
    data, model = federation(), FlatModel(nn.Linear(6, 4))
    replayed = ReplayedGradient(model, cross_entropy)
    sgd, clients = LocalSGD(lr=0.5, batch_size=4, epochs=4), torch.arange(len(SIZES))
    sent = Broadcast(0, clients, model.vector(), None)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        plain, fast = (
            SequentialTrainer(data, model, cross_entropy, sgd, 0, of).train(sent, clients, 0).deltas
            for of in (None, replayed)
        )
    assert torch.equal(plain, fast)


def swapped(model: nn.Sequential) -> None:
    model[1] = nn.Sigmoid()


def steeper(model: nn.Sequential) -> None:
    model[1].negative_slope = 0.5  # type: ignore[assignment]


def watched(model: nn.Sequential) -> None:
    model[1].register_forward_hook(lambda layer, x, output: 2 * output)


def refrozen(model: nn.Sequential) -> None:
    model[0].bias.data = torch.ones(5)


@pytest.mark.parametrize("change", [swapped, steeper, watched, refrozen])
def test_layers_that_change_between_rounds_are_followed(
    change: Callable[[nn.Sequential], None],
) -> None:
    module = nn.Sequential(nn.Linear(6, 5), nn.LeakyReLU(), nn.Linear(5, 4))
    module[0].bias.requires_grad_(False)
    data, model = federation(), FlatModel(module)
    replayed = ReplayedGradient.where_safe(model, cross_entropy)
    sgd = LocalSGD(lr=0.1, batch_size=4, epochs=4)
    clients, w, updates = torch.arange(len(SIZES)), model.vector(), []
    for round in range(2):
        sent = Broadcast(round, clients, w, None)
        for of in (None, replayed):
            trainer = SequentialTrainer(data, model, cross_entropy, sgd, 0, of)
            updates.append(trainer.train(sent, clients, 0).deltas)
        assert torch.equal(updates[-1], updates[-2])
        change(module)
    assert not torch.equal(updates[0], updates[2])  # the change made a difference


def hooked() -> nn.Module:
    layer = nn.Linear(6, 4)
    layer.register_forward_hook(lambda *_: None)
    return layer


def with_a_buffer() -> nn.Module:
    layer = nn.Linear(6, 4)
    layer.register_buffer("seen", torch.zeros(()))
    return layer


@pytest.mark.parametrize(
    ("module", "loss", "expected"),
    [
        (nn.Linear(6, 4), cross_entropy, True),
        (Quadratic(3), quadratic_loss, True),
        (nn.Sequential(nn.Linear(6, 4), Own(4, 4)), cross_entropy, False),
        (nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5)), cross_entropy, False),
        (nn.Linear(6, 4), own_loss, False),
        (nn.Linear(6, 4), lambda output, target: cross_entropy(output, target), False),
        (hooked(), cross_entropy, False),
        (with_a_buffer(), cross_entropy, False),
        (nn.Linear(600, 400), cross_entropy, False),
        (nn.Linear(6, 4), functools.wraps(cross_entropy)(own_loss), False),
        (nn.Embedding(10, 4, max_norm=0.5), cross_entropy, False),
        (nn.Linear(6, 4, device="meta"), cross_entropy, False),
    ],
    ids=[
        *("torch's", "ours", "own layer", "dropout", "own loss", "lambda", "hook", "buffer"),
        *("large", "own loss that looks like torch's", "writes to its weights", "another device"),
    ],
)
def test_models_that_may_do_more_than_compute_are_left_alone(
    module: nn.Module, loss: Loss, expected: bool
) -> None:
    assert (ReplayedGradient.where_safe(FlatModel(module), loss) is not None) is expected
