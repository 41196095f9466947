"""Clients trained by several processes at once, with the plain loop's figures bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import torch
from torch import Tensor

from fedvarp.algorithms.round_updates import RoundUpdates
from fedvarp.clients.evaluation import Evaluator, Figures
from fedvarp.processes import keep_freed_memory, usable_cores
from fedvarp.server.server import Broadcast
from fedvarp.trainers.sequential import SequentialTrainer, corrections_of, gather
from fedvarp.trainers.shared_memory import Board, unpacked
from fedvarp.trainers.worker_pool import Task, WorkerPool

_TRAIN: Final = 0  # kinds of task: (kind, slot, client, round)
_TRAIN_CORRECTED: Final = 1
_EVALUATE: Final = 2  # (kind, first part, last part + 1, 0)
_PIECES_PER_WORKER: Final = 8  # of an evaluation: small enough to fill the slots that are idle


class ParallelTrainer:
    """Persistent worker processes, one thread each; whoever is free takes the longest client left.

    The model goes out, and updates come back, through shared memory; nothing is pickled. Workers
    are forked from this process when the first round is trained, so the data, the model and the
    loss may be anything, and they take memory once. A worker that dies is replaced and its client
    trained again.

    Bit-identical to `SequentialTrainer` on one thread (`torch.set_num_threads(1)`), for any number
    of workers. Close it, or use it as a context manager.

    Args:
        plain: What the workers run.
        workers: How many processes; None: one for each core.
        evaluator: What `evaluation` evaluates with.
    """

    def __init__(
        self,
        plain: SequentialTrainer,
        workers: int | None = None,
        evaluator: Evaluator | None = None,
    ) -> None:
        if workers is not None and workers < 1:
            raise ValueError(f"workers={workers} must be at least 1.")
        self.workers = workers or usable_cores()
        self._plain = plain
        self.evaluator = evaluator
        self._pool: WorkerPool | None = None
        self._board: Board | None = None
        self._behind: list[Task] = []  # pieces of an evaluation that wait for the next round

    def __enter__(self) -> ParallelTrainer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the workers; the next round would start others."""
        if self._pool is not None:
            self._pool.close()
        self._pool = self._board = None
        self._behind = []

    @property
    def pids(self) -> list[int]:
        """The worker processes there are."""
        return [] if self._pool is None else self._pool.pids

    def train(self, broadcast: Broadcast, clients: Tensor, round: int) -> RoundUpdates:
        """LocalSGD at each of the clients, and behind them the evaluation that was begun."""
        numbers = clients.tolist()
        board = self._board_for(len(numbers), broadcast.w, broadcast.buffers)
        corrections = corrections_of(broadcast)
        for slot, client in enumerate(numbers):
            if corrections:
                board.corrections[slot] = corrections[client]
        kind = _TRAIN_CORRECTED if corrections else _TRAIN
        tasks = [(kind, slot, client, round) for slot, client in enumerate(numbers)]
        self._run([*sorted(tasks, key=self._num_examples, reverse=True), *self._take_behind()])
        buffers = {
            client: unpacked(board.sent_buffers[slot], broadcast.buffers)
            for slot, client in enumerate(numbers)
            if broadcast.buffers
        }
        results = {client: board.read(slot) for slot, client in enumerate(numbers)}
        return gather(results, buffers, broadcast.w)

    def evaluation(self, w: Tensor, buffers: Mapping[str, Tensor]) -> Callable[[], Figures]:
        """Begins an evaluation; the function returned waits for it and gives its figures.

        Its pieces stand behind the clients of the next round, which is trained from the same model,
        and fill the slots in which a worker would wait for the round's last client. Without a next
        round they are worked off when the figures are asked for.
        """
        if self.evaluator is None:
            raise ValueError("This trainer was made without an evaluator.")
        evaluator = self.evaluator
        board = self._board_for(0, w, buffers)
        parts = evaluator.num_parts
        size = max(1, -(-parts // (_PIECES_PER_WORKER * self.workers)))
        self._behind = [
            (_EVALUATE, start, min(start + size, parts), 0) for start in range(0, parts, size)
        ]

        def figures() -> Figures:
            self._run(self._take_behind())
            current = board if self._board is None else self._board
            return evaluator.figures(current.scores.tolist())

        return figures

    def _run(self, tasks: list[Task]) -> None:
        if self._pool is None:
            self._pool = WorkerPool(self.workers, self._work, _prepare_worker, _describe)
        self._pool.run(tasks)

    def _take_behind(self) -> list[Task]:
        behind, self._behind = self._behind, []
        return behind

    def _board_for(self, slots: int, w: Tensor, buffers: Mapping[str, Tensor]) -> Board:
        """A board that shows this model; the workers are forked anew if it has to grow."""
        if w.device.type != "cpu":
            raise ValueError(
                f"Forked processes cannot share {w.device}, where the model is. Use "
                f'trainer="vectorised" or "sequential" there.'
            )
        board = self._board
        if self._behind and board is not None and not torch.equal(board.w, w):
            raise RuntimeError("An evaluation was begun and its figures were never asked for.")
        if board is None or slots > len(board.deltas):
            if self._pool is not None:
                self._pool.close()
            parts = 0 if self.evaluator is None else self.evaluator.num_parts
            board = self._board = Board.sized(max(slots, 1), w, buffers, parts, Evaluator.SCORES)
        board.show(w, buffers)
        return board

    def _num_examples(self, task: Task) -> int:
        sizes = self._plain.dataset.num_examples
        return 0 if sizes is None else int(sizes[task[2]])

    def _work(self, task: Task) -> None:
        """In a worker: one client, or one piece of an evaluation."""
        board, model = self._board, self._plain.model
        assert board is not None
        buffers = unpacked(board.buffers, model.buffers())
        if task[0] == _EVALUATE:
            assert self.evaluator is not None
            _, start, stop, _ = task
            scores = self.evaluator.scores(board.w, buffers, start, stop)
            board.scores[start:stop] = torch.tensor(scores, dtype=torch.float64)
            return
        kind, slot, client, round = task
        correction = board.corrections[slot] if kind == _TRAIN_CORRECTED else None
        result = self._plain.train_one(board.w, buffers, client, round, correction)
        board.write(slot, result, model.buffers() if buffers else {})


def _prepare_worker() -> None:
    torch.set_num_threads(1)
    keep_freed_memory()


def _describe(task: Task) -> str:
    kind, _, client, round = task
    return "a piece of an evaluation" if kind == _EVALUATE else f"client {client} of round {round}"
