"""Worker processes: the plain loop's bits, in which order they work, and when they evaluate."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedvarp import LocalSGD
from fedvarp.clients.evaluation import Evaluator
from fedvarp.system.processes import CORES_VARIABLE
from fedvarp.trainers import ParallelTrainer, SequentialTrainer, WorkerError
from small_federation import (
    Counting,
    assert_same_updates,
    bits,
    broadcast_of,
    dataset,
    linear,
    perceptron,
    plain,
    run,
    seeded,
)

CLIENTS = torch.tensor([4, 0, 2, 1])  # neither all of them, nor in order


def evaluator_of(trainer: SequentialTrainer) -> Evaluator:
    return Evaluator(trainer.dataset, trainer.model, trainer.loss)


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("module", [perceptron, Counting])
def test_the_plain_loop_to_the_last_bit(workers: int, module: Callable[[], nn.Module]) -> None:
    dropping = nn.Sequential(nn.Dropout(0.3), module())  # draws while it trains
    reference = plain(dataset(augment=True, diverging=2), dropping)
    with ParallelTrainer(reference, workers) as parallel:
        for corrected in (False, True):
            sent = broadcast_of(reference.model, corrected)
            for clients in (CLIENTS[:1], CLIENTS, CLIENTS.flip(0)):  # the cohort grows once
                expected = reference.train(sent, clients, 2)
                assert_same_updates(parallel.train(sent, clients, 2), expected, exact=True)
    assert expected.refused.keys() == {2}


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("left_out", [False, True])
def test_clients_that_are_left_over_are_shared(workers: int, left_out: bool) -> None:
    """By tolerance for those, to the last bit for the others; also where the mean has gaps."""
    data = dataset(augment=True, diverging=2)
    if left_out:
        data.client(1)[1][0] = data.client(4)[1][:4] = -100
    sgd = LocalSGD(lr=0.1, batch_size=4, epochs=2, momentum=0.9, clip_norm=1.0, weight_decay=0.01)
    reference = plain(data, perceptron(), sgd)
    sent, shared = broadcast_of(reference.model), CLIENTS[:1] if left_out else CLIENTS
    with ParallelTrainer(reference, workers, exact=False) as parallel:
        for clients in (shared, torch.arange(5), CLIENTS[:workers]):
            for t in range(2):
                expected = reference.train(sent, clients, t)
                found = parallel.train(sent, clients, t)
                assert_same_updates(found, expected, exact=len(clients) == workers)


def test_models_that_cannot_be_shared_are_not() -> None:
    """Buffers, corrections, other losses: one worker for each client, and the plain loop's bits."""
    for module, loss, corrected in (
        (Counting(), cross_entropy, False),
        (perceptron(), cross_entropy, True),
        (perceptron(), lambda out, y: cross_entropy(out, y, reduction="sum"), False),
    ):
        reference = plain(dataset(), module, loss=loss)
        sent = broadcast_of(reference.model, corrected)
        with ParallelTrainer(reference, 2, exact=False) as parallel:
            expected = reference.train(sent, CLIENTS[:3], 0)
            assert_same_updates(parallel.train(sent, CLIENTS[:3], 0), expected, exact=True)


def test_a_worker_that_dies_while_it_shares_a_client(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    died = tmp_path / "died"

    class Fatal(nn.Module):
        """Ends the first process that sees a part of a batch of four."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = perceptron()

        def forward(self, x: Tensor) -> Tensor:
            if len(x) == 2:
                with contextlib.suppress(FileExistsError):
                    died.touch(exist_ok=False)
                    os.kill(os.getpid(), signal.SIGKILL)
            logits: Tensor = self.inner(x)
            return logits

    reference = plain(dataset(), Fatal())
    sent = broadcast_of(reference.model)
    with ParallelTrainer(reference, 2, exact=False) as parallel:
        found = parallel.train(sent, torch.tensor([3]), 0)  # four examples: two for each worker
        assert died.exists()
        assert_same_updates(found, reference.train(sent, torch.tensor([3]), 0), exact=True)
        again = parallel.train(sent, torch.tensor([3]), 0)
        assert_same_updates(again, found, exact=False)
    assert "trained by one worker now" in caplog.text


def test_updates_of_a_round_stay_when_the_next_is_trained() -> None:
    reference = plain()
    sent = broadcast_of(reference.model)
    with ParallelTrainer(reference, 1) as parallel:
        first = parallel.train(sent, CLIENTS, 0)
        before = first.deltas.clone()
        parallel.train(sent, CLIENTS, 1)
    assert torch.equal(first.deltas, before)


def test_nobody_answers() -> None:
    reference = plain()
    sent, nobody = broadcast_of(reference.model), torch.empty(0, dtype=torch.int64)
    expected = reference.train(sent, nobody, 0)
    with ParallelTrainer(reference, 1) as parallel:
        assert_same_updates(parallel.train(sent, nobody, 0), expected, exact=True)


def test_corrections_of_an_earlier_round_are_gone() -> None:
    reference = plain()
    with ParallelTrainer(reference, 1) as trainer:
        trainer.train(broadcast_of(reference.model, corrected=True), CLIENTS, 0)
        sent = broadcast_of(reference.model)
        found = trainer.train(sent, CLIENTS, 0)
    assert_same_updates(found, reference.train(sent, CLIENTS, 0), exact=True)


# Evaluation beside training


@pytest.fixture
def loaded(tmp_path: Path) -> Callable[[], list[int]]:
    """The clients that `note` was called with, in whatever process."""
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
    work = plain(dataset(note))
    evaluator = evaluator_of(work)
    clients = torch.tensor([3, 2, 0])  # 4, 12 and 7 examples
    with ParallelTrainer(work, 1, evaluator) as trainer:
        sent = broadcast_of(work.model)
        figures = trainer.evaluation(evaluator, sent.w, {})
        assert figures is not None
        trainer.train(sent, clients, 0)
        assert loaded() == [2, 0, 3, 0, 1, 2, 3, 4]
        assert figures() == evaluator_of(plain()).evaluate(sent.w, {})
        assert len(loaded()) == 8  # it was there; nothing was evaluated twice


def test_an_evaluation_is_cut_into_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With pieces of one part each, five parts; with one piece for each of two workers, two.

    Clients that fit into a batch are scored at once and stay together.
    """
    work = plain()
    w = work.model.vector()
    for pieces, batch_size, expected in ((8, 1, [1] * 5), (1, 1, [3, 2]), (8, 1000, [5])):
        monkeypatch.setattr("fedvarp.trainers.parallel._PIECES_PER_WORKER", pieces)
        sizes = tmp_path / f"sizes {pieces} {batch_size}"

        class Noting(Evaluator):
            def scores(self, *arguments: object) -> list[list[float]]:
                found = super().scores(*arguments)  # type: ignore[arg-type]
                with sizes.open("a") as file:  # noqa: B023  # called within this turn
                    file.write(f"{len(found)}\n")
                return found

        evaluator = Noting(work.dataset, work.model, work.loss, batch_size=batch_size)
        with ParallelTrainer(work, 2, evaluator) as trainer:
            figures = trainer.evaluation(evaluator, w, {})
            assert figures is not None
            figures()
        assert sorted(map(int, sizes.read_text().split()), reverse=True) == expected


def test_an_evaluation_belongs_to_its_model() -> None:
    work = plain()
    evaluator, sent = evaluator_of(work), broadcast_of(work.model)
    moved = dataclasses.replace(sent, w=sent.w + 1)
    with ParallelTrainer(work, 1, evaluator) as trainer:
        trainer.evaluation(evaluator, sent.w, {})
        with pytest.raises(RuntimeError, match=r"evaluation was begun .* never asked for"):
            trainer.train(moved, CLIENTS, 0)
        trainer.close()  # which forgets it
        expected = work.train(moved, CLIENTS, 0)
        assert_same_updates(trainer.train(moved, CLIENTS, 0), expected, exact=True)


def test_only_the_evaluator_it_was_made_with_can_run_beside_training() -> None:
    work = plain()
    another = evaluator_of(work)
    for own in (None, evaluator_of(work)):
        assert ParallelTrainer(work, 1, own).evaluation(another, work.model.vector(), {}) is None


def test_a_run_with_nothing_to_evaluate() -> None:
    expected = run(num_train_clients=0)
    assert bits(run(num_train_clients=0, trainer="parallel", workers=2)) == bits(expected)


def test_a_run_evaluates_itself_where_the_trainer_has_another_evaluator() -> None:
    module = seeded(linear)
    work = plain(module=module, seed=0)
    with ParallelTrainer(work, workers=2, evaluator=evaluator_of(work)) as own:
        found = run(module=module, trainer=own, num_train_clients=2)
        assert own.pids  # it is closed by whoever made it
    assert bits(found) == bits(run(module=seeded(linear), num_train_clients=2))


# Where the workers run


def test_workers_have_one_thread_each(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    request.addfinalizer(lambda: torch.set_num_threads(1))

    def note_threads(client: int) -> None:
        (tmp_path / "threads").write_text(str(torch.get_num_threads()))

    work = plain(dataset(note_threads))
    with ParallelTrainer(work, 1) as trainer:
        torch.set_num_threads(2)
        trainer.train(broadcast_of(work.model), CLIENTS[:1], 0)
    assert (tmp_path / "threads").read_text() == "1"


def test_a_model_elsewhere_is_refused() -> None:
    work = plain()
    sent = broadcast_of(work.model)
    elsewhere = dataclasses.replace(sent, w=sent.w.to("meta"))
    with ParallelTrainer(work, 1) as trainer, pytest.raises(ValueError, match="cannot share meta"):
        trainer.train(elsewhere, CLIENTS, 0)


def test_as_many_workers_as_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CORES_VARIABLE, "3")
    assert ParallelTrainer(plain()).workers == 3
    assert ParallelTrainer(plain(), workers=2).workers == 2
    with pytest.raises(ValueError, match=r"workers=0 .* at least 1"):
        ParallelTrainer(plain(), workers=0)


def _in_a_daemon(answer: Any) -> None:
    try:
        run(trainer="parallel", workers=2)
    except WorkerError as error:
        answer.send_bytes(str(error).encode())


def test_a_daemonic_process_is_told_why_it_cannot() -> None:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(
        target=_in_a_daemon, args=(theirs,), daemon=True
    )
    process.start()
    theirs.close()
    try:
        assert b'trainer="sequential"' in ours.recv_bytes()
    finally:
        process.join()
        ours.close()
