"""A run is the content of what was passed: in comparisons, and when it is resumed."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedvarp import (
    Aggregator,
    ClusteredTable,
    ClusterFedVARP,
    FedAvg,
    FedVARP,
    MemoryTable,
    RoundUpdates,
    SimulationResult,
)
from fedvarp.algorithms.clipped import Clipped
from fedvarp.analysis.comparison import compare
from fedvarp.clients.cohorts import Cohort
from fedvarp.models import initialised
from fedvarp.runs.directory import RunDirectory
from fedvarp.runs.errors import RunError
from fedvarp.settings.problems import SettingsError
from fedvarp.tables.base import ClientTable
from small_federation import Changed, dataset, linear, plain, run

NUM_CLIENTS = dataset().num_clients
DIM = sum(p.numel() for p in linear().parameters())


class HalfTrust(FedVARP):
    """FedVARP that believes its rows by half, or as told."""

    def __init__(self, y: ClientTable, beta: float = 0.5) -> None:
        super().__init__(y)
        self.beta = beta  # type: ignore[misc]


class Scaled(Aggregator):
    def __init__(self, factor: float = 1.0) -> None:
        self.factor = factor

    def aggregate(self, updates: RoundUpdates) -> Tensor:
        return self.factor * updates.average(updates.deltas)


class ScaledAfterClipping(Clipped):
    """A subclass of ours with a setting of its own, and the describe() it inherits."""

    factor = 1.0

    def aggregate(self, updates: RoundUpdates) -> Tensor:
        return self.factor * super().aggregate(updates)


class HalfMean(MemoryTable):
    """A table of one's own."""

    portion = 0.5

    def mean(self) -> Tensor:
        return self.portion * super().mean()


def clipped(factor: float) -> Callable[[Any], Aggregator]:
    def make(table: Any) -> Aggregator:
        made = ScaledAfterClipping(FedAvg())
        made.factor = factor
        return made

    return make


def over_own_table(share: float) -> Callable[[Any], Aggregator]:
    def make(table: Any) -> Aggregator:
        rows = HalfMean(table.num_clients, table.dim)
        rows.portion = share
        return FedVARP(rows)

    return make


def stale(beta: float) -> Callable[[Any], HalfTrust]:
    return lambda table: HalfTrust(table.row_per_client(), beta)


def clustered(*cluster_of: int) -> Callable[[Any], ClusterFedVARP]:
    def make(table: Any) -> ClusterFedVARP:
        rows = MemoryTable(max(cluster_of) + 1, table.dim)
        return ClusterFedVARP(ClusteredTable(torch.tensor(cluster_of), rows))

    return make


class First:
    """A sampler of one's own: the first M clients, always."""

    def __init__(self, size: int) -> None:
        self._size = size

    def cohort(self, round: int) -> Cohort:
        return Cohort(torch.arange(self._size), torch.ones(self._size, dtype=torch.bool))


def smoothed(amount: float) -> nn.Module:
    return nn.CrossEntropyLoss(label_smoothing=amount)


def scaled_loss(factor: float) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda output, targets: factor * cross_entropy(output, targets)


def seeds(folder: Path, name: str, **changes: Any) -> None:
    """The same run with seeds 0 and 1, which begin with different weights."""
    for seed in (0, 1):
        run(
            module=initialised(linear, seed),
            seed=seed,
            out=folder / f"{name}{seed}",
            rounds=2,
            **changes,
        )


def rows(folder: Path, **how: Any) -> dict[str, int]:
    groups = compare([folder], **how).groups
    assert len({group.label for group in groups}) == len(groups)
    return {group.label: len(group.runs) for group in groups}


# Comparisons


def test_different_algorithms_of_ones_own_are_different_rows(tmp_path: Path) -> None:
    seeds(tmp_path, "a", algorithm=stale(0.3))
    seeds(tmp_path, "b", algorithm=stale(0.7))
    seeds(tmp_path, "c", algorithm=lambda table: Scaled(0.5))
    assert rows(tmp_path) == {"HalfTrust (beta=0.3)": 2, "HalfTrust (beta=0.7)": 2, "Scaled": 2}


def test_code_that_differs_is_a_row_of_its_own(tmp_path: Path) -> None:
    def rule(power: int) -> type[Aggregator]:
        class Rule(Aggregator):
            def aggregate(self, updates: RoundUpdates) -> Tensor:
                return updates.average(updates.deltas)

        class OtherRule(Rule):
            def aggregate(self, updates: RoundUpdates) -> Tensor:
                return updates.average(updates.deltas) / 2

        OtherRule.__name__ = "Rule"
        return Rule if power == 1 else OtherRule

    seeds(tmp_path, "a", algorithm=rule(1))
    seeds(tmp_path, "b", algorithm=rule(2))
    found = rows(tmp_path)
    assert sorted(found.values()) == [2, 2]
    assert all(label.startswith("Rule (code=#") for label in found)


def test_hand_made_clusters_are_different_rows(tmp_path: Path) -> None:
    halves = [i % 2 for i in range(NUM_CLIENTS)]
    seeds(tmp_path, "a", algorithm=clustered(*halves))
    seeds(tmp_path, "b", algorithm=clustered(*halves[::-1][1:], 0))
    seeds(tmp_path, "c", algorithm="cluster_fedvarp", clusters=halves)
    found = rows(tmp_path)
    assert list(found.values()) == [2, 2, 2]
    assert all(label.startswith("ClusterFedVARP (") for label in found)


def test_one_algorithm_is_one_row_however_it_was_asked_for(tmp_path: Path) -> None:
    asked: dict[str, object] = {
        "name": "fedvarp",
        "class": FedVARP,
        "function": lambda table: FedVARP(table.row_per_client()),
        "object": FedVARP(MemoryTable(NUM_CLIENTS, DIM)),
    }
    for seed, (name, algorithm) in enumerate(asked.items()):
        run(module=linear(), algorithm=algorithm, seed=seed, out=tmp_path / name, rounds=2)
    assert rows(tmp_path) == {"FedVARP": 4}


def test_a_name_of_the_package_is_not_taken_by_another_class(tmp_path: Path) -> None:
    mine = type("FedAvg", (Scaled,), {"__module__": "mine"})
    seeds(tmp_path, "a", algorithm=mine)
    seeds(tmp_path, "b", algorithm=FedAvg())
    assert rows(tmp_path) == {"FedAvg": 2, "mine.FedAvg": 2}


@pytest.mark.parametrize(
    ("one", "other", "names"),
    [
        ({"loss": smoothed(0.0)}, {"loss": smoothed(0.5)}, "loss.label_smoothing: 0.0 .*, 0.5 "),
        ({"loss": scaled_loss(1.0)}, {"loss": scaled_loss(0.1)}, "loss.with.factor: 1.0 .*, 0.1 "),
        ({"sampler": First(2)}, {"sampler": First(4)}, "sampler._size: 2 .*, 4 "),
    ],
)
def test_another_loss_or_sampler_is_another_task(
    tmp_path: Path, one: dict[str, Any], other: dict[str, Any], names: str
) -> None:
    for name, changes in (("a", one), ("b", other)):
        seeds(tmp_path, name, **changes)
    with pytest.raises(RunError, match=names):
        compare([tmp_path])
    assert list(rows(tmp_path, allow_different=True).values()) == [2, 2]


# Resuming


def doubled(updates: RoundUpdates) -> RoundUpdates:
    return dataclasses.replace(updates, deltas=2 * updates.deltas)


ANOTHER_RUN: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"loss": smoothed(0.0)}, {"loss": smoothed(0.5)}, r"loss.label_smoothing = 0.0 \(now 0.5\)"),
    ({"loss": scaled_loss(1)}, {"loss": scaled_loss(2)}, r"loss.with.factor = 1 \(now 2\)"),
    ({"loss": lambda x, y: 1 * cross_entropy(x, y)},
     {"loss": lambda x, y: 2 * cross_entropy(x, y)}, r"loss.code = sha256"),
    ({"sampler": First(2)}, {"sampler": First(4)}, r"sampler._size = 2 \(now 4\)"),
    ({"algorithm": stale(0.3)}, {"algorithm": stale(0.7)}, r"aggregator.beta = 0.3 \(now 0.7\)"),
    ({"algorithm": Scaled(1.0)}, {"algorithm": Scaled(2.0)}, r"aggregator.factor = 1.0 \(now 2.0"),
    ({"algorithm": clipped(1.0)}, {"algorithm": clipped(2.0)}, r"factor = 1.0 \(now 2.0"),
    ({"algorithm": over_own_table(1.0)}, {"algorithm": over_own_table(0.5)}, r"portion = 1.0"),
    ({"algorithm": FedVARP}, {"algorithm": over_own_table(1.0)}, r"table"),
    ({"algorithm": FedVARP}, {"algorithm": stale(1.0)}, r"algorithm = fedvarp \(now HalfTrust\)"),
    ({"trainer": Changed(plain())}, {"trainer": Changed(plain(), doubled)}, "own_trainer.change"),
    ({"trainer": Changed(plain())}, {}, "own_trainer.kind = Changed"),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other", "names"), ANOTHER_RUN)
def test_other_content_never_resumes(
    tmp_path: Path, one: dict[str, Any], other: dict[str, Any], names: str
) -> None:
    def go_on(rounds: int, changes: dict[str, Any]) -> SimulationResult:
        return run(module=linear(), out=tmp_path, resume=True, rounds=rounds, **changes)

    go_on(2, one)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    with pytest.raises(RunError, match=names):
        go_on(4, other)
    after = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    assert after == before
    assert go_on(4, one).server.round == 4


class CountsCalls:
    """A loss that is not what it was, once it was used."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def __call__(self, output: Tensor, targets: Tensor) -> Tensor:
        self.calls.append(len(targets))
        return cross_entropy(output, targets)


class CountsCallsAndSaysSo(CountsCalls):
    def describe(self) -> str:
        return "cross entropy, counted"


def test_a_loss_that_changes_as_it_is_used_is_told_the_way_out(tmp_path: Path) -> None:
    counting, saying = CountsCalls(), CountsCallsAndSaysSo()
    for name, loss in (("a", counting), ("b", saying)):
        run(module=linear(), loss=loss, out=tmp_path / name, rounds=1)
    with pytest.raises(RunError, match=r"(?s)loss\.calls.*make it anew.*describe\(\)"):
        run(module=linear(), loss=counting, out=tmp_path / "a", resume=True, rounds=2)
    went_on = run(module=linear(), loss=saying, out=tmp_path / "b", resume=True, rounds=2)
    assert went_on.server.round == 2


def test_what_cannot_be_described_writes_nothing_and_may_go_unrecorded(tmp_path: Path) -> None:
    file = io.FileIO(0, closefd=False)

    def reading(output: Tensor, targets: Tensor) -> Tensor:
        assert not file.closed
        return cross_entropy(output, targets)

    with pytest.raises(SettingsError, match=r"loss\.file is an object of FileIO"):
        run(module=linear(), loss=reading, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert run(module=linear(), loss=reading).stopped == "rounds"


def test_an_algorithm_that_cannot_be_made_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="5 clients"):
        run(algorithm=FedVARP(MemoryTable(5, 7)), out=tmp_path / "run", where="disk")
    assert not (tmp_path / "run").exists()


def test_an_aggregator_that_was_passed_stays_as_it_was() -> None:
    mine = FedVARP(MemoryTable(NUM_CLIENTS, DIM))
    first = run(module=linear(), algorithm=mine)
    assert float(mine.y.mean().abs().sum()) == 0
    with pytest.raises(SettingsError, match="has seen updates before"):
        run(module=linear(), algorithm=first.server.aggregator)


def test_the_record_names_what_the_function_made(tmp_path: Path) -> None:
    run(module=linear(), algorithm=stale(0.3), out=tmp_path)
    kept = RunDirectory(tmp_path).settings()
    assert kept["algorithm"] == "HalfTrust"
    assert kept["aggregator"]["beta"] == 0.3
