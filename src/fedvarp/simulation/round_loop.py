"""The round loop: sample, broadcast, train, receive, evaluate, and what becomes of it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedvarp.algorithms.round_updates import RoundUpdates
from fedvarp.clients.evaluation import Evaluator, Figures
from fedvarp.clients.sampling import ClientSampler, Cohort
from fedvarp.clusters.reclustering import Reclustering
from fedvarp.processes import Interruption
from fedvarp.runs.finished import reached
from fedvarp.runs.journal import without_nan
from fedvarp.server.flat_model import FlatModel, average_buffers
from fedvarp.server.server import RoundReport, Server
from fedvarp.simulation.progress import RunProgress
from fedvarp.trainers import AutoTrainer, ClientTrainer, ParallelTrainer

Record = dict[str, Any]
Stopped = Literal["rounds", "target", "interrupted"]
Callback = Callable[[Record, Server], None]
_Waiting = tuple[Record, Callable[[], Figures]]


@dataclass(frozen=True, eq=False)
class SimulationResult:
    """What a run leaves behind."""

    server: Server
    model: nn.Module  # the module that was passed in, with the final weights
    metrics: list[Record]  # one for each round, the first for the initial model
    stopped: Stopped  # why it ended

    def final(self, name: str) -> float:
        """The last value of a metric, such as "test_accuracy"."""
        for record in reversed(self.metrics):
            if record.get(name) is not None:
                return float(record[name])
        raise KeyError(f"No round recorded {name!r}.")


@dataclass(eq=False)
class Simulation:
    """A server, its clients, and the loop that brings them together."""

    server: Server
    sampler: ClientSampler
    trainer: ClientTrainer
    evaluator: Evaluator
    model: FlatModel
    evaluate_every: int
    target_accuracy: float | None
    callbacks: Sequence[Callback]
    buffers: dict[str, Tensor]
    title: str
    reclustering: Reclustering | None = None  # for clusters that follow the gradients
    _clock: float = 0.0  # when the last record was finished

    def run(
        self,
        rounds: int,
        progress: bool | None = None,
        keep: Callable[[Record, float], None] | None = None,
        last: Record | None = None,
    ) -> SimulationResult:
        """Rounds up to number `rounds`, from wherever the server is.

        Args:
            rounds: T.
            progress: Whether to show a bar.
            keep: Takes each record and the seconds it took.
            last: The record of the newest evaluation, of a run that goes on.
        """
        metrics: list[Record] = []
        waiting: _Waiting | None = None  # a record whose evaluation is under way
        bar = RunProgress(self.title, self.server.round, rounds, progress)
        self._clock = time.perf_counter()

        def settle() -> bool:
            """Completes the record that waits; whether the run goes on after it."""
            nonlocal waiting, last
            if waiting is not None:
                record, figures = waiting
                waiting, last = None, record | figures()
                finish(last)
            return not self._reached(last)

        def finish(record: Record) -> None:
            record = without_nan(record)  # in memory as on disk
            metrics.append(record)
            seconds, self._clock = time.perf_counter() - self._clock, time.perf_counter()
            if keep is not None:
                keep(record, seconds)
            for callback in self.callbacks:
                callback(record, self.server)
            bar.advance(record)

        with bar, Interruption() as stop:
            while not self._reached(last) and not stop.requested:
                if last is None and waiting is None:
                    record: Record | None = self._first_record()
                elif self.server.round < rounds:
                    record = self.one_round(settle)
                else:
                    break
                if record is None:  # the evaluation that was under way has reached the target
                    break
                if record["round"] % self.evaluate_every and record["round"] != rounds:
                    finish(record)
                    continue
                waiting = record, self._evaluation()
                if self.callbacks or record["round"] == rounds or not self._evaluates_beside:
                    settle()
            settle()
        self.model.bind(self.server.w.clone())
        self.model.load_buffers(self.buffers)
        return SimulationResult(
            self.server, self.model.module, metrics, self._why_stopped(rounds, last)
        )

    @property
    def _evaluates_beside(self) -> bool:
        """Whether the trainer has idle slots in which it evaluates, and to the same figures."""
        trainer = self._current_trainer
        return isinstance(trainer, ParallelTrainer) and trainer.evaluator is self.evaluator

    @property
    def _current_trainer(self) -> ClientTrainer:
        return self.trainer.current if isinstance(self.trainer, AutoTrainer) else self.trainer

    def _evaluation(self) -> Callable[[], Figures]:
        trainer = self._current_trainer
        if isinstance(trainer, ParallelTrainer) and self._evaluates_beside:
            return trainer.evaluation(self.server.w, self.buffers)
        return lambda: self.evaluator.evaluate(self.server.w, self.buffers)

    def _first_record(self) -> Record:
        return {"round": 0, "num_clients": self.evaluator.dataset.num_clients}

    def one_round(self, settle: Callable[[], bool] = lambda: True) -> Record | None:
        """Sample, broadcast, train, receive: Algorithm 2, lines 3 to 14, for any algorithm.

        Args:
            settle: Called before anything changes, when the clients have trained if possible. If
                it says that the run is over, the round is dropped, and there is no record.
        """
        t = self.server.round
        if self.reclustering is not None and self.reclustering.is_due(t):
            if not settle():
                return None
            self.reclustering.renew(self.server, self.buffers)
        cohort = self.sampler.cohort(t)
        answering = cohort.answering
        broadcast = self.server.broadcast(answering.clients)
        if self.buffers:
            broadcast = dataclasses.replace(broadcast, buffers=self.buffers)
        updates = self.trainer.train(broadcast, answering.clients, t)
        if not settle():
            return None
        report = self.server.receive(_weighted(updates, answering))
        if not report.accepted:
            self.server.skip()
        elif self.buffers:
            sent = [updates.buffers[i] for i in report.accepted if i in updates.buffers]
            self.buffers = average_buffers(sent) if sent else self.buffers
        return self._record(cohort, updates, report)

    def _record(self, cohort: Cohort, updates: RoundUpdates, report: RoundReport) -> Record:
        aggregator, vector_bytes = self.server.aggregator, self.server.w.nbytes
        losses = [updates.losses[i] for i in report.accepted if i in updates.losses]
        return {
            "round": self.server.round,
            "clients": list(report.accepted),
            "refused": {str(client): why for client, why in report.refused.items()},
            "local_loss": sum(losses) / len(losses) if losses else None,
            "num_steps": int(updates.num_steps.sum()),
            "bytes_down": len(cohort.clients) * aggregator.vectors_down * vector_bytes,
            "bytes_up": len(cohort.answering.clients) * aggregator.vectors_up * vector_bytes,
            "server_bytes": self.server.num_bytes,
        }

    def _why_stopped(self, rounds: int, last: Record | None) -> Stopped:
        if self._reached(last):
            return "target"
        return "rounds" if self.server.round >= rounds else "interrupted"

    def _reached(self, evaluated: Record | None) -> bool:
        return reached(self.target_accuracy, evaluated)


def _weighted(updates: RoundUpdates, cohort: Cohort) -> RoundUpdates:
    if cohort.weights is None:
        return updates
    weight_of = dict(zip(cohort.clients.tolist(), cohort.weights.tolist(), strict=True))
    weights = [weight_of[client] for client in updates.clients.tolist()]
    return dataclasses.replace(updates, weights=torch.tensor(weights, dtype=torch.float64))
