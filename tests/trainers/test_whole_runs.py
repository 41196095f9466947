"""Whole runs with every trainer: the same metrics, whatever is interrupted or dies."""

from __future__ import annotations

import dataclasses
import logging
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedvarp import Broadcast, RoundUpdates, Server
from fedvarp.clients.cohorts import Cohort
from fedvarp.clients.sampling import UniformSampler
from fedvarp.data import FederatedDataset, digits
from fedvarp.runs.directory import RunDirectory
from fedvarp.runs.errors import RunError
from fedvarp.trainers import VectorisedTrainer
from small_federation import bits, run


@pytest.fixture(scope="module")
def some_digits() -> FederatedDataset:
    return digits(num_clients=32)


@pytest.mark.parametrize("algorithm", ["fedvarp", "scaffold", "fedprox", "feddyn"])
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
    with pytest.raises(RunError, match=r"trainer.name = .*now vectorised"):
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


@pytest.mark.slow
def test_compiled_runs_are_close(some_digits: FederatedDataset) -> None:
    """Clients have batches of 4 examples and a last one of 2, which stays uncompiled."""
    expected, found = run(some_digits), run(some_digits, compile=True)
    torch.testing.assert_close(found.server.w, expected.server.w, rtol=1e-4, atol=1e-5)
