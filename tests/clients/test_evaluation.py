"""What an evaluation finds, and that it leaves nothing behind that training stumbles over."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from fedvarp import FlatModel
from fedvarp.clients import Evaluator
from fedvarp.clients.known_layers import are_dense
from fedvarp.data import FederatedDataset, digits, from_partition, from_tensors
from small_federation import CLASSES, FEATURES, dataset, linear, run, seeded


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


class Blurred(nn.Module):
    """Draws whenever it is called; if forked, without a trace in torch's generator."""

    def __init__(self, forked: bool) -> None:
        super().__init__()
        self.linear, self.forked = linear(), forked

    def forward(self, x: Tensor) -> Tensor:
        with torch.random.fork_rng(devices=[], enabled=self.forked):
            noise = torch.randn_like(x)
        logits: Tensor = self.linear(x + noise)
        return logits


@pytest.mark.parametrize("forked", [False, True])
def test_what_a_model_draws_is_keyed_and_leaves_torchs_generator_alone(forked: bool) -> None:
    model = FlatModel(seeded(lambda: Blurred(forked)))
    evaluator = Evaluator(dataset(), model, cross_entropy)
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        found.append(evaluator.evaluate(model.vector(), {}))
        assert torch.equal(torch.get_rng_state(), before)
    assert found[0] == found[1]


def evaluated(data: FederatedDataset, **settings: Any) -> dict[str, float]:
    features = data.client(0)[0].shape[1]
    model = FlatModel(seeded(lambda: nn.Linear(features, data.num_classes or CLASSES)))
    evaluator = Evaluator(data, model, cross_entropy, **settings)
    return evaluator.evaluate(model.vector(), {})


def test_with_unequal_clients_the_training_loss_is_given_over_examples_too() -> None:
    data = dataset()
    model = seeded(linear)
    losses = [cross_entropy(model(x), y).item() for x, y in map(data.client, range(5))]
    sizes = [len(data.client(i)[0]) for i in range(5)]
    found = evaluated(data)
    assert found["train_loss"] == pytest.approx(sum(losses) / 5)
    by_example = sum(n * loss for n, loss in zip(sizes, losses, strict=True)) / sum(sizes)
    assert found["train_loss_over_examples"] == pytest.approx(by_example)
    assert abs(by_example - found["train_loss"]) > 1e-3
    assert "train_loss_over_examples" not in evaluated(digits(num_clients=4, partition="iid"))


def test_with_unequal_weights_the_training_loss_is_given_over_clients_too() -> None:
    data = dataset()
    plain, weighted = evaluated(data), evaluated(data, client_weights=data.num_examples)
    assert weighted["train_loss"] == pytest.approx(plain["train_loss_over_examples"])
    assert weighted["train_loss_over_clients"] == pytest.approx(plain["train_loss"])
    assert "train_loss_over_clients" not in plain


def test_without_test_examples_the_validation_figures_stay() -> None:
    whole = evaluated(digits(), validation_share=0.25)
    found = evaluated(digits(), validation_share=0.25, num_test_examples=0)
    assert found == {name: whole[name] for name in whole if not name.startswith("test_")}
    assert "validation_loss" in found


def test_validation_examples_are_left_out_of_the_test_figures() -> None:
    """The means of both, weighted by their sizes, are the mean of all."""
    data = digits()
    assert data.test is not None
    whole, split = evaluated(data), evaluated(data, validation_share=0.25)
    n = len(data.test[0])
    held = round(0.25 * n)
    for figure in ("loss", "accuracy"):
        together = held * split[f"validation_{figure}"] + (n - held) * split[f"test_{figure}"]
        assert together / n == pytest.approx(whole[f"test_{figure}"])
    assert "validation_loss" not in whole


def test_validation_examples_are_the_same_for_every_seed() -> None:
    one, other = (evaluated(digits(), validation_share=0.5, seed=seed) for seed in (0, 1))
    assert one == other


SIZES = (3, 40, 1, 7, 90, 10, 2)


def unequal_clients(*shape: int, targets: tuple[int, ...] = ()) -> FederatedDataset:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(sum(SIZES), *shape, generator=draw)
    y = torch.randint(CLASSES, (sum(SIZES), *targets), generator=draw)
    rows = torch.split(torch.randperm(sum(SIZES), generator=draw), [*SIZES])
    return from_partition(x, y, rows, num_classes=CLASSES, test=(x[:30], y[:30]))


def evaluator_of(module: nn.Module, data: FederatedDataset, **settings: Any) -> Evaluator:
    return Evaluator(data, FlatModel(module), cross_entropy, batch_size=100, **settings)


def scores(evaluator: Evaluator) -> list[list[float]]:
    """All scores, which are to be the same to the bit however the parts are divided."""
    w = evaluator.model.vector()
    whole = evaluator.scores(w, {}, 0, evaluator.num_parts)
    for count in (1, 2, 3, 100):
        pieces = evaluator.pieces(count)
        assert len(pieces) <= count
        assert [row for piece in pieces for row in evaluator.scores(w, {}, *piece)] == whole
    return whole


def scores_one_by_one(evaluator: Evaluator) -> list[list[float]]:
    sizes_unknown = dataclasses.replace(evaluator.dataset, num_examples=None)
    return scores(dataclasses.replace(evaluator, dataset=sizes_unknown))


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, CLASSES))


def for_two_answers() -> nn.Module:
    """Outputs (n, classes, 2), for targets (n, 2)."""
    return nn.Sequential(nn.Linear(3, 2))


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> set[range]:
    """The groups that are scored at once."""
    noted: set[range] = set()
    scored = Evaluator._scores_at_once

    def noting(evaluator: Evaluator, group: range, device: torch.device) -> Any:
        found = scored(evaluator, group, device)
        if found is not None:
            noted.add(group)
        return found

    monkeypatch.setattr(Evaluator, "_scores_at_once", noting)
    return noted


@pytest.mark.parametrize(
    ("layers", "shape", "targets"),
    [(perceptron, (2, 3), ()), (for_two_answers, (CLASSES, 3), (2,))],
)
def test_small_clients_are_scored_at_once_as_one_by_one(
    layers: Callable[[], nn.Module],
    shape: tuple[int, ...],
    targets: tuple[int, ...],
    at_once: set[range],
) -> None:
    evaluator = evaluator_of(seeded(layers), unequal_clients(*shape, targets=targets))
    one_by_one = scores_one_by_one(evaluator)
    assert not at_once
    assert [row[0] for row in one_by_one] == [30, *SIZES]
    together = scores(evaluator)
    # Part 0 is the test set; client 4 leaves room in a batch of 100 for the 10 of client 5 alone.
    assert at_once == {range(1, 5), range(5, 7)}
    for expected, found in zip(one_by_one, together, strict=True):
        assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    ("layers", "shape"),
    [
        (lambda: nn.Sequential(nn.Conv1d(2, 1, 2), nn.Flatten(), nn.Linear(2, CLASSES)), (2, 3)),
        (lambda: nn.Sequential(perceptron(), nn.Dropout(0.5)), (2, 3)),
        (Caching, (FEATURES,)),
    ],
)
def test_models_that_are_not_known_to_be_dense_see_one_client_at_a_time(
    layers: Callable[[], nn.Module], shape: tuple[int, ...], at_once: set[range]
) -> None:
    found = scores(evaluator_of(layers(), unequal_clients(*shape)))
    assert [row[0] for row in found] == [30, *SIZES]
    assert not at_once


def test_clients_of_unlike_shapes_are_scored_one_by_one(at_once: set[range]) -> None:
    parts = [(torch.randn(4, n, 3), torch.randn(4, n, 1)) for n in (1, 2)]
    evaluator = Evaluator(from_tensors(parts), FlatModel(nn.Linear(3, 1)), mse_loss)
    assert [row[0] for row in scores(evaluator)] == [4, 4]
    assert not at_once


def test_inputs_that_are_single_numbers_are_scored_one_by_one(at_once: set[range]) -> None:
    parts = [(torch.arange(3.0), torch.zeros(3))] * 2
    model = FlatModel(nn.Linear(3, 3))  # takes a client's three numbers for one example
    assert len(scores(Evaluator(from_tensors(parts), model, mse_loss))) == 2
    assert not at_once


@pytest.mark.parametrize("per_client", [None, "all"])
def test_metrics_leave_the_other_figures_of_small_clients_as_they_are(per_client: Any) -> None:
    """To the bit, also where a product with three rows rounds otherwise than one with 300."""
    draw = torch.Generator().manual_seed(0)
    parts = [
        (torch.randn(3, 784, generator=draw), torch.randint(10, (3,), generator=draw))
        for _ in range(100)
    ]
    model = FlatModel(
        seeded(lambda: nn.Sequential(nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10)))
    )
    plain, measured = (
        Evaluator(
            from_tensors(parts, num_classes=10),
            model,
            cross_entropy,
            per_client=per_client,
            metrics=metrics,
        ).evaluate(model.vector(), {})
        for metrics in ({}, {"mean_output": lambda outputs, targets: outputs.mean()})
    )
    assert plain["train_loss"] == measured["train_loss"]
    assert {name: measured[name] for name in plain if name != "by_client"} == {
        name: value for name, value in plain.items() if name != "by_client"
    }


def test_rows_that_become_one_input_are_not_mixed_with_other_clients() -> None:
    assert not are_dense(nn.Sequential(nn.Flatten(0), nn.Linear(6, CLASSES)))
    assert are_dense(seeded(perceptron))
