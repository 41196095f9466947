"""What the server refuses from the algorithm and the optimiser, and whom it names."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedvarp import (
    Aggregator,
    FedAvg,
    FedVARP,
    LocalSGD,
    MemoryTable,
    RoundUpdates,
    Server,
    ServerOptimizer,
    ServerSGD,
    simulate,
)
from fedvarp.data import digits
from fedvarp.models import LogisticRegression
from fedvarp.runs.directory import RunDirectory
from fedvarp.server import StepError

D = 3


def updates_of(deltas: Tensor, weights: Tensor | None = None) -> RoundUpdates:
    ones = torch.ones(len(deltas), dtype=torch.int64)
    return RoundUpdates(torch.arange(len(deltas)), deltas, ones, ones, 1.0, weights)


class Returning(Aggregator):
    """Returns whatever it was told to, with replies or without."""

    def __init__(self, v: Any) -> None:
        self.v = v

    def aggregate(self, updates: RoundUpdates) -> Tensor:
        return self.v  # type: ignore[no-any-return]

    def without_replies(self) -> Tensor | None:
        return self.v  # type: ignore[no-any-return]


class Moving(ServerOptimizer):
    """Does to w whatever it was told to."""

    def __init__(self, move: Callable[[Tensor], object]) -> None:
        self.move = move

    def step(self, w: Tensor, v: Tensor, scale: float) -> None:
        self.move(w)

    def describe(self) -> Mapping[str, object]:
        return {"optimizer": "moving"}


WRONG = {
    "none": (None, "NoneType.*return"),
    "number": (1.5, "float"),
    "list": ([0.0] * D, "list"),
    "too short": (torch.ones(1), r"shape \(1,\)"),
    "too long": (torch.ones(D + 1), r"shape \(4,\)"),
    "matrix": (torch.ones(2, D), r"shape \(2, 3\)"),
    "double": (torch.ones(D, dtype=torch.float64), "float64"),
    "integers": (torch.ones(D, dtype=torch.int64), "int64"),
    "nan": (torch.tensor([0.0, math.nan, 0.0]), "NaN or infinity"),
    "infinities that cancel": (torch.tensor([math.inf, -math.inf, 0.0]), "NaN or infinity"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_direction_is_refused_before_the_model_moves(name: str) -> None:
    v, said = WRONG[name]
    server = Server(torch.zeros(D), Returning(v), ServerSGD())
    with pytest.raises(StepError, match=rf"Returning\.aggregate returned.*{said}.*checkpoint"):
        server.receive(updates_of(torch.ones(2, D)))
    assert torch.equal(server.w, torch.zeros(D))
    assert server.round == 0


@pytest.mark.parametrize("name", sorted(WRONG.keys() - {"none"}))
def test_so_is_one_of_a_round_without_replies(name: str) -> None:
    v, said = WRONG[name]
    server = Server(torch.zeros(D), Returning(v), ServerSGD())
    nobody = updates_of(torch.ones(0, D), weights=torch.ones(0, dtype=torch.float64))
    with pytest.raises(StepError, match=rf"Returning\.without_replies returned.*{said}"):
        server.receive(nobody)
    assert torch.equal(server.w, torch.zeros(D))


def test_no_direction_without_replies_is_no_fault() -> None:
    server = Server(torch.zeros(D), Returning(None), ServerSGD())
    nobody = updates_of(torch.ones(0, D), weights=torch.ones(0, dtype=torch.float64))
    assert not server.receive(nobody).stepped


def test_finite_numbers_whose_sum_is_not_are_taken() -> None:
    """Three times 2e38 is beyond float32, each of them is not."""
    server = Server(torch.zeros(D), Returning(torch.full((D,), 2e38)), ServerSGD())
    server.receive(updates_of(torch.ones(2, D)))
    assert torch.equal(server.w, torch.full((D,), -2e38))


@pytest.mark.parametrize(
    ("move", "said"),
    [
        (lambda w: w.fill_(math.nan), "NaN or infinite"),
        (lambda w: w[0].div_(0.0), "NaN or infinite"),
        (lambda w: w.resize_(1), r"from \(3,\) to \(1,\)"),
        (lambda w: w.unsqueeze_(0), r"from \(3,\) to \(1, 3\)"),
    ],
)
def test_an_optimizer_that_breaks_the_model_is_named(
    move: Callable[[Tensor], object], said: str
) -> None:
    server = Server(torch.ones(D), FedAvg(), Moving(move))
    with pytest.raises(StepError, match=rf"Moving\.step.*{said}"):
        server.receive(updates_of(torch.ones(2, D)))
    assert server.round == 0


def test_a_server_rate_that_overflows_is_not_blamed_on_clients() -> None:
    """w = −3e38 after a round and −∞ after the next; the replies to it are NaN."""
    server = Server(torch.zeros(D), FedAvg(), ServerSGD(3e38))
    for _ in range(2):
        server.receive(updates_of(torch.ones(2, D)))
    with pytest.raises(StepError, match=r"ServerSGD\.step.*rate is too high"):
        server.receive(updates_of(torch.full((2, D), math.nan)))


class NaNFromRoundThree(FedVARP):
    """FedVARP with a mistake that shows in its third round."""

    rounds = 0

    def aggregate(self, updates: RoundUpdates) -> Tensor:
        self.rounds += 1
        v = super().aggregate(updates)
        return v * math.nan if self.rounds == 3 else v


def test_the_run_ends_and_its_last_checkpoint_is_whole(tmp_path: Path) -> None:
    model = LogisticRegression(64, 10)
    before = [parameter.tolist() for parameter in model.parameters()]
    with pytest.raises(StepError, match="NaNFromRoundThree"):
        simulate(
            digits(),
            model,
            algorithm=lambda table: NaNFromRoundThree(MemoryTable(table.num_clients, table.dim)),
            local_sgd=LocalSGD(lr=0.1, batch_size=10, epochs=1),
            clients_per_round=2,
            rounds=5,
            recording=str(tmp_path / "run"),
        )
    assert RunDirectory(tmp_path / "run").rounds_done == 2
    assert [parameter.tolist() for parameter in model.parameters()] == before
