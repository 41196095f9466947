"""In which order the workers take their work, with which settings, and when they evaluate."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedvarp import Broadcast, FlatModel, LocalSGD, stream
from fedvarp.clients.evaluation import Evaluator
from fedvarp.data import FederatedDataset
from fedvarp.processes import CORES_VARIABLE
from fedvarp.trainers import ParallelTrainer, SequentialTrainer
from fedvarp.trainers import ray as on_ray
from fedvarp.trainers.ray import RayTrainer

SIZES = [7, 1, 12, 4, 9]
FEATURES, CLASSES = 5, 3


def examples(client: int) -> tuple[Tensor, Tensor]:
    draws = stream(0, "examples", client)
    n = SIZES[client]
    return (
        torch.randn(n, FEATURES, generator=draws),
        torch.randint(CLASSES, (n,), generator=draws),
    )


def plain(note: Callable[[int], None] = lambda client: None) -> SequentialTrainer:
    """A trainer whose data set calls `note` with each client that is loaded."""

    def load(client: int) -> tuple[Tensor, Tensor]:
        note(client)
        return examples(client)

    torch.manual_seed(0)
    model = FlatModel(nn.Linear(FEATURES, CLASSES))
    data = FederatedDataset(load=load, num_clients=len(SIZES), num_examples=torch.tensor(SIZES))
    return SequentialTrainer(
        data, model, cross_entropy, LocalSGD(lr=0.1, batch_size=4, epochs=1), seed=0
    )


def evaluator_of(trainer: SequentialTrainer) -> Evaluator:
    return Evaluator(trainer.dataset, trainer.model, trainer.loss)


def sent_by(trainer: SequentialTrainer, clients: Tensor, corrected: bool = False) -> Broadcast:
    w = trainer.model.vector()
    rows = torch.ones(len(clients), len(w)) if corrected else None
    return Broadcast(0, clients, w, rows)


@pytest.fixture
def loaded(tmp_path: Path) -> Callable[[], list[int]]:
    return lambda: [int(line) for line in (tmp_path / "loaded").read_text().split()]


@pytest.fixture
def note(tmp_path: Path) -> Callable[[int], None]:
    def append(client: int) -> None:
        with (tmp_path / "loaded").open("a") as file:
            file.write(f"{client}\n")

    return append


def test_the_longest_client_comes_first_and_the_evaluation_last(
    note: Callable[[int], None], loaded: Callable[[], list[int]]
) -> None:
    work = plain(note)
    clients = torch.tensor([3, 2, 0])  # 4, 12 and 7 examples
    evaluator = evaluator_of(work)
    with ParallelTrainer(work, 1, evaluator) as trainer:
        sent = sent_by(work, clients)
        figures = trainer.evaluation(evaluator, sent.w, {})
        assert figures is not None
        trainer.train(sent, clients, 0)
        assert loaded() == [2, 0, 3, 0, 1, 2, 3, 4]
        assert figures() == evaluator_of(plain()).evaluate(sent.w, {})
        assert len(loaded()) == 8  # it was there; nothing was evaluated twice


def test_an_evaluation_is_cut_into_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With pieces of one part each, five parts; with one piece for each of two workers, two."""
    work = plain()
    sent = sent_by(work, torch.arange(1))
    for pieces, expected in ((8, [1] * 5), (1, [3, 2])):
        monkeypatch.setattr("fedvarp.trainers.parallel._PIECES_PER_WORKER", pieces)
        sizes = tmp_path / f"sizes {pieces}"

        class Noting(Evaluator):
            def scores(self, *arguments: object) -> list[list[float]]:
                found = super().scores(*arguments)  # type: ignore[arg-type]
                with sizes.open("a") as file:  # noqa: B023  # called within this turn
                    file.write(f"{len(found)}\n")
                return found

        evaluator = Noting(work.dataset, work.model, work.loss)
        with ParallelTrainer(work, 2, evaluator) as trainer:
            figures = trainer.evaluation(evaluator, sent.w, {})
            assert figures is not None
            figures()
        assert sorted(map(int, sizes.read_text().split()), reverse=True) == expected


def test_an_evaluation_belongs_to_its_model() -> None:
    work = plain()
    clients = torch.arange(2)
    sent = sent_by(work, clients)
    moved = dataclasses.replace(sent, w=sent.w + 1)
    evaluator = evaluator_of(work)
    with ParallelTrainer(work, 1, evaluator) as trainer:
        trainer.evaluation(evaluator, sent.w, {})
        with pytest.raises(RuntimeError, match="never asked for"):
            trainer.train(moved, clients, 0)
        trainer.close()  # which forgets it
        expected = work.train(moved, clients, 0)
        assert torch.equal(trainer.train(moved, clients, 0).deltas, expected.deltas)


def test_only_the_evaluator_it_was_made_with_can_run_beside_training() -> None:
    work = plain()
    others = evaluator_of(work)
    for own in (None, evaluator_of(work)):
        assert ParallelTrainer(work, 1, own).evaluation(others, work.model.vector(), {}) is None


def test_corrections_of_an_earlier_round_are_gone() -> None:
    work = plain()
    clients = torch.arange(2)
    with ParallelTrainer(work, 1) as trainer:
        trainer.train(sent_by(work, clients, corrected=True), clients, 0)
        sent = sent_by(work, clients)
        found = trainer.train(sent, clients, 0)
    assert torch.equal(found.deltas, work.train(sent, clients, 0).deltas)


def test_workers_have_one_thread_each(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    request.addfinalizer(lambda: torch.set_num_threads(1))

    def note_threads(client: int) -> None:
        (tmp_path / "threads").write_text(str(torch.get_num_threads()))

    work = plain(note_threads)
    clients = torch.arange(1)
    with ParallelTrainer(work, 1) as trainer:
        torch.set_num_threads(2)
        trainer.train(sent_by(work, clients), clients, 0)
    assert (tmp_path / "threads").read_text() == "1"


def test_a_model_elsewhere_is_refused() -> None:
    work = plain()
    clients = torch.arange(1)
    sent = sent_by(work, clients)
    elsewhere = dataclasses.replace(sent, w=sent.w.to("meta"))
    with ParallelTrainer(work, 1) as trainer, pytest.raises(ValueError, match="cannot share meta"):
        trainer.train(elsewhere, clients, 0)


def test_as_many_workers_as_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CORES_VARIABLE, "3")
    assert ParallelTrainer(plain()).workers == 3
    assert ParallelTrainer(plain(), workers=2).workers == 2
    for wrong in ("0", "-1", "two"):
        monkeypatch.setenv(CORES_VARIABLE, wrong)
        with pytest.raises(ValueError, match=f"{CORES_VARIABLE}={wrong!r} must be a whole number"):
            ParallelTrainer(plain())


def test_a_cluster_of_ones_own_keeps_to_these_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep gives each of its runs some of the cores, whoever trains in them."""
    asked: list[int] = []
    monkeypatch.setattr(on_ray, "connect", lambda address, cores, instead: asked.append(cores))
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setenv(CORES_VARIABLE, "3")
    work = plain()
    RayTrainer(work.dataset, work.model, work.loss, work.local_sgd, seed=0)._connect()
    assert asked == [3]
