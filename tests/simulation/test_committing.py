"""Commits that take long: beside the training of the next cohort, and done before anything changes.

What counts as long is set to nothing here, so that every commit but a run's first is such a one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedvarp import Broadcast, Checkpoint, FlatModel, LocalSGD, RoundUpdates, Server
from fedvarp.clients.evaluation import Evaluator, Figures
from fedvarp.errors import sentence
from fedvarp.models import LogisticRegression, initialised
from fedvarp.simulation import recording
from fedvarp.tables.store import Store, WriteError
from fedvarp.trainers import ClientTrainer, SequentialTrainer
from simulating import simulate
from small_federation import CLASSES, FEATURES, dataset

SGD = LocalSGD(lr=0.1, batch_size=4, epochs=1)
ROUNDS = 6


class Watched(ClientTrainer):
    """The plain loop; says when it trains, can fail, and can evaluate beside the training."""

    def __init__(self, fails_in: int | None = None, evaluates: bool = False) -> None:
        self.begun = [threading.Event() for _ in range(ROUNDS)]
        self._fails_in = fails_in
        self._evaluates = evaluates
        self._plain = SequentialTrainer(
            dataset(), FlatModel(model()), torch.nn.functional.cross_entropy, SGD, seed=0
        )

    def describe(self) -> Mapping[str, str]:
        """Whether it fails makes no other run of it."""
        return {"name": "watched"}

    def train(self, broadcast: Broadcast, clients: Tensor, round: int) -> RoundUpdates:
        self.begun[round].set()
        if round == self._fails_in:
            raise ZeroDivisionError("in training")
        return self._plain.train(broadcast, clients, round)

    def evaluation(
        self, evaluator: Evaluator, w: Tensor, buffers: Mapping[str, Tensor]
    ) -> Callable[[], Figures] | None:
        w = w.clone()
        return (lambda: evaluator.evaluate(w, buffers)) if self._evaluates else None


def model() -> torch.nn.Module:
    return initialised(lambda: LogisticRegression(FEATURES, CLASSES), 0)


def run(out: Path | None, **changed: Any) -> Any:
    given: dict[str, Any] = {
        "algorithm": "scaffold",
        "clients_per_round": 2,
        "rounds": ROUNDS,
        "local_sgd": SGD,
        "evaluate_every": 2,
        "out": out,
        "progress": False,
        **changed,
    }
    return simulate(dataset(), model(), **given)


def committed(folder: Path) -> int | None:
    with Checkpoint(folder / "checkpoint") as checkpoint:
        return checkpoint.round


@pytest.fixture
def all_are_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "_SLOW", -1.0)


@pytest.mark.usefixtures("all_are_slow")
@pytest.mark.parametrize("where", ["memory", "disk"])
@pytest.mark.parametrize("evaluates", [False, True])
def test_the_server_stays_as_it_is_until_its_commit_is_done(
    evaluates: bool, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of rounds 0 ... 6 the first is committed at once, and the last when there is no next one.

    Evaluated ones (2 and 4) come when the next has been trained, where that goes beside it.
    """
    trainer, writing = Watched(evaluates=evaluates), threading.Lock()
    write, receive = Store.write, Server.receive
    commits = 0
    beside: list[int] = []

    def watched_write(store: Store, *args: Any) -> None:
        nonlocal commits
        with writing:
            if threading.current_thread() is not threading.main_thread():
                assert trainer.begun[commits].wait(timeout=60)  # in vain if nobody trains meanwhile
                beside.append(commits)
            commits += 1
            write(store, *args)

    def watched_receive(server: Server, updates: RoundUpdates, **asked: Any) -> Any:
        assert not writing.locked()
        return receive(server, updates, **asked)

    monkeypatch.setattr(Store, "write", watched_write)
    monkeypatch.setattr(Server, "receive", watched_receive)
    kept = run(tmp_path, trainer=trainer, where=where)
    assert beside == ([1, 3, 5] if evaluates else [1, 2, 3, 4, 5])
    monkeypatch.undo()
    assert torch.equal(kept.server.w, run(None).server.w)
    assert committed(tmp_path) == ROUNDS


@pytest.mark.usefixtures("all_are_slow")
def test_a_round_that_is_done_is_kept_whatever_happens_to_the_next(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        run(tmp_path, trainer=Watched(fails_in=3))
    assert committed(tmp_path) == 3
    resumed = run(tmp_path, resume=True, trainer=Watched())
    assert torch.equal(resumed.server.w, run(None).server.w)


def fail_to_commit_round_3(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    write, commits = Store.write, []

    def failing(store: Store, *args: Any) -> None:
        commits.append(args)
        if len(commits) == 4:  # rounds 0, 1, 2 are there
            raise WriteError("the disk is full")
        write(store, *args)

    monkeypatch.setattr(Store, "write", failing)
    return commits


@pytest.mark.usefixtures("all_are_slow")
def test_where_training_and_the_commit_beside_it_fail_both_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_to_commit_round_3(monkeypatch)
    with pytest.raises(ZeroDivisionError) as raised:
        run(tmp_path, trainer=Watched(fails_in=3))
    assert "Round 3 could not be saved either: the disk is full" in sentence(raised.value)
    monkeypatch.undo()
    assert committed(tmp_path) == 2


@pytest.mark.usefixtures("all_are_slow")
def test_a_commit_that_fails_ends_the_run_at_the_round_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = fail_to_commit_round_3(monkeypatch)
    with pytest.raises(WriteError, match="full"):
        run(tmp_path, trainer=Watched())
    assert len(commits) == 4
    monkeypatch.undo()
    assert committed(tmp_path) == 2
    resumed = run(tmp_path, resume=True, trainer=Watched())
    assert torch.equal(resumed.server.w, run(None).server.w)


@pytest.mark.usefixtures("all_are_slow")
def test_callbacks_find_every_round_committed(tmp_path: Path) -> None:
    """They may change the server before it trains: nothing waits for the training then."""
    threads: list[str] = []
    with pytest.MonkeyPatch.context() as patched:
        write = Store.write

        def noted(store: Store, *args: Any) -> None:
            threads.append(threading.current_thread().name)
            write(store, *args)

        patched.setattr(Store, "write", noted)
        run(tmp_path, trainer=Watched(), callbacks=[lambda record, server: None])
    assert set(threads) == {threading.main_thread().name}
    assert len(threads) == ROUNDS + 1
