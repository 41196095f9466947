"""Recorded gradients in the plain loop: its bits, for models that are known to allow it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedvarp import LocalSGD
from fedvarp.clients.local_training import Loss
from fedvarp.data import FederatedDataset, from_tensors
from fedvarp.models import CharGRU, LeNet5, LogisticRegression, Quadratic, quadratic_loss
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


def with_dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.Linear(5, 4))


@pytest.mark.parametrize(
    "sgd",
    [
        LocalSGD(lr=0.1, batch_size=5, epochs=4),
        LocalSGD(lr=0.1, batch_size=4, epochs=3, momentum=0.9, weight_decay=0.01, clip_norm=0.5),
    ],
    ids=["plain", "momentum, decay and clipping"],
)
@pytest.mark.parametrize("make", [dense, with_dropout, lambda: LogisticRegression(6, 4)])
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
    random = isinstance(module, nn.Sequential) and isinstance(module[1], nn.Dropout)
    assert replayed._replay.gave_up == random


def test_recorded_gradients_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python runs the model four times for each size of batch, however many steps are taken."""
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
    assert calls == [6] * 4


@pytest.mark.parametrize(
    ("model", "inputs"),
    [(LeNet5(), torch.randn(8, 3, 32, 32)), (CharGRU(), torch.randint(80, (32, 20)))],
    ids=["LeNet-5", "GRU"],
)
def test_large_steps_are_taken_as_ever(model: nn.Module, inputs: Tensor) -> None:
    flat, targets = FlatModel(model), torch.arange(len(inputs)) % 10
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
        (nn.Linear(6, 4), own_loss, False),
        (nn.Linear(6, 4), lambda output, target: cross_entropy(output, target), False),
        (hooked(), cross_entropy, False),
        (with_a_buffer(), cross_entropy, False),
        (nn.Linear(600, 400), cross_entropy, False),
    ],
    ids=["torch's", "ours", "own layer", "own loss", "lambda", "hook", "buffer", "large"],
)
def test_models_that_may_do_more_than_compute_are_left_alone(
    module: nn.Module, loss: Loss, expected: bool
) -> None:
    assert (ReplayedGradient.where_safe(FlatModel(module), loss) is not None) is expected
