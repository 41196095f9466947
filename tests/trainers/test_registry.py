"""Trainers by their names: which are made of what, which are tried by auto, and one's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from fedvarp import FlatModel
from fedvarp.clients.evaluation import Evaluator
from fedvarp.trainers import (
    TRAINERS,
    AutoTrainer,
    ParallelTrainer,
    RayTrainer,
    SequentialTrainer,
    TrainerParts,
    VectorisedTrainer,
    make_trainer,
)
from small_federation import SGD, Changed, bits, dataset, linear, run, seeded


def parts(**changes: Any) -> TrainerParts:
    data, model = dataset(), FlatModel(seeded(linear))
    evaluator = Evaluator(data, model, cross_entropy)
    given = {"workers": 2} | changes
    return TrainerParts(data, model, cross_entropy, SGD, 0, evaluator, **given)


def auto(**changes: Any) -> AutoTrainer:
    trainer = make_trainer("auto", parts(**changes))
    assert isinstance(trainer, AutoTrainer)
    return trainer


def tried(**changes: Any) -> tuple[set[str], set[str]]:
    trainer = auto(**changes)
    return set(trainer.candidates), set(trainer.not_tried)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("auto", AutoTrainer),
        ("sequential", SequentialTrainer),
        ("parallel", ParallelTrainer),
        ("vectorised", VectorisedTrainer),
        ("ray", RayTrainer),
    ],
)
def test_every_name_makes_its_trainer(name: str, kind: type) -> None:
    assert type(make_trainer(name, parts())) is kind


def test_a_trainer_of_ones_own_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Changed] = []

    def mine(parts: TrainerParts) -> Changed:
        made.append(Changed(make_trainer("sequential", parts)))
        return made[-1]

    monkeypatch.setitem(TRAINERS, "mine", mine)
    assert bits(run(trainer="mine")) == bits(run())
    (trainer,) = made
    assert trainer.rounds == list(range(7))
    assert trainer.closed  # by the run, which made it


def test_what_is_no_trainer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TRAINERS, "mine", lambda parts: object())
    with pytest.raises(ValueError, match=r"'mine' is made into a object.* Derive it"):
        run(trainer="mine")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trainer": "paralel"}, "'paralel' is no trainer; did you mean parallel"),
        ({"trainer": "parallel", "workers": 0}, "workers = 0 should be at least 1"),
        ({"trainer": "vectorised", "compile": True}, "compile.*sequential.*not 'vectorised'"),
        ({"trainer": "ray", "compile": True}, "compile.*sequential.*not 'ray'"),
    ],
)
def test_what_no_trainer_can_do_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(**changes)


def test_who_is_tried_by_auto(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert not auto(exact=False).candidates["parallel"].exact


def test_what_the_candidates_of_auto_promise() -> None:
    promises = {
        name: (candidate.exact, candidate.for_long_rounds)
        for name, candidate in auto(exact=False).candidates.items()
    }
    assert promises == {
        "sequential": (True, False),
        "parallel": (False, True),  # its workers share what is left over
        "vectorised": (False, False),
    }
    assert auto().candidates["parallel"].exact


def test_workers_share_the_evaluator_of_the_run() -> None:
    given = parts()
    chosen = make_trainer("auto", given)
    assert isinstance(chosen, AutoTrainer)
    for parallel in (chosen.candidates["parallel"].trainer, make_trainer("parallel", given)):
        assert isinstance(parallel, ParallelTrainer)
        assert parallel.evaluator is given.evaluator
        assert parallel.workers == 2
