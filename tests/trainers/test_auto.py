"""Which trainers are tried, and which of them may be chosen."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedvarp import Broadcast, FlatModel, LocalSGD, RoundUpdates, stream
from fedvarp.clients.evaluation import Evaluator
from fedvarp.data import FederatedDataset
from fedvarp.experiments.build import build
from fedvarp.experiments.files import load_settings
from fedvarp.experiments.resuming import resume
from fedvarp.runs.directory import RunDirectory
from fedvarp.runs.errors import RunError
from fedvarp.runs.identity import refuse_other_settings, with_choice_of_auto
from fedvarp.trainers import AutoTrainer, ParallelTrainer, SequentialTrainer
from fedvarp.trainers.auto import Candidate
from fedvarp.trainers.registry import TrainerParts, make_trainer

CLIENTS = torch.arange(3)
Change = Callable[[RoundUpdates], RoundUpdates]


def parts(**changes: Any) -> TrainerParts:
    draws = stream(0, "examples")
    data = [(torch.randn(4, 2, generator=draws), torch.tensor([0, 1, 1, 0])) for _ in CLIENTS]
    dataset = FederatedDataset(load=data.__getitem__, num_clients=3)
    torch.manual_seed(0)
    model = FlatModel(nn.Linear(2, 2))
    sgd, evaluator = LocalSGD(0.1, 2, epochs=1), Evaluator(dataset, model, cross_entropy)
    given = {"workers": 2} | changes
    return TrainerParts(dataset, model, cross_entropy, sgd, 0, evaluator, **given)


def tried(**changes: Any) -> tuple[set[str], set[str]]:
    trainer = make_trainer("auto", parts(**changes), lambda name, why: None)
    assert isinstance(trainer, AutoTrainer)
    return set(trainer.candidates), set(trainer.not_tried)


def test_who_is_tried(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    request.addfinalizer(lambda: torch.set_num_threads(1))
    monkeypatch.setenv("FEDVARP_CORES", "4")
    everybody = {"sequential", "parallel", "vectorised"}
    assert tried() == ({"sequential", "parallel"}, set())
    assert tried(exact=False) == (everybody, set())
    # What is compiled is neither the plain loop's nor the vectorised trainer's.
    assert tried(compile=True) == ({"sequential"}, {"parallel"})
    assert tried(compile=True, exact=False) == ({"sequential"}, {"parallel"})
    assert tried(workers=1) == ({"sequential"}, {"parallel"})
    assert tried(workers=None) == ({"sequential", "parallel"}, set())
    monkeypatch.setenv("FEDVARP_CORES", "1")
    assert tried(workers=None) == ({"sequential"}, {"parallel"})
    assert tried(workers=2) == ({"sequential", "parallel"}, set())
    torch.set_num_threads(2)  # other sums than a worker's
    assert tried() == ({"sequential"}, {"parallel"})
    assert tried(exact=False) == (everybody, set())
    trainer = make_trainer("auto", parts(exact=False), lambda name, why: None)
    assert isinstance(trainer, AutoTrainer)
    assert not trainer.candidates["parallel"].exact


def test_what_the_candidates_promise() -> None:
    given = parts(exact=False)
    trainer = make_trainer("auto", given, lambda name, why: None)
    assert isinstance(trainer, AutoTrainer)
    promises = {name: (c.exact, c.for_long_rounds) for name, c in trainer.candidates.items()}
    assert promises == {
        "sequential": (True, False),
        "parallel": (True, True),
        "vectorised": (False, False),
    }
    for parallel in (trainer.candidates["parallel"].trainer, make_trainer("parallel", given, None)):  # type: ignore[arg-type]
        assert isinstance(parallel, ParallelTrainer)
        assert parallel.evaluator is given.evaluator
        assert parallel.workers == 2


@pytest.mark.parametrize("name", ["vectorised", "ray"])
def test_who_cannot_compile(name: str) -> None:
    with pytest.raises(ValueError, match=f"not '{name}'"):
        make_trainer(name, parts(compile=True), lambda name, why: None)


class Changed:
    """The plain loop's updates, changed."""

    def __init__(self, plain: SequentialTrainer, change: Change) -> None:
        self.plain, self.change = plain, change
        self.closed, self.rounds = False, 0

    def train(self, broadcast: Broadcast, clients: Tensor, round: int) -> RoundUpdates:
        self.rounds += 1
        return self.change(self.plain.train(broadcast, clients, round))

    def close(self) -> None:
        self.closed = True


def outcome(change: Change, exact: bool) -> str:
    """Why a candidate with these updates was not to be had; empty if it was."""
    given = parts()
    plain = SequentialTrainer(given.dataset, given.model, given.loss, given.local_sgd, 0)
    told: list[str] = []
    other = Changed(plain, change)
    trainer = AutoTrainer(
        {"sequential": Candidate(plain), "other": Candidate(other, exact)},
        lambda name, why: told.append(why),
    )
    sent = Broadcast(0, CLIENTS, given.model.vector(), None)
    expected = plain.train(sent, CLIENTS, 0)
    for _ in range(2):  # the rounds tried are the plain loop's
        assert torch.equal(trainer.train(sent, CLIENTS, 0).deltas, expected.deltas)
    (why,) = told
    assert "sequential" in why
    reason = why.partition("other ")[2]
    if reason.endswith("s a round"):
        assert other.rounds == 2
        return ""
    assert other.rounds == 1  # once out, it is not tried again
    assert other.closed
    trainer.train(sent, CLIENTS, 1)
    assert other.rounds == 1
    return reason


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


@pytest.mark.parametrize(
    ("change", "exact", "reason"),
    [
        (lambda updates: updates, True, ""),
        (lambda updates: updates, False, ""),
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


def test_all_candidates_are_closed_if_the_run_ends_before_the_choice() -> None:
    given = parts()
    plain = SequentialTrainer(given.dataset, given.model, given.loss, given.local_sgd, 0)
    others = [Changed(plain, scaled(1.0)) for _ in range(2)]
    trainer = AutoTrainer(
        {"sequential": Candidate(plain)} | {str(n): Candidate(o) for n, o in enumerate(others)},
        lambda name, why: None,
    )
    trainer.close()
    assert all(other.closed for other in others)


def test_setting_up_does_not_count() -> None:
    """Starting processes takes its time in the first round, and in no other."""
    given = parts()
    plain = SequentialTrainer(given.dataset, given.model, given.loss, given.local_sgd, 0)
    rounds = {"plain": 0, "other": 0}

    def late(name: str, first: float, later: float) -> Change:
        def change(updates: RoundUpdates) -> RoundUpdates:
            rounds[name] += 1
            time.sleep(first if rounds[name] == 1 else later)
            return updates

        return change

    told: list[str] = []
    trainer = AutoTrainer(
        {
            "plain": Candidate(Changed(plain, late("plain", 0.2, 0.2))),
            "other": Candidate(Changed(plain, late("other", 0.5, 0.0))),
        },
        lambda name, why: told.append(name),
    )
    sent = Broadcast(0, CLIENTS, given.model.vector(), None)
    for t in range(2):
        trainer.train(sent, CLIENTS, t)
    assert told == ["other"]


def test_a_resumed_run_goes_by_the_choice_there_is(tmp_path: Path) -> None:
    now = {"trainer": "auto", "exact": False}
    chosen, told = RunDirectory(tmp_path / "chosen"), RunDirectory(tmp_path / "told")
    chosen.create({"trainer": "vectorised", "workers": 2, "auto": "why", "exact": False})
    refuse_other_settings(chosen, now)
    assert with_choice_of_auto(now, chosen.settings()) == chosen.settings()
    undone = RunDirectory(tmp_path / "undone")
    undone.create({"trainer": "auto", "auto": "why it had chosen", "exact": False})
    assert with_choice_of_auto(now, undone.settings()) == now
    told.create({"trainer": "vectorised", "exact": False})  # auto might choose another
    assert with_choice_of_auto(now, told.settings()) == now
    with pytest.raises(RunError, match="now auto"):
        refuse_other_settings(told, now)


def later(updates: RoundUpdates) -> RoundUpdates:
    time.sleep(0.2)
    return updates


def test_the_next_candidate_is_tried_where_one_fails() -> None:
    given = parts()
    plain = SequentialTrainer(given.dataset, given.model, given.loss, given.local_sgd, 0)
    slow = Changed(plain, later)
    told: list[str] = []
    trainer = AutoTrainer(
        {
            "slow": Candidate(slow),
            "failing": Candidate(Changed(plain, failing)),
            "quick": Candidate(plain),
        },
        lambda name, why: told.append(name),
    )
    sent = Broadcast(0, CLIENTS, given.model.vector(), None)
    for t in range(2):
        trainer.train(sent, CLIENTS, t)
    assert told == ["quick"]


def test_resume_told_auto_goes_by_the_choice_there_is(tmp_path: Path) -> None:
    build(load_settings("digits", ["rounds=3", "exact=false"])).run(tmp_path)
    directory = RunDirectory(tmp_path)
    directory.write_settings(directory.settings() | {"trainer": "vectorised", "auto": "why"})
    resume(tmp_path, ["rounds=4", "trainer=auto"], progress=False)
    assert directory.settings()["trainer"] == "vectorised"
    assert directory.settings()["rounds"] == 4
