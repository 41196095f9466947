"""Cohorts drawn ahead are those that would have been drawn when they were due."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from fedvarp import Broadcast, RoundUpdates, stream
from fedvarp.clients import Cohort, UniformSampler, WeightedSampler
from fedvarp.clients.cohorts import ClientSampler
from fedvarp.data import from_partition
from fedvarp.simulation.cohorts_ahead import CohortsAhead
from fedvarp.trainers import ClientTrainer, VectorisedTrainer
from small_federation import bits, run


class Listening(ClientTrainer):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[dict[int, list[int]]] = []

    def foretell(self, cohorts: Mapping[int, Tensor]) -> None:
        self.told.append({t: clients.tolist() for t, clients in cohorts.items()})

    def train(self, broadcast: Broadcast, clients: Tensor, round: int) -> RoundUpdates:
        raise NotImplementedError


class Somebodys(UniformSampler):
    """What it answers may depend on anything."""


class Everybody:
    """An availability of somebody's own."""

    def online(self, seed: int, round: int, num_clients: int) -> Tensor:
        return torch.ones(num_clients, dtype=torch.bool)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("first", [0, 7])
def test_every_round_has_its_own_cohort_and_the_trainer_knows_before(
    dropout: float, first: int
) -> None:
    sampler, trainer = UniformSampler(50, 4, seed=3, dropout=dropout), Listening()
    cohorts = CohortsAhead(sampler, 50, 40, trainer)
    for t in range(first, 40):
        found, expected = cohorts.of(t), sampler.cohort(t)
        assert torch.equal(found.clients, expected.clients)
        assert torch.equal(found.answers, expected.answers)
        assert trainer.told[-1][t] == expected.answering.clients.tolist()
    rounds = [t for block in trainer.told for t in block]
    assert rounds == list(range(first, 40))  # each once, and none beyond the last


@pytest.mark.parametrize(
    "sampler",
    [
        Somebodys(500, 4, seed=3),
        UniformSampler(500, 4, seed=3, availability=Everybody()),
        UniformSampler(500, 4, seed=3, dropout=torch.zeros(500)),
        UniformSampler(500, 400, seed=3),
        WeightedSampler(sizes=[1.0] * 500, clients_per_round=4, seed=3),
    ],
    ids=["own", "availability", "a tensor of dropouts", "large", "weighted"],
)
def test_others_are_asked_for_a_round_when_it_is_due(
    sampler: ClientSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, drawn = [], type(sampler).cohort

    def counted(self: Any, round: int) -> Cohort:
        asked.append(round)
        return drawn(self, round)

    monkeypatch.setattr(type(sampler), "cohort", counted)
    trainer = Listening()
    cohorts = CohortsAhead(sampler, 500, 40, trainer)
    for t in range(3):
        cohorts.of(t)
        assert asked == list(range(t + 1))
    assert not trainer.told


def test_a_run_is_the_same_round_by_round_or_sixteen_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[list[int]] = []
    foretell = VectorisedTrainer.foretell

    def noted(self: VectorisedTrainer, cohorts: Mapping[int, Tensor]) -> None:
        told.append(list(cohorts))
        foretell(self, cohorts)

    monkeypatch.setattr(VectorisedTrainer, "foretell", noted)
    x, y = torch.randn(50, 4, generator=stream(0, "examples")), torch.arange(50) % 3
    data = from_partition(x, y, torch.split(torch.arange(50), 10), num_classes=3)
    ahead = run(data, trainer="vectorised", rounds=20)
    assert told == [list(range(16)), list(range(16, 20))]
    one_by_one = run(data, trainer="vectorised", rounds=20, sampler=Somebodys(5, 3, seed=0))
    assert len(told) == 2
    assert bits(ahead) == bits(one_by_one)
