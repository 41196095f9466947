"""Which trainer is chosen, what becomes of the rounds tried out, and how the choice is kept."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedvarp import Broadcast, RoundUpdates, Server
from fedvarp.clients.cohorts import Cohort
from fedvarp.data import FederatedDataset, digits
from fedvarp.experiments.build import build
from fedvarp.experiments.files import load_settings
from fedvarp.experiments.resuming import resume
from fedvarp.runs.directory import RunDirectory
from fedvarp.runs.errors import RunError
from fedvarp.runs.identity import refuse_other_settings, with_choice_of_auto
from fedvarp.trainers import (
    AutoTrainer,
    Candidate,
    ClientTrainer,
    ParallelTrainer,
    SequentialTrainer,
    TrainerParts,
    make_trainer,
)
from fedvarp.trainers.sequential import gather
from small_federation import (
    EVERYONE,
    SIZES,
    Changed,
    bits,
    broadcast_of,
    linear,
    plain,
    run,
    seeded,
)

Change = Callable[[RoundUpdates], RoundUpdates]


@pytest.fixture(scope="module")
def some_digits() -> FederatedDataset:
    return digits(num_clients=32)


def nothing(name: str, why: str) -> None:
    """Nobody is told of the choice."""


def same(updates: RoundUpdates) -> RoundUpdates:
    return updates


def late(seconds: float, first: float | None = None) -> Change:
    """The same updates, late; the first time by another number of seconds."""
    waits = [seconds if first is None else first]

    def change(updates: RoundUpdates) -> RoundUpdates:
        time.sleep(waits.pop() if waits else seconds)
        return updates

    return change


def scaled(factor: float) -> Change:
    return lambda u: dataclasses.replace(u, deltas=u.deltas * factor, measured=None)


def first_two(updates: RoundUpdates) -> RoundUpdates:
    return dataclasses.replace(
        updates,
        clients=updates.clients[:2],
        deltas=updates.deltas[:2],
        num_steps=updates.num_steps[:2],
        num_examples=updates.num_examples[:2],
        measured=None,
    )


def failing(updates: RoundUpdates) -> RoundUpdates:
    raise ValueError("it cannot\n  be done")


def tried_twice(**changes: Change) -> tuple[str, dict[str, Changed]]:
    """The name chosen after two rounds among these candidates, of which the first is the plain."""
    reference = plain()
    candidates = {name: Changed(reference, change) for name, change in changes.items()}
    told: list[str] = []
    trainer = AutoTrainer(
        {name: Candidate(candidate) for name, candidate in candidates.items()},
        lambda name, why: told.append(name),
    )
    sent = broadcast_of(reference.model)
    for t in range(2):
        trainer.train(sent, EVERYONE, t)
    (chosen,) = told
    return chosen, candidates


# Who is chosen


def outcome(change: Change, exact: bool) -> str:
    """Why a candidate with these updates was not to be had; empty if it was."""
    reference = plain()
    told: list[str] = []
    other = Changed(reference, change)
    trainer = AutoTrainer(
        {"sequential": Candidate(reference), "other": Candidate(other, exact)},
        lambda name, why: told.append(why),
    )
    sent = broadcast_of(reference.model)
    expected = reference.train(sent, EVERYONE, 0)
    for _ in range(2):  # the rounds tried are the plain loop's
        assert torch.equal(trainer.train(sent, EVERYONE, 0).deltas, expected.deltas)
    (why,) = told
    assert "sequential" in why
    reason = why.partition("other ")[2]
    if reason.endswith("s a round"):
        assert len(other.rounds) == 2
        return ""
    assert len(other.rounds) == 1  # once out, it is not tried again
    assert other.closed
    trainer.train(sent, EVERYONE, 1)
    assert len(other.rounds) == 1
    return reason


@pytest.mark.parametrize(
    ("change", "exact", "reason"),
    [
        (same, True, ""),
        (same, False, ""),
        (scaled(1 + 1e-6), True, "gave other updates"),
        (scaled(1 + 1e-6), False, ""),
        (scaled(1.1), False, "gave other updates"),
        (lambda u: dataclasses.replace(u, scale=u.scale * 2), True, "gave other updates"),
        (lambda u: dataclasses.replace(u, scale=u.scale * 2), False, "gave other updates"),
        (first_two, True, "gave other updates"),
        (first_two, False, "gave other updates"),
        (failing, True, "failed: it cannot be done"),
    ],
)
def test_who_does_not_keep_the_promise_is_out(change: Change, exact: bool, reason: str) -> None:
    found = outcome(change, exact)
    assert found.startswith(reason)
    assert bool(found) == bool(reason)


def test_what_was_chosen_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        outcome(failing, exact=True)
    assert "trainer = sequential" in caplog.text


def test_setting_up_does_not_count() -> None:
    """Starting processes takes its time in the first round, and in no other."""
    assert tried_twice(plain=late(0.2), other=late(0.0, first=0.5))[0] == "other"


def test_the_next_candidate_is_tried_where_one_fails() -> None:
    assert tried_twice(slow=late(0.2), failing=failing, quick=same)[0] == "quick"


def test_the_others_are_closed_and_the_chosen_one_stays_open() -> None:
    chosen, candidates = tried_twice(plain=late(0.2), wrong=scaled(2.0), quick=same)
    assert chosen == "quick"
    assert {name: c.closed for name, c in candidates.items()} == {
        "plain": True,
        "wrong": True,
        "quick": False,
    }


def test_whoever_trains_is_foretold() -> None:
    with_slow, with_quick = Changed(plain(), late(0.05)), Changed(plain(), same)
    candidates = {"slow": Candidate(with_slow), "quick": Candidate(with_quick)}
    auto, sent = AutoTrainer(candidates, nothing), broadcast_of(plain().model)
    auto.foretell({0: EVERYONE, 1: EVERYONE})
    for t in range(3):
        auto.train(sent, EVERYONE, t)
    auto.foretell({3: EVERYONE})
    assert (with_slow.foretold, with_quick.foretold) == ([0, 1], [3])


def test_all_candidates_are_closed_if_the_run_ends_before_the_choice() -> None:
    others = [Changed(plain()) for _ in range(3)]
    AutoTrainer({str(n): Candidate(other) for n, other in enumerate(others)}, nothing).close()
    assert all(other.closed for other in others)


class Instant(ClientTrainer):
    """Nobody answers, at once."""

    def train(self, broadcast: Broadcast, clients: Tensor, round: int) -> RoundUpdates:
        return gather({}, {}, broadcast.w.new_empty(0, len(broadcast.w)), 0.1)


def test_short_rounds_are_not_shared() -> None:
    told: list[tuple[str, str]] = []
    parallel = Changed(Instant())
    trainer = AutoTrainer(
        {"plain": Candidate(Instant()), "parallel": Candidate(parallel, for_long_rounds=True)},
        lambda name, why: told.append((name, why)),
    )
    trainer.train(broadcast_of(plain().model), EVERYONE, 0)
    assert parallel.rounds == []
    assert told[0][0] == "plain"
    assert "too short" in told[0][1]


# In a run


def test_a_run_is_the_plain_one_whoever_is_chosen() -> None:
    module = seeded(linear)
    reference = plain(module=module, seed=0)
    changes = {
        "plain": late(0.4),
        "wrong": scaled(2.0),
        "parallel": late(0.05),
        "late": late(0.2),
    }
    candidates = {name: Changed(reference, change) for name, change in changes.items()}
    told: list[tuple[str, str]] = []
    trainer = AutoTrainer(
        {name: Candidate(c, for_long_rounds=name == "parallel") for name, c in candidates.items()},
        lambda name, why: told.append((name, why)),
    )
    assert bits(run(module=module, trainer=trainer)) == bits(run(module=seeded(linear)))
    assert candidates["plain"].rounds == [0, 1]
    assert candidates["wrong"].rounds == [0]
    assert candidates["parallel"].rounds == [0, 1, 2, 3, 4, 5, 6]
    ((chosen, why),) = told
    assert chosen == "parallel"
    assert "plain " in why
    assert "wrong gave other updates" in why


def test_rounds_of_nobody_tell_nothing() -> None:
    class NobodyAtFirst:
        num_clients = len(SIZES)

        def cohort(self, t: int) -> Cohort:
            clients = torch.arange(0 if t < 2 else 3)
            return Cohort(clients, torch.ones(len(clients), dtype=torch.bool))

    module, chosen = seeded(linear), []
    reference = plain(module=module, seed=0)
    other = Changed(reference)
    trainer = AutoTrainer(
        {"sequential": Candidate(reference), "other": Candidate(other)},
        lambda name, why: chosen.append((name, why)),
        not_tried={"third": "it is ill"},
    )
    run(module=module, trainer=trainer, sampler=NobodyAtFirst(), clients_per_round=None)
    assert other.rounds[:2] == [2, 3]
    assert "third not tried: it is ill" in chosen[0][1]


def test_workers_that_were_chosen_evaluate_too(
    some_digits: FederatedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = run(some_digits)
    begun: list[int] = []
    train, evaluation = SequentialTrainer.train, ParallelTrainer.evaluation

    def slow(*arguments: Any) -> RoundUpdates:  # workers call train_one
        time.sleep(0.3)
        return train(*arguments)

    def noting(*arguments: Any) -> Any:
        begun.append(1)
        return evaluation(*arguments)

    monkeypatch.setattr(SequentialTrainer, "train", slow)
    monkeypatch.setattr(ParallelTrainer, "evaluation", noting)
    assert bits(run(some_digits, trainer="auto", workers=2)) == bits(expected)
    assert len(begun) == 4  # after rounds 2, 4, 6 and 7; the initial model is evaluated here


# The choice in the settings of a run


def test_what_was_chosen_is_in_the_settings_and_stays(
    some_digits: FederatedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedvarp.trainers.auto._TOO_SHORT", 0.0)
    run(some_digits, rounds=4, trainer="auto", workers=2, out=tmp_path)
    kept = RunDirectory(tmp_path).settings()
    chosen = kept["trainer"]
    assert chosen["name"] in ("sequential", "parallel")
    assert "sequential" in chosen["auto"]
    assert "parallel" in chosen["auto"]
    # Had it to choose again, it would find nothing else to choose from.
    other = {"sequential": "parallel", "parallel": "sequential"}[chosen["name"]]
    RunDirectory(tmp_path).write_settings({**kept, "trainer": {**chosen, "name": other}})
    found = run(some_digits, trainer="auto", workers=2, out=tmp_path, resume=True)
    assert RunDirectory(tmp_path).settings()["trainer"]["name"] == other
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
    assert RunDirectory(tmp_path).settings()["trainer"]["name"] == "auto"
    assert "auto" not in RunDirectory(tmp_path).settings()["trainer"]
    run(some_digits, **common, resume=True)
    assert RunDirectory(tmp_path).settings()["trainer"]["name"] != "auto"


def test_a_resumed_run_has_the_workers_auto_had(
    some_digits: FederatedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(some_digits, rounds=4, trainer="auto", workers=3, out=tmp_path)
    directory = RunDirectory(tmp_path)
    recorded = directory.settings()
    directory.write_settings({**recorded, "trainer": {**recorded["trainer"], "name": "parallel"}})
    made: list[tuple[str, int | None]] = []

    def noting(name: str, parts: TrainerParts) -> ClientTrainer:
        made.append((name, parts.workers))
        return make_trainer(name, parts)

    monkeypatch.setattr("fedvarp.simulation.task.make_trainer", noting)
    run(some_digits, trainer="auto", out=tmp_path, resume=True)
    assert made == [("parallel", 3)]


def test_a_resumed_run_goes_by_the_choice_there_is(tmp_path: Path) -> None:
    now = {"trainer": {"name": "auto", "exact": False}}
    chosen, told = RunDirectory(tmp_path / "chosen"), RunDirectory(tmp_path / "told")
    by_auto = {"name": "vectorised", "workers": 2, "auto": "why", "exact": False}
    chosen.create({"trainer": by_auto})
    refuse_other_settings(chosen, now)
    assert with_choice_of_auto(now, chosen.settings()) == chosen.settings()
    undone = RunDirectory(tmp_path / "undone")
    undone.create({"trainer": {"name": "auto", "auto": "why it had chosen", "exact": False}})
    assert with_choice_of_auto(now, undone.settings()) == now
    told.create({"trainer": {"name": "vectorised", "exact": False}})  # auto might choose another
    assert with_choice_of_auto(now, told.settings()) == now
    with pytest.raises(RunError, match="now auto"):
        refuse_other_settings(told, now)


def test_resume_told_auto_goes_by_the_choice_there_is(tmp_path: Path) -> None:
    build(load_settings("digits", ["rounds=3", "trainer.exact=false"])).run(tmp_path)
    directory = RunDirectory(tmp_path)
    recorded = directory.settings()
    chosen = {**recorded["trainer"], "name": "vectorised", "auto": "why"}
    directory.write_settings(recorded | {"trainer": chosen})
    resume(tmp_path, ["rounds=4", "trainer=auto"], progress=False)
    assert directory.settings()["trainer"]["name"] == "vectorised"
    assert directory.settings()["rounds"] == 4
