"""Clients trained by several processes at once, with the plain loop's figures bit for bit."""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable, Mapping
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedvarp.algorithms.round_updates import RoundUpdates
from fedvarp.clients.compiled_gradient import CompiledGradient
from fedvarp.clients.evaluation import Evaluator, Figures
from fedvarp.errors import InvalidError
from fedvarp.server.server import Broadcast
from fedvarp.system.processes import keep_freed_memory, usable_cores
from fedvarp.trainers.base import ClientTrainer
from fedvarp.trainers.sequential import SequentialTrainer, corrections_by_client, gather
from fedvarp.trainers.shared_gradient import Meeting, SharedGradient
from fedvarp.trainers.shared_memory import SharedRound, shared_zeros, unpack_buffers
from fedvarp.trainers.worker_pool import Task, WorkerDiedError, WorkerPool

_TRAIN: Final = 0  # kinds of task: (kind, slot, client, round)
_TRAIN_CORRECTED: Final = 1
_EVALUATE: Final = 2  # (kind, first part, last part + 1, 0)
_SHARED: Final = 3  # kinds from here on: (kind + part, slot, client, round)
_PIECES_PER_WORKER: Final = 8  # of an evaluation: small enough to fill the slots that are idle

_logger = logging.getLogger(__name__)


class ParallelTrainer(ClientTrainer):
    """Persistent worker processes, one thread each; whoever is free takes the longest client left.

    The model goes out, and updates come back, through shared memory; nothing is pickled. Workers
    are forked from this process when the first round is trained, so the data, the model and the
    loss may be anything, and they take memory once. A worker that dies is replaced and its client
    trained again.

    Bit-identical to `SequentialTrainer` on one thread (`torch.set_num_threads(1)`), for any number
    of workers, unless `exact` is False. Then the clients that are left over when all workers have
    had as many are shared: each worker takes part of every batch, so that nobody idles. Their
    updates are those of the plain loop to float tolerance. It takes `cross_entropy`, a mean over
    examples, and a model without buffers that treats each example by itself and draws no random
    numbers; other clients are not shared. Close it, or use it as a context manager.

    Args:
        plain: What the workers run.
        workers: How many processes; None: one for each core.
        evaluator: The evaluator that the workers can run beside training; None: none.
        exact: Whether every client is trained by one worker.

    Raises:
        ValueError: There is to be no worker at all.
    """

    def __init__(
        self,
        plain: SequentialTrainer,
        workers: int | None = None,
        evaluator: Evaluator | None = None,
        exact: bool = True,
    ) -> None:
        if workers is not None and workers < 1:
            raise InvalidError(f"workers={workers} must be at least 1.")
        self.workers = workers or usable_cores()
        self.evaluator = evaluator
        self.exact = exact
        self._plain = plain
        self._pool: WorkerPool | None = None
        self._shared: SharedRound | None = None
        self._meeting: Meeting | None = None
        self._begun_evaluation: list[Task] = []  # its pieces that wait for the next round

    def close(self) -> None:
        """Ends the workers; the next round would start others."""
        if self._pool is not None:
            self._pool.close()
        self._pool = self._shared = self._meeting = None
        self._begun_evaluation = []

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers there are."""
        return [] if self._pool is None else self._pool.pids

    def train(self, broadcast: Broadcast, clients: Tensor, round: int) -> RoundUpdates:
        """Runs LocalSGD at some clients, and behind them the evaluation that was begun.

        Args:
            broadcast: What the server sent.
            clients: (M,) int64, those who answer.
            round: t.

        Returns:
            What these clients send back; see `ClientTrainer.train`.

        Raises:
            ValueError: The model is not on the CPU.
            RuntimeError: An evaluation of another model was begun and never asked for.
            WorkerError: A client raised an exception, or keeps ending its worker.
        """
        slot_of = {client: slot for slot, client in enumerate(clients.tolist())}
        shared = self._shared_with(len(slot_of), broadcast.w, broadcast.buffers)
        shared.proximal.fill_(broadcast.proximal)
        corrections = corrections_by_client(broadcast)
        if corrections:
            for client, slot in slot_of.items():
                shared.corrections[slot] = corrections[client]
        kind = _TRAIN_CORRECTED if corrections else _TRAIN
        order = self._plain.dataset.largest_first(list(slot_of))
        tasks = [(kind, slot_of[client], client, round) for client in order]
        evaluating = self._take_evaluation()
        left_over = 0 if evaluating else self._left_over(broadcast, len(tasks))
        self._run([*tasks[: len(tasks) - left_over], *evaluating])
        for task in tasks[len(tasks) - left_over :]:
            self._run_shared(task)
        buffers = {
            client: unpack_buffers(shared.sent_buffers[slot], broadcast.buffers)
            for client, slot in slot_of.items()
            if broadcast.buffers
        }
        results = {client: shared.read_result(slot) for client, slot in slot_of.items()}
        deltas = shared.deltas[: len(slot_of)].clone()  # the next round's come in their place
        return gather(results, buffers, deltas, self._plain.local_sgd.rate(round))

    def evaluation(
        self, evaluator: Evaluator, w: Tensor, buffers: Mapping[str, Tensor]
    ) -> Callable[[], Figures] | None:
        """Begins an evaluation; see `ClientTrainer.evaluation`.

        Its pieces stand behind the clients of the next round, which is trained from the same model,
        and fill the slots in which a worker would wait for the round's last client. Without a next
        round they are worked off when the figures are asked for.

        Args:
            evaluator: Whose figures are wanted.
            w: (d,) the server's model.
            buffers: The model's buffers.

        Returns:
            A function that waits for the figures; None for any evaluator but the trainer's own.
        """
        if evaluator is not self.evaluator:
            return None
        shared = self._shared_with(0, w, buffers)
        pieces = evaluator.pieces(_PIECES_PER_WORKER * self.workers)
        self._begun_evaluation = [(_EVALUATE, start, stop, 0) for start, stop in pieces]

        def figures() -> Figures:
            self._run(self._take_evaluation())
            current = shared if self._shared is None else self._shared
            return evaluator.figures(current.scores.tolist())

        return figures

    def _run(self, tasks: list[Task]) -> None:
        self._pool_of_workers().run(tasks)

    def _pool_of_workers(self) -> WorkerPool:
        if self._pool is None:
            self._pool = WorkerPool(self.workers, self._work, _prepare_worker, _describe)
        return self._pool

    def _left_over(self, broadcast: Broadcast, num_clients: int) -> int:
        """How many clients all workers share: those that would leave some of them idle."""
        divisible = (
            self._plain.loss is cross_entropy
            and not isinstance(self._plain.gradient_of, CompiledGradient)
            and platform.machine() in ("x86_64", "AMD64")  # where nobody sees writes out of order
        )
        if self.exact or not divisible or broadcast.buffers or broadcast.corrections is not None:
            return 0
        return num_clients % self.workers

    def _run_shared(self, task: Task) -> None:
        assert self._meeting is not None
        _, slot, client, round = task
        parts = [(_SHARED + part, slot, client, round) for part in range(self.workers)]
        self._meeting.reset()
        try:
            self._pool_of_workers().run(parts, together=True)
        except WorkerDiedError as error:
            _logger.warning("%s It is trained by one worker now.", error)
            self._run([task])

    def _take_evaluation(self) -> list[Task]:
        begun, self._begun_evaluation = self._begun_evaluation, []
        return begun

    def _shared_with(self, slots: int, w: Tensor, buffers: Mapping[str, Tensor]) -> SharedRound:
        """Shared memory that holds this model; the workers are forked anew if it has to grow."""
        if w.device.type != "cpu":
            raise InvalidError(
                f"Forked processes cannot share {w.device}, where the model is. Use "
                f'trainer="vectorised" or "sequential" there.'
            )
        shared = self._shared
        if self._begun_evaluation and shared is not None and not torch.equal(shared.w, w):
            raise RuntimeError("An evaluation was begun and its figures were never asked for.")
        if shared is None or slots > len(shared.deltas):
            if self._pool is not None:
                self._pool.close()
            judge = self.evaluator
            parts, scores = (0, 0) if judge is None else (judge.num_parts, judge.num_scores)
            shared = self._shared = SharedRound.allocate(max(slots, 1), w, buffers, parts, scores)
            self._meeting = Meeting(
                gradients=shared_zeros((2, self.workers, len(w) + 1), w.dtype),
                arrived=shared_zeros((self.workers,), torch.int64),
            )
        shared.write_model(w, buffers)
        return shared

    def _work(self, task: Task) -> None:
        """Does one task in a worker: one client, or one piece of an evaluation."""
        shared, model = self._shared, self._plain.model
        assert shared is not None
        buffers = unpack_buffers(shared.buffers, model.buffers())
        if task[0] == _EVALUATE:
            assert self.evaluator is not None
            _, start, stop, _ = task
            scores = self.evaluator.scores(shared.w, buffers, start, stop)
            shared.scores[start:stop] = torch.tensor(scores, dtype=torch.float64)
            return
        kind, slot, client, round = task
        correction = shared.corrections[slot] if kind == _TRAIN_CORRECTED else None
        proximal = float(shared.proximal)
        own = None
        if kind >= _SHARED:
            assert self._meeting is not None
            own = SharedGradient(model, self._plain.loss, self._meeting, kind - _SHARED)
        result = self._plain.train_one(shared.w, buffers, client, round, correction, proximal, own)
        if kind <= _SHARED:  # whoever shares a client comes to the same result
            shared.write_result(slot, result, model.buffers() if buffers else {})


def _prepare_worker() -> None:
    torch.set_num_threads(1)
    keep_freed_memory()


def _describe(task: Task) -> str:
    kind, _, client, round = task
    return "a piece of an evaluation" if kind == _EVALUATE else f"client {client} of round {round}"
