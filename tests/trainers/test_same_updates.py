"""Every trainer gives the plain loop's updates: bit for bit, or to float tolerance."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from fedvarp import Broadcast, FlatModel, LocalSGD, RoundUpdates, stream
from fedvarp.clients.local_sgd import Loss
from fedvarp.clients.schedules import Exponential
from fedvarp.data import FederatedDataset
from fedvarp.trainers import ParallelTrainer, SequentialTrainer, VectorisedTrainer

SIZES = [7, 1, 12, 4, 9]
FEATURES, CLASSES = 5, 3
CLIENTS = torch.tensor([4, 0, 2, 1])  # neither all of them, nor in order


class Counting(nn.Module):
    """Counts its calls in an integer buffer, and keeps a float one."""

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


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 4), nn.Tanh(), nn.Linear(4, CLASSES))


def jitter(x: Tensor, generator: torch.Generator) -> Tensor:
    return x + torch.randn(x.shape, generator=generator)


def dataset(augment: bool = False, diverging: int | None = None) -> FederatedDataset:
    draws = stream(0, "examples")
    parts = [
        (
            torch.randn(n, FEATURES, generator=draws),
            torch.randint(CLASSES, (n,), generator=draws),
        )
        for n in SIZES
    ]
    if diverging is not None:
        parts[diverging][0].fill_(torch.inf)
    return FederatedDataset(
        load=parts.__getitem__,
        num_clients=len(SIZES),
        num_examples=torch.tensor(SIZES),
        augment=jitter if augment else None,
    )


def assert_same(found: RoundUpdates, expected: RoundUpdates, exact: bool) -> None:
    assert found.clients.tolist() == expected.clients.tolist()
    assert found.num_steps.tolist() == expected.num_steps.tolist()
    assert found.num_examples.tolist() == expected.num_examples.tolist()
    assert found.refused == expected.refused
    assert found.losses.keys() == expected.losses.keys()
    assert found.buffers.keys() == expected.buffers.keys()
    if exact:
        assert torch.equal(found.deltas, expected.deltas)
        assert found.scale == expected.scale
        assert found.losses == expected.losses
        assert found.largest_entries.values == expected.largest_entries.values
        for client, buffers in expected.buffers.items():
            for name, buffer in buffers.items():
                assert torch.equal(found.buffers[client][name], buffer)
                assert found.buffers[client][name].dtype == buffer.dtype
    else:
        torch.testing.assert_close(found.deltas, expected.deltas, rtol=1e-4, atol=1e-6)
        assert found.scale == pytest.approx(expected.scale, rel=1e-6)
        assert found.losses == pytest.approx(expected.losses, rel=1e-5)


def broadcast_of(model: FlatModel, corrected: bool = False) -> Broadcast:
    draws = stream(3, "broadcast")
    corrections = torch.randn(len(SIZES), model.dim, generator=draws) if corrected else None
    # More clients were asked than answer.
    return Broadcast(7, torch.arange(len(SIZES)), model.vector(), corrections, model.buffers())


def plain(
    data: FederatedDataset, module: nn.Module, sgd: LocalSGD, loss: Loss = cross_entropy
) -> SequentialTrainer:
    return SequentialTrainer(data, FlatModel(module), loss, sgd, seed=5)


EPOCHS = LocalSGD(lr=0.1, batch_size=4, epochs=2)
SETTINGS = [
    EPOCHS,
    LocalSGD(lr=0.1, batch_size=4, steps=5),
    LocalSGD(lr=0.1, batch_size=50, epochs=3, momentum=0.9, weight_decay=0.1),
    LocalSGD(lr=0.1, batch_size=3, epochs=1, clip_norm=0.5, schedule=Exponential(0.9)),
    LocalSGD(lr=0.1, batch_size=1, epochs=2, step_decay=0.8, momentum=0.5),
]


@pytest.mark.parametrize("sgd", SETTINGS, ids=str)
@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("augment", [False, True])
def test_vectorised_is_the_plain_loop(sgd: LocalSGD, corrected: bool, augment: bool) -> None:
    reference = plain(dataset(augment), perceptron(), sgd)
    sent = broadcast_of(reference.model, corrected)
    fast = VectorisedTrainer(
        reference.dataset, reference.model, reference.loss, sgd, reference.seed
    )
    for round_ in (0, 3):
        expected = reference.train(sent, CLIENTS, round_)
        assert_same(fast.train(sent, CLIENTS, round_), expected, exact=False)


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("module", [perceptron, Counting])
def test_parallel_is_the_plain_loop_to_the_last_bit(
    workers: int, module: Callable[[], nn.Module]
) -> None:
    dropping = nn.Sequential(nn.Dropout(0.3), module())  # draws while it trains
    reference = plain(dataset(augment=True, diverging=2), dropping, EPOCHS)
    with ParallelTrainer(reference, workers) as parallel:
        for corrected in (False, True):
            sent = broadcast_of(reference.model, corrected)
            for clients in (CLIENTS[:1], CLIENTS, CLIENTS.flip(0)):  # the cohort grows once
                expected = reference.train(sent, clients, 2)
                assert_same(parallel.train(sent, clients, 2), expected, exact=True)
    assert expected.refused.keys() == {2}


def test_updates_of_a_round_stay_when_the_next_is_trained() -> None:
    reference = plain(dataset(), perceptron(), EPOCHS)
    sent = broadcast_of(reference.model)
    with ParallelTrainer(reference, 1) as parallel:
        first = parallel.train(sent, CLIENTS, 0)
        before = first.deltas.clone()
        parallel.train(sent, CLIENTS, 1)
    assert torch.equal(first.deltas, before)


def test_nobody_answers() -> None:
    reference = plain(dataset(), perceptron(), EPOCHS)
    sent, nobody = broadcast_of(reference.model), torch.empty(0, dtype=torch.int64)
    expected = reference.train(sent, nobody, 0)
    with ParallelTrainer(reference, 1) as parallel:
        assert_same(parallel.train(sent, nobody, 0), expected, exact=True)
    fast = VectorisedTrainer(reference.dataset, reference.model, cross_entropy, EPOCHS, 5)
    assert_same(fast.train(sent, nobody, 0), expected, exact=True)


def test_a_diverging_client_leaves_the_others_of_its_batch_alone() -> None:
    reference = plain(dataset(diverging=0), perceptron(), EPOCHS, loss=squares)
    sent = broadcast_of(reference.model)
    fast = VectorisedTrainer(reference.dataset, reference.model, squares, EPOCHS, 5)
    expected = reference.train(sent, CLIENTS, 0)
    assert expected.refused.keys() == {0}
    assert_same(fast.train(sent, CLIENTS, 0), expected, exact=False)


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return mse_loss(outputs, targets.unsqueeze(-1).expand_as(outputs).float())


def test_vectorised_refuses_what_it_cannot_get_right() -> None:
    for module in (nn.Sequential(nn.Dropout(0.5), perceptron()), Counting()):
        model = FlatModel(module)
        trainer = VectorisedTrainer(dataset(), model, cross_entropy, EPOCHS, 0)
        with pytest.raises(ValueError, match=r'trainer="parallel" takes any model'):
            trainer.train(broadcast_of(model), CLIENTS, 0)


def test_vectorised_takes_targets_with_several_numbers() -> None:
    """A class for each of two positions: cross_entropy is then the mean over both."""
    draws = stream(1, "sequences")
    parts = [
        (torch.randn(n, FEATURES, generator=draws), torch.randint(3, (n, 2), generator=draws))
        for n in SIZES
    ]
    data = FederatedDataset(load=parts.__getitem__, num_clients=len(SIZES))
    module = nn.Sequential(nn.Linear(FEATURES, 6), nn.Unflatten(1, (3, 2)))
    reference = plain(data, module, EPOCHS)
    sent = broadcast_of(reference.model)
    fast = VectorisedTrainer(data, reference.model, cross_entropy, EPOCHS, 5)
    expected = reference.train(sent, CLIENTS, 1)
    assert_same(fast.train(sent, CLIENTS, 1), expected, exact=False)


def summed(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets, reduction="sum")


def by_class(outputs: Tensor, targets: Tensor) -> Tensor:
    """Divides by the weights of the targets there are: no mean over examples."""
    return cross_entropy(outputs, targets, weight=torch.arange(1.0, outputs.shape[1] + 1))


def but_some(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets, ignore_index=1)


@pytest.mark.parametrize("loss", [squares, summed, by_class, but_some])
@pytest.mark.parametrize("sgd", SETTINGS[:2], ids=str)
def test_vectorised_takes_any_loss_of_a_batch(loss: Loss, sgd: LocalSGD) -> None:
    reference = plain(dataset(), perceptron(), sgd, loss)
    sent = broadcast_of(reference.model)
    fast = VectorisedTrainer(reference.dataset, reference.model, loss, sgd, 5)
    expected = reference.train(sent, CLIENTS, 0)
    assert_same(fast.train(sent, CLIENTS, 0), expected, exact=False)


class Tempered(nn.Module):
    """A number of its own, and a parameter that nothing depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = perceptron()
        self.temperature = nn.Parameter(torch.tensor(2.0))
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.inner(x) / self.temperature
        return logits


def test_vectorised_takes_numbers_and_unused_parameters() -> None:
    reference = plain(dataset(), Tempered(), EPOCHS)
    sent = broadcast_of(reference.model)
    fast = VectorisedTrainer(reference.dataset, reference.model, cross_entropy, EPOCHS, 5)
    expected = reference.train(sent, CLIENTS, 0)
    assert_same(fast.train(sent, CLIENTS, 0), expected, exact=False)


def test_vectorised_refuses_clients_of_different_shapes() -> None:
    parts = [(torch.zeros(4, width), torch.zeros(4, dtype=torch.int64)) for width in (3, 5)]
    data = FederatedDataset(load=parts.__getitem__, num_clients=2)
    model = FlatModel(nn.Linear(3, 2))
    trainer = VectorisedTrainer(data, model, cross_entropy, EPOCHS, 0)
    with pytest.raises(ValueError, match=r"\(3,\) and \(5,\), which cannot be trained at once"):
        trainer.train(Broadcast(0, torch.arange(2), model.vector(), None), torch.arange(2), 0)
