"""The clients of a round as one more axis: the plain loop's updates, to float tolerance."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from fedvarp import Broadcast, LocalSGD, stream
from fedvarp.clients import local_training
from fedvarp.clients.local_training import Loss
from fedvarp.clients.schedules import Exponential
from fedvarp.data import FederatedDataset, from_partition
from fedvarp.data.federated_dataset import Examples, Gathered
from fedvarp.errors import UnknownClientError
from fedvarp.trainers import SequentialTrainer, VectorisedTrainer
from fedvarp.trainers.cohort_plan import CohortPlans
from small_federation import (
    EVERYONE,
    FEATURES,
    SGD,
    SIZES,
    Counting,
    StepCounter,
    assert_same_updates,
    broadcast_of,
    dataset,
    linear,
    perceptron,
    plain,
    seeded,
)

CLIENTS = torch.tensor([4, 0, 2, 1])  # neither all of them, nor in order


def vectorised(reference: SequentialTrainer) -> VectorisedTrainer:
    """Trains what the plain loop trains."""
    return VectorisedTrainer(
        reference.dataset, reference.model, reference.loss, reference.local_sgd, reference.seed
    )


def assert_it_is_the_plain_loop(
    reference: SequentialTrainer, corrected: bool = False, round: int = 0
) -> None:
    sent, trainer = broadcast_of(reference.model, corrected), vectorised(reference)
    for t in range(round, round + 5):  # often enough for steps to be recorded and replayed
        expected = reference.train(sent, CLIENTS, t)
        assert_same_updates(trainer.train(sent, CLIENTS, t), expected, exact=False)


SETTINGS = [
    SGD,
    LocalSGD(lr=0.1, batch_size=4, steps=5),
    LocalSGD(lr=0.1, batch_size=50, epochs=3, momentum=0.9, weight_decay=0.1),
    LocalSGD(lr=0.1, batch_size=3, epochs=1, clip_norm=0.5, schedule=Exponential(decay=0.9)),
    LocalSGD(lr=0.1, batch_size=1, epochs=2, step_decay=0.8, momentum=0.5),
]


@pytest.mark.parametrize("sgd", SETTINGS, ids=str)
@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("augment", [False, True])
def test_the_plain_loop_with_every_setting(sgd: LocalSGD, corrected: bool, augment: bool) -> None:
    for round in (0, 3):
        reference = plain(dataset(augment=augment), perceptron(), sgd)
        assert_it_is_the_plain_loop(reference, corrected, round)


@pytest.mark.parametrize("batch_size", [4, 5, 10])
def test_clients_that_are_rows_of_one_tensor(batch_size: int) -> None:
    """One gather for all, but whatever prepares a client's rows sees that client's alone."""
    draws = stream(0, "rows")
    x, y = torch.randn(40, FEATURES, generator=draws), torch.randint(3, (40,), generator=draws)
    unequal = torch.split(torch.randperm(40, generator=draws), [3, 17, 9, 10, 1])
    equal = torch.split(torch.randperm(40, generator=draws), 8)
    for rows, clients in ((unequal, CLIENTS), (equal, CLIENTS), (equal, EVERYONE)):
        data = from_partition(x, y, rows, prepare=lambda own: own - own.mean(0))
        reference = plain(data, sgd=LocalSGD(lr=0.1, batch_size=batch_size, epochs=1))
        sent, trainer = broadcast_of(reference.model), vectorised(reference)
        for t in range(4):
            expected = reference.train(sent, clients, t)
            assert_same_updates(trainer.train(sent, clients, t), expected, exact=False)


def clients_alike(module: nn.Module, sgd: LocalSGD) -> SequentialTrainer:
    """Five clients with eight examples each, whose batches are all of one size."""
    return plain(rows([8] * 5), module, sgd.model_copy(update={"batch_size": 4}))


@pytest.mark.parametrize("sgd", SETTINGS, ids=str)
@pytest.mark.parametrize("corrected", [False, True])
def test_whole_rounds_of_clients_that_are_alike(
    sgd: LocalSGD, corrected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From some round on a round is one recording, in which Python takes no steps."""
    reference = clients_alike(perceptron(), sgd)
    sent = dataclasses.replace(broadcast_of(reference.model, corrected), proximal=0.0)
    expected = [reference.train(sent, CLIENTS, t) for t in range(10)]
    steps, direction = [], local_training.direction

    def counted(*arguments: Any) -> Tensor:
        steps.append(arguments)
        return direction(*arguments)

    monkeypatch.setattr(local_training, "direction", counted)
    trainer, found, taken = vectorised(reference), [], []
    for t in range(10):
        found.append(trainer.train(sent, CLIENTS, t))
        taken.append(len(steps))
    for of_round, as_expected in zip(found, expected, strict=True):  # none was written over
        assert_same_updates(of_round, as_expected, exact=False)
    assert 0 < taken[6] == taken[-1]


def test_a_layer_that_is_swapped_changes_whole_rounds_too() -> None:
    module = nn.Sequential(nn.Linear(FEATURES, 4), nn.Tanh(), nn.Linear(4, 3))
    reference = clients_alike(module, SGD)
    sent, trainer = broadcast_of(reference.model), vectorised(reference)
    for t in range(20):
        module[1] = nn.Tanh() if t < 10 else nn.ReLU()
        expected = reference.train(sent, CLIENTS, t)
        assert_same_updates(trainer.train(sent, CLIENTS, t), expected, exact=False)


def rows(sizes: list[int], **about: Any) -> FederatedDataset:
    """Clients that are rows of one tensor."""
    draws = stream(0, "rows")
    x, y = torch.randn(40, FEATURES, generator=draws), torch.randint(3, (40,), generator=draws)
    return from_partition(x, y, torch.split(torch.randperm(40, generator=draws), sizes), **about)


class LooksAtThem(FederatedDataset):
    """What it gathers may depend on when it is asked."""

    def gathered(self, clients: Sequence[int]) -> Gathered | None:
        return super().gathered(clients)


class OneByOne(FederatedDataset):
    """Has each client loaded, so that its own `client` is asked."""

    def gathered(self, clients: Sequence[int]) -> Gathered | None:
        return None


class Doubled(FederatedDataset):
    """Changes what it has loaded."""

    def client(self, i: int) -> Examples:
        x, y = super().client(i)
        return 2 * x, y


class Passing:
    """Changes what another loads, and passes on whatever else it is asked for."""

    def __init__(self, load: Callable[[int], Examples]) -> None:
        self._load = load

    def __call__(self, i: int) -> Examples:
        x, y = self._load(i)
        return 2 * x, y

    def __getattr__(self, name: str) -> Any:
        return getattr(self._load, name)


def of_kind(kind: type[FederatedDataset], data: FederatedDataset) -> FederatedDataset:
    return kind(**{part.name: getattr(data, part.name) for part in dataclasses.fields(data)})


def jitter(x: Tensor, generator: torch.Generator) -> Tensor:
    return x + torch.rand(x.shape, generator=generator)


@pytest.mark.parametrize(
    ("data", "ahead"),
    [
        (rows([4, 17, 8, 8, 3]), True),
        (rows([8] * 5), True),
        (dataclasses.replace(rows([8] * 5), augment=jitter), True),
        (rows([8] * 5, prepare=torch.sigmoid), False),  # may depend on when it is called
        (dataclasses.replace(rows([8] * 5), num_examples=None), False),
        (dataset(), False),  # loaded one by one
        (of_kind(LooksAtThem, rows([8] * 5)), False),
        (of_kind(OneByOne, rows([8] * 5)), False),
    ],
    ids=[
        *("unequal", "alike", "augmented", "prepared", "of unknown sizes", "loaded"),
        *("gathered by a method of its own", "not gathered"),
    ],
)
@pytest.mark.parametrize("sgd", SETTINGS[:3], ids=str)
def test_rounds_that_are_foretold_read_the_same_batches(
    data: FederatedDataset, ahead: bool, sgd: LocalSGD, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit; one that was foretold otherwise is trained as it is asked for."""
    reference = plain(data, perceptron(), sgd)
    sent, untold, told = broadcast_of(reference.model), vectorised(reference), vectorised(reference)
    nobody = torch.empty(0, dtype=torch.int64)
    asked = [CLIENTS, EVERYONE, nobody, torch.tensor([3, 2]), EVERYONE, CLIENTS]
    expected = [untold.train(sent, clients, t) for t, clients in enumerate(asked)]

    draws: list[object] = []
    orders = local_training.orders

    def counted(*given: Any) -> Tensor:
        draws.append(given)
        return orders(*given)

    monkeypatch.setattr(local_training, "orders", counted)
    told.foretell(dict(enumerate(asked)) | {4: CLIENTS})
    assert bool(draws) == ahead
    for t, clients in enumerate(asked):
        draws.clear()
        assert_same_updates(told.train(sent, clients, t), expected[t], exact=True)
        assert bool(draws) == (len(clients) > 0 and (t == 4 or not ahead))
    told.foretell({6: CLIENTS})
    draws.clear()
    told.train(sent, CLIENTS, 5)
    assert draws  # what was planned before is forgotten


@pytest.mark.parametrize("sizes", [[5, 5], [2, 2000], [1, 300_000]])
def test_large_rounds_are_planned_when_they_are_due(sizes: list[int]) -> None:
    """Places that padding takes count too."""
    x, y = torch.zeros(sum(sizes), 1), torch.zeros(sum(sizes), dtype=torch.int64)
    data = from_partition(x, y, torch.split(torch.arange(len(x)), sizes))
    plans = CohortPlans(data, LocalSGD(lr=0.1, batch_size=1, epochs=1), seed=0)
    plans.foretell({t: [0, 1] for t in range(100)})
    assert (plans.of(3, [0, 1]) is plans.of(3, [0, 1])) == (sizes == [5, 5])


def test_a_client_there_is_not_is_refused_when_its_round_is_due() -> None:
    reference = plain(rows([8] * 5), perceptron(), SGD)
    sent, trainer = broadcast_of(reference.model), vectorised(reference)
    trainer.foretell({0: CLIENTS, 1: torch.tensor([0, 5])})
    trainer.train(sent, CLIENTS, 0)
    with pytest.raises(UnknownClientError, match="There is no client 5: this data set has 5"):
        trainer.train(sent, torch.tensor([0, 5]), 1)


def test_what_is_changed_in_the_examples_between_two_rounds_is_read() -> None:
    x, y = torch.ones(40, FEATURES), torch.arange(40) % 3
    data = from_partition(x, y, torch.split(torch.arange(40), 8))
    reference = plain(data, perceptron(), SGD)
    sent, trainer = broadcast_of(reference.model), vectorised(reference)
    trainer.foretell({0: CLIENTS, 1: CLIENTS})
    for t in range(2):
        x.mul_(2)
        expected = reference.train(sent, CLIENTS, t)
        assert_same_updates(trainer.train(sent, CLIENTS, t), expected, exact=False)


@pytest.mark.parametrize(
    "data",
    [
        of_kind(Doubled, rows([4, 17, 8, 8, 3])),
        dataclasses.replace(rows([8] * 5), load=Passing(rows([8] * 5).load)),
    ],
    ids=["client", "load"],
)
def test_somebodys_own_way_to_load_a_client_is_asked(data: FederatedDataset) -> None:
    reference = plain(data, perceptron(), SGD)
    sent, trainer = broadcast_of(reference.model), vectorised(reference)
    trainer.foretell({0: CLIENTS})
    expected = reference.train(sent, CLIENTS, 0)
    assert_same_updates(trainer.train(sent, CLIENTS, 0), expected, exact=False)


def test_nobody_answers() -> None:
    reference = plain()
    sent, nobody = broadcast_of(reference.model), torch.empty(0, dtype=torch.int64)
    found = vectorised(reference).train(sent, nobody, 0)
    assert_same_updates(found, reference.train(sent, nobody, 0), exact=True)


# Losses and targets


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return mse_loss(outputs, targets.unsqueeze(-1).expand_as(outputs).float())


def summed(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets, reduction="sum")


def by_class(outputs: Tensor, targets: Tensor) -> Tensor:
    """Divides by the weights of the targets there are: no mean over examples."""
    return cross_entropy(outputs, targets, weight=torch.arange(1.0, outputs.shape[1] + 1))


def but_some(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets, ignore_index=1)


@pytest.mark.parametrize("loss", [squares, summed, by_class, but_some])
@pytest.mark.parametrize("sgd", SETTINGS[:2], ids=str)
def test_any_loss_of_a_batch(loss: Loss, sgd: LocalSGD) -> None:
    assert_it_is_the_plain_loop(plain(dataset(), perceptron(), sgd, loss))


def test_targets_with_several_numbers() -> None:
    """A class for each of two positions: cross_entropy is then the mean over both."""
    draws = stream(1, "sequences")
    parts = [
        (torch.randn(n, FEATURES, generator=draws), torch.randint(3, (n, 2), generator=draws))
        for n in SIZES
    ]
    data = FederatedDataset(load=parts.__getitem__, num_clients=len(SIZES))
    module = nn.Sequential(nn.Linear(FEATURES, 6), nn.Unflatten(1, (3, 2)))
    assert_it_is_the_plain_loop(plain(data, module), round=1)


@pytest.mark.parametrize("classes", [3, 40])
@pytest.mark.parametrize("certain", [True, False])
def test_few_classes_and_many(classes: int, certain: bool) -> None:
    """Labels, or a probability of each class; few classes are taken in another order."""
    draws = stream(1, "classes")
    parts = []
    for n in SIZES:
        x, y = torch.randn(n, FEATURES, generator=draws), torch.rand(n, classes, generator=draws)
        parts.append((x, y.argmax(1) if certain else y / y.sum(1, keepdim=True)))
    data = FederatedDataset(load=parts.__getitem__, num_clients=len(SIZES))
    module = seeded(lambda: nn.Linear(FEATURES, classes))
    for sgd in SETTINGS[:2]:  # all batches whole, and not
        assert_it_is_the_plain_loop(plain(data, module, sgd))


def test_targets_that_are_left_out_of_the_mean_are_refused() -> None:
    data = dataset()
    data.client(4)[1][0] = -100  # not in the batch that the loss is tried on, client 2's
    reference = plain(data)
    with pytest.raises(ValueError, match=r"targets are -100.*parallel"):
        vectorised(reference).train(broadcast_of(reference.model), EVERYONE, 0)


# Clients that diverge


def test_a_diverging_client_leaves_the_others_of_its_batch_alone() -> None:
    reference = plain(dataset(diverging=0), perceptron(), loss=squares)
    assert reference.train(broadcast_of(reference.model), CLIENTS, 0).refused.keys() == {0}
    assert_it_is_the_plain_loop(reference)


@pytest.mark.parametrize("diverging", range(len(SIZES)))
def test_no_diverging_client_spoils_the_padding_of_others(diverging: int) -> None:
    reference = plain(dataset(diverging=diverging))
    found = vectorised(reference).train(broadcast_of(reference.model), EVERYONE, 0)
    assert found.refused.keys() == {diverging}


# Models


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


def test_numbers_and_unused_parameters() -> None:
    assert_it_is_the_plain_loop(plain(module=Tempered()))


class Shifted(nn.Module):
    """Reads a buffer and leaves it as it is."""

    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = linear()
        self.register_buffer("shift", torch.zeros(FEATURES))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.linear(x - self.shift)
        return logits


def test_it_trains_with_the_buffers_it_was_sent() -> None:
    reference = plain(module=seeded(Shifted))
    trainer = vectorised(reference)
    for t in range(5):
        buffers = {"shift": t * torch.arange(float(FEATURES))}
        sent = dataclasses.replace(broadcast_of(reference.model), buffers=buffers)
        found = trainer.train(sent, EVERYONE, t)
        assert_same_updates(found, reference.train(sent, EVERYONE, t), exact=False)
        assert found.buffers.keys() == set(range(len(SIZES)))
        assert all(torch.equal(b["shift"], buffers["shift"]) for b in found.buffers.values())


class Sharpened(nn.Module):
    """Divides by a number that a callback may change between rounds."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = perceptron()
        self.temperature = 1.0

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.inner(x) / self.temperature
        return logits


def test_attributes_that_change_between_rounds_count() -> None:
    module = Sharpened()
    reference = plain(module=module)
    sent, trainer = broadcast_of(reference.model), vectorised(reference)
    for t in range(8):
        module.temperature = 1.0 + t // 4
        expected = reference.train(sent, CLIENTS, t)
        assert_same_updates(trainer.train(sent, CLIENTS, t), expected, exact=False)


def test_buffers_and_tensors_that_are_replaced_between_rounds_count() -> None:
    module = seeded(Shifted)
    module.scale = torch.ones(FEATURES)
    module.register_forward_pre_hook(lambda module, inputs: (inputs[0] * module.scale,))
    reference = plain(module=module)
    sent = dataclasses.replace(broadcast_of(reference.model), buffers={})
    trainer = vectorised(reference)
    for t in range(12):
        if t % 4 == 0:
            module.shift = torch.full((FEATURES,), float(t))
            module.scale = torch.full((FEATURES,), 1.0 + t)
        expected = reference.train(sent, CLIENTS, t)
        assert_same_updates(trainer.train(sent, CLIENTS, t), expected, exact=False)


class HalfFrozen(nn.Module):
    """Keeps a part in evaluation mode while the rest trains, as is usual for pretrained ones."""

    def __init__(self) -> None:
        super().__init__()
        self.part, self.inner = nn.Dropout(0.5), perceptron()

    def train(self, mode: bool = True) -> HalfFrozen:
        super().train(mode)
        self.part.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.inner(self.part(x))
        return logits


def test_a_module_that_says_itself_what_training_is_is_asked() -> None:
    assert_it_is_the_plain_loop(plain(module=HalfFrozen()))


def test_the_padding_of_an_embedding_is_not_trained_by_mistake() -> None:
    module = nn.Sequential(nn.Embedding(5, 3, padding_idx=0), nn.Flatten())
    with pytest.raises(ValueError, match=r"padding_idx.*parallel"):
        vectorised(plain(module=module))


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (lambda: nn.Sequential(nn.Dropout(0.5), perceptron()), "dropout.*parallel"),
        (Counting, "buffers.*parallel"),
        (StepCounter, "buffers count while it trains.*parallel"),
    ],
)
def test_models_that_draw_or_change_their_buffers_are_refused(
    module: Callable[[], nn.Module], message: str
) -> None:
    reference = plain(module=seeded(module))
    with pytest.raises(ValueError, match=message):
        vectorised(reference).train(broadcast_of(reference.model), CLIENTS, 0)


def test_clients_of_different_shapes_are_refused() -> None:
    parts = [(torch.zeros(4, width), torch.zeros(4, dtype=torch.int64)) for width in (3, 5)]
    data = FederatedDataset(load=parts.__getitem__, num_clients=2)
    trainer = vectorised(plain(data, nn.Linear(3, 2)))
    both = torch.arange(2)
    with pytest.raises(ValueError, match=r"different shapes, \(3,\) and \(5,\).*parallel"):
        trainer.train(Broadcast(0, both, trainer.model.vector(), None), both, 0)
