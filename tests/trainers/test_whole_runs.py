"""Whole runs with every trainer: the same metrics, whatever is interrupted or dies."""

from __future__ import annotations

import dataclasses
import logging
import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedvarp import (
    Broadcast,
    FlatModel,
    LocalSGD,
    RoundUpdates,
    Server,
    SimulationResult,
    simulate,
)
from fedvarp.clients.sampling import Cohort, UniformSampler
from fedvarp.data import FederatedDataset, digits
from fedvarp.models import LogisticRegression, initialised
from fedvarp.runs.directory import RunDirectory
from fedvarp.runs.errors import RunError
from fedvarp.trainers import (
    AutoTrainer,
    ParallelTrainer,
    SequentialTrainer,
    VectorisedTrainer,
)
from fedvarp.trainers.auto import Candidate
from fedvarp.trainers.registry import TrainerParts, make_trainer
from fedvarp.trainers.sequential import gather


@pytest.fixture(scope="module")
def some_digits() -> FederatedDataset:
    return digits(num_clients=32)


def run(dataset: FederatedDataset, **changes: Any) -> SimulationResult:
    settings: dict[str, Any] = {
        "local_sgd": LocalSGD(lr=0.5, batch_size=10, epochs=1),
        "rounds": 7,
        "clients_per_round": 3,
        "evaluate_every": 2,
        "progress": False,
    }
    return simulate(
        dataset, initialised(lambda: LogisticRegression(64, 10), 0), **(settings | changes)
    )


def bits(result: SimulationResult) -> tuple[list[float], list[dict[str, Any]]]:
    return result.server.w.tolist(), result.metrics


@pytest.mark.parametrize("algorithm", ["fedvarp", "scaffold"])
def test_parallel_runs_are_the_sequential_ones(
    some_digits: FederatedDataset, algorithm: str, tmp_path: Path
) -> None:
    expected = run(some_digits, algorithm=algorithm)
    found = run(
        some_digits, algorithm=algorithm, trainer="parallel", workers=2, out=tmp_path / "run"
    )
    assert bits(found) == bits(expected)
    # The evaluation of round 2 ends after round 3 has trained; the files must not show it.
    assert RunDirectory(tmp_path / "run").metrics() == expected.metrics


def test_a_target_is_noticed_while_the_next_round_trains(some_digits: FederatedDataset) -> None:
    reached = run(some_digits).metrics[2]["test_accuracy"]
    expected = run(some_digits, target_accuracy=reached)
    assert expected.stopped == "target"
    assert expected.server.round < 7
    found = run(some_digits, target_accuracy=reached, trainer="parallel", workers=2)
    assert bits(found) == bits(expected)
    assert found.stopped == "target"


def test_callbacks_see_the_server_of_their_round(some_digits: FederatedDataset) -> None:
    seen: list[tuple[int, int, bool]] = []

    def look(record: dict[str, Any], server: Server) -> None:
        seen.append((record["round"], server.round, "test_loss" in record))

    run(some_digits, trainer="parallel", workers=2, callbacks=[look])
    assert seen == [(t, t, t % 2 == 0 or t == 7) for t in range(8)]


def test_callbacks_come_before_the_next_round_trains(
    some_digits: FederatedDataset, tmp_path: Path
) -> None:
    """A callback that stops a run by an exception should not have to wait for it."""
    parent, trained = os.getpid(), tmp_path / "trained"

    def load(client: int) -> tuple[torch.Tensor, torch.Tensor]:
        if os.getpid() != parent:
            trained.touch()
        return some_digits.client(client)

    def look(record: dict[str, Any], server: Server) -> None:
        assert trained.exists() == (record["round"] > 0)

    watched = dataclasses.replace(some_digits, load=load)
    run(watched, trainer="parallel", workers=2, callbacks=[look], num_train_clients=0, rounds=1)
    assert trained.exists()


class CtrlC(UniformSampler):
    """Uniform, and round number 3 is interrupted."""

    def cohort(self, round: int) -> Cohort:
        if round == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return super().cohort(round)


def test_ctrl_c_waits_for_the_evaluation_that_was_begun(
    some_digits: FederatedDataset, tmp_path: Path
) -> None:
    """Round 3 ends as number 4, which is evaluated, and no round comes after it."""
    expected = run(some_digits)
    how: dict[str, Any] = {"trainer": "parallel", "workers": 2, "out": tmp_path}
    stopped = run(some_digits, clients_per_round=None, sampler=CtrlC(32, 3, 0), **how)
    assert stopped.stopped == "interrupted"
    assert stopped.metrics == expected.metrics[:5]
    assert RunDirectory(tmp_path).metrics() == expected.metrics[:5]


def test_a_run_may_change_its_trainer_if_that_changes_no_bit(
    some_digits: FederatedDataset, tmp_path: Path
) -> None:
    expected = run(some_digits)
    for rounds, trainer in ((3, "parallel"), (5, "sequential"), (7, "auto")):
        found = run(
            some_digits, rounds=rounds, trainer=trainer, workers=2, out=tmp_path, resume=True
        )
    assert found.server.w.tolist() == expected.server.w.tolist()
    with pytest.raises(RunError, match=r"trainer = .*now vectorised"):
        run(some_digits, rounds=8, trainer="vectorised", out=tmp_path, resume=True)


def test_vectorised_runs_are_close(
    some_digits: FederatedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[int] = []  # or this test would test nothing: on some processors the bits agree
    train = VectorisedTrainer.train

    def counting(
        self: VectorisedTrainer, broadcast: Broadcast, clients: Tensor, round: int
    ) -> RoundUpdates:
        trained.append(round)
        return train(self, broadcast, clients, round)

    monkeypatch.setattr(VectorisedTrainer, "train", counting)
    expected, found = run(some_digits), run(some_digits, trainer="vectorised")
    torch.testing.assert_close(found.server.w, expected.server.w, rtol=1e-4, atol=1e-5)
    assert trained == list(range(found.server.round))


def test_a_worker_killed_in_mid_run_costs_no_bit(
    some_digits: FederatedDataset, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = run(some_digits)
    parent, marker = os.getpid(), tmp_path / "killed"
    victim = expected.metrics[3]["clients"][0]

    def load(client: int) -> tuple[torch.Tensor, torch.Tensor]:
        if os.getpid() != parent and client == victim and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return some_digits.client(client)

    with caplog.at_level(logging.WARNING):
        found = run(dataclasses.replace(some_digits, load=load), trainer="parallel", workers=2)
    assert bits(found) == bits(expected)
    assert marker.exists()
    assert "SIGKILL" in caplog.text


def test_no_process_is_left_after_a_run(some_digits: FederatedDataset) -> None:
    run(some_digits, trainer="parallel", workers=2)
    assert multiprocessing.active_children() == []

    def fail(record: dict[str, Any], server: Server) -> None:
        assert multiprocessing.active_children()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(some_digits, trainer="parallel", workers=2, callbacks=[fail])
    assert multiprocessing.active_children() == []


class Slow:
    """The plain loop's updates, late."""

    def __init__(self, plain: SequentialTrainer, seconds: float, wrong: bool = False) -> None:
        self.plain, self.seconds, self.wrong = plain, seconds, wrong
        self.rounds: list[int] = []
        self.closed = False

    def train(self, broadcast: Broadcast, clients: Tensor, round: int) -> RoundUpdates:
        self.rounds.append(round)
        time.sleep(self.seconds)
        updates = self.plain.train(broadcast, clients, round)
        return dataclasses.replace(updates, deltas=updates.deltas * 2) if self.wrong else updates

    def close(self) -> None:
        self.closed = True


def auto(dataset: FederatedDataset, **seconds: float) -> tuple[AutoTrainer, dict[str, Slow], Any]:
    model = FlatModel(initialised(lambda: LogisticRegression(64, 10), 0))
    sgd = LocalSGD(lr=0.5, batch_size=10, epochs=1)
    plain = SequentialTrainer(dataset, model, cross_entropy, sgd, 0)
    slow = {name: Slow(plain, late, wrong=name == "wrong") for name, late in seconds.items()}
    told: list[tuple[str, str]] = []
    trainer = AutoTrainer(
        {
            name: Candidate(candidate, for_long_rounds=name == "parallel")
            for name, candidate in slow.items()
        },
        lambda name, why: told.append((name, why)),
    )
    return trainer, slow, told


def test_auto_keeps_the_fastest_of_those_that_agree(some_digits: FederatedDataset) -> None:
    trainer, slow, told = auto(some_digits, plain=0.4, wrong=0.0, parallel=0.05, late=0.2)
    found = run(some_digits, trainer=trainer)
    assert bits(found) == bits(run(some_digits))
    assert slow["plain"].rounds == [0, 1]
    assert slow["wrong"].rounds == [0]
    assert slow["parallel"].rounds == [0, 1, 2, 3, 4, 5, 6]
    assert [name for name, _ in told] == ["parallel"]
    assert "plain " in told[0][1]
    assert "wrong gave other updates" in told[0][1]
    assert slow["late"].closed
    assert not slow["parallel"].closed


def test_auto_does_not_share_short_rounds(some_digits: FederatedDataset) -> None:
    trainer, slow, told = auto(some_digits, plain=0.0, parallel=0.0)
    trainer.candidates["plain"].trainer.plain = Instant()  # type: ignore[attr-defined]
    broadcast = Broadcast(0, torch.arange(1), torch.zeros(650), None)
    trainer.train(broadcast, torch.arange(1), 0)
    assert slow["parallel"].rounds == []
    assert told[0][0] == "plain"
    assert "too short" in told[0][1]


class Instant:
    """Nobody answers, at once."""

    def train(self, broadcast: Broadcast, clients: Tensor, round: int) -> RoundUpdates:
        return gather({}, {}, broadcast.w)


def test_what_auto_chose_is_in_the_settings_and_stays(
    some_digits: FederatedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedvarp.trainers.auto._TOO_SHORT", 0.0)
    run(some_digits, rounds=4, trainer="auto", workers=2, out=tmp_path)
    kept = RunDirectory(tmp_path).settings()
    assert kept["trainer"] in ("sequential", "parallel")
    assert "sequential" in kept["auto"]
    assert "parallel" in kept["auto"]
    # Had it to choose again, it would find nothing else to choose from.
    other = {"sequential": "parallel", "parallel": "sequential"}[kept["trainer"]]
    changed = {**kept, "trainer": other}
    RunDirectory(tmp_path).write_settings(changed)
    found = run(some_digits, trainer="auto", workers=2, out=tmp_path, resume=True)
    assert RunDirectory(tmp_path).settings()["trainer"] == other
    assert bits(found) == bits(run(some_digits))


def test_the_choice_is_kept_once_the_rounds_tried_out_are(
    some_digits: FederatedDataset, tmp_path: Path
) -> None:
    """Else rounds that are trained again after a crash would be trained by another trainer."""

    class PlugPulledError(Exception):
        pass

    def pull(record: dict[str, Any], server: Server) -> None:
        if record["round"] == 3:
            raise PlugPulledError

    common: dict[str, Any] = {"trainer": "auto", "exact": False, "commit_every": 5, "out": tmp_path}
    with pytest.raises(PlugPulledError):
        run(some_digits, **common, callbacks=[pull])
    assert RunDirectory(tmp_path).settings()["trainer"] == "auto"
    assert "auto" not in RunDirectory(tmp_path).settings()
    run(some_digits, **common, resume=True)
    assert RunDirectory(tmp_path).settings()["trainer"] != "auto"


def test_a_resumed_run_has_the_workers_auto_had(
    some_digits: FederatedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(some_digits, rounds=4, trainer="auto", workers=3, out=tmp_path)
    RunDirectory(tmp_path).write_settings(
        {**RunDirectory(tmp_path).settings(), "trainer": "parallel"}
    )
    made: list[tuple[str, int | None]] = []

    def noting(name: str, parts: TrainerParts, on_choice: Any) -> Any:
        made.append((name, parts.workers))
        return make_trainer(name, parts, on_choice)

    monkeypatch.setattr("fedvarp.simulation.simulate.make_trainer", noting)
    run(some_digits, trainer="auto", out=tmp_path, resume=True)
    assert made == [("parallel", 3)]


def test_workers_that_auto_chose_evaluate_too(
    some_digits: FederatedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = run(some_digits)
    begun: list[int] = []
    plain, evaluation = SequentialTrainer.train, ParallelTrainer.evaluation

    def slow(*arguments: Any) -> RoundUpdates:  # workers call train_one
        time.sleep(0.3)
        return plain(*arguments)

    def noting(*arguments: Any) -> Any:
        begun.append(1)
        return evaluation(*arguments)

    monkeypatch.setattr(SequentialTrainer, "train", slow)
    monkeypatch.setattr(ParallelTrainer, "evaluation", noting)
    assert bits(run(some_digits, trainer="auto", workers=2)) == bits(expected)
    assert len(begun) == 4  # after rounds 2, 4, 6 and 7; the initial model is evaluated here


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trainer": "paralel"}, "none of auto, sequential"),
        ({"trainer": "parallel", "workers": 0}, "at least 1"),
        ({"trainer": "vectorised", "compile": True}, "compile"),
    ],
)
def test_wrong_trainers_are_refused(
    some_digits: FederatedDataset, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        run(some_digits, **changes)


@pytest.mark.slow
def test_compiled_runs_are_close(some_digits: FederatedDataset) -> None:
    """Clients have 10-example batches and a smaller last one, which stays uncompiled."""
    expected, found = run(some_digits), run(some_digits, compile=True)
    torch.testing.assert_close(found.server.w, expected.server.w, rtol=1e-4, atol=1e-5)
