"""The round loop: cohort, broadcast, train, receive, evaluate, record, commit."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import torch
from torch import Tensor

from fedvarp.algorithms.clipped import Clipped
from fedvarp.algorithms.round_updates import RoundUpdates
from fedvarp.clients.cohorts import ClientSampler, Cohort, LearningSampler
from fedvarp.clients.evaluation import Evaluator, Figures
from fedvarp.clusters.reclustering import Reclustering
from fedvarp.errors import InvalidError, sentence
from fedvarp.runs.figures import FIGURES
from fedvarp.runs.finished import reached
from fedvarp.runs.journal import without_nan
from fedvarp.server.flat_model import FlatModel, average_buffers
from fedvarp.server.server import RoundReport, Server
from fedvarp.simulation.callbacks import Callback, Record, StopRun
from fedvarp.simulation.cohorts_ahead import CohortsAhead
from fedvarp.simulation.progress import RunProgress
from fedvarp.simulation.result import SimulationResult, Stopped
from fedvarp.simulation.settings import Evaluation
from fedvarp.system.processes import Interruption
from fedvarp.trainers.base import ClientTrainer

Commit = Callable[[], None]
Keep = Callable[[Record, float], Commit | None]
"""Takes a round's record and the seconds it took; gives what is left to do, if that takes long."""


@dataclass(eq=False)
class Simulation:
    """A server, its clients, and the loop that brings them together."""

    server: Server
    sampler: ClientSampler
    trainer: ClientTrainer
    evaluator: Evaluator
    model: FlatModel
    evaluation: Evaluation
    callbacks: Sequence[Callback]
    buffers: dict[str, Tensor]
    title: str
    objective: str  # what it optimises, in words, for the first record
    mean_steps: float = 1.0  # the server's step is this much longer: see `mean_steps` of clients
    reclustering: Reclustering | None = None  # for clusters that follow the gradients

    def run(
        self,
        rounds: int,
        progress: bool | None = None,
        keep: Keep | None = None,
        last: Record | None = None,
    ) -> SimulationResult:
        """Trains up to round `rounds`, from wherever the server is.

        One turn of the loop belongs to one model: it is evaluated, beside the training that starts
        from it where the trainer has idle slots; its record is finished and kept; and what the
        clients sent makes the next one.

        Args:
            rounds: T.
            progress: Whether to show a bar; None: in a terminal.
            keep: Takes each record and commits the round. Whoever gives it has the records then:
                the result is without.
            last: The record of the newest evaluation, of a run that goes on.

        Returns:
            The model, the records of the rounds of this call, and why it ended.
        """
        bar = RunProgress(self.title, self.server.round, rounds, progress)
        log = _Log(self.server, self.callbacks, keep, bar)
        num_clients = self.evaluator.dataset.num_clients
        cohorts = CohortsAhead(self.sampler, num_clients, rounds, self.trainer)
        record = None if last is not None else self._first_record()
        with bar, Interruption() as interruption, _kept_if_all_fails(self.model), log:
            while True:
                figures = self._evaluation_beside_training(record, rounds, interruption)
                if record is not None and figures is None:
                    last = log.finish(record, self._evaluate_if_due(record, rounds)) or last
                why = self._why_stop(rounds, last, log.stopped, interruption)
                if why is not None:
                    break
                cohort, updates = self._train_cohort(cohorts, log)
                if record is not None and figures is not None:
                    last = log.finish(record, figures()) or last
                    why = self._why_stop(rounds, last, log.stopped, interruption)
                    if why == "target":  # the cohort was trained in vain
                        break
                log.settle()  # before the server changes
                record = self._receive(cohort, updates)
        self.model.bind(self.server.w.clone())
        self.model.load_buffers(self.buffers)
        return SimulationResult(self.server, self.model.module, log.metrics, why)

    def _train_cohort(self, cohorts: CohortsAhead, log: _Log) -> tuple[Cohort, RoundUpdates]:
        """Algorithm 2, lines 3 to 7, for any algorithm."""
        t = self.server.round
        if self.reclustering is not None and self.reclustering.is_due(t):
            log.settle()  # before rows change
            self.reclustering.renew(self.server, self.buffers)
        for callback in self.callbacks:
            callback.on_round_begin(t, self.server)
        cohort = cohorts.of(t)  # line 3: S
        answering = cohort.answering
        broadcast = self.server.broadcast(answering.clients)  # line 4: w to everybody in S
        if self.buffers:
            broadcast = dataclasses.replace(broadcast, buffers=self.buffers)
        with log.settled_meanwhile():
            updates = self.trainer.train(broadcast, answering.clients, t)  # lines 5 to 7: Δ_i
        return cohort, self._for_the_server(updates, cohort)

    def _for_the_server(self, updates: RoundUpdates, cohort: Cohort) -> RoundUpdates:
        """What clients do not know of each other: their weights, and how many steps all take.

        Where nobody was asked, since nobody is online, there is no sum that could be empty, and
        the server has no reason to go on along its rows.
        """
        if cohort.weights is not None and len(cohort.clients):
            weight_of = dict(zip(cohort.clients.tolist(), cohort.weights.tolist(), strict=True))
            weights = [weight_of[client] for client in updates.clients.tolist()]
            weighted = torch.tensor(weights, dtype=torch.float64)
            updates = dataclasses.replace(updates, weights=weighted)
        if self.mean_steps == 1.0:
            return updates
        return dataclasses.replace(updates, scale=updates.scale * self.mean_steps)

    @cached_property
    def _learning_sampler(self) -> LearningSampler | None:
        return self.sampler if isinstance(self.sampler, LearningSampler) else None

    def _receive(self, cohort: Cohort, updates: RoundUpdates) -> Record:
        """Algorithm 2, lines 8 to 14: v, the step of w, the table; then what is known so far."""
        sampler = self._learning_sampler
        report = self.server.receive(updates, with_residuals=sampler is not None)
        if sampler is not None:
            used = torch.tensor(report.accepted, dtype=torch.int64)
            sampler.observe(used, torch.tensor(report.residuals, dtype=torch.float64))
        if not report.stepped:
            self.server.skip()
        if self.buffers:
            sent = [updates.buffers[i] for i in report.accepted if i in updates.buffers]
            self.buffers = average_buffers(sent) if sent else self.buffers
        return self._record(cohort, updates, report)

    def _first_record(self) -> Record:
        num_clients = self.evaluator.dataset.num_clients
        return {"round": 0, "num_clients": num_clients, "objective": self.objective}

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
            "bytes_up": int(cohort.answers.sum()) * aggregator.vectors_up * vector_bytes,
            "server_bytes": self.server.num_bytes,
            **({} if aggregator.table is None else aggregator.table.metrics()),
            **({"clipped": len(report.clipped)} if isinstance(aggregator, Clipped) else {}),
        }

    def _is_due(self, record: Record, rounds: int) -> bool:
        round: int = record["round"]
        return round % self.evaluation.every == 0 or round == rounds

    def _evaluate_if_due(self, record: Record, rounds: int) -> Figures:
        if not self._is_due(record, rounds):
            return {}
        begun = self.trainer.evaluation(self.evaluator, self.server.w, self.buffers)
        return self.evaluator.evaluate(self.server.w, self.buffers) if begun is None else begun()

    def _evaluation_beside_training(
        self, record: Record | None, rounds: int, interruption: Interruption
    ) -> Callable[[], Figures] | None:
        """An evaluation that is under way while the next cohort trains; None: there is none."""
        if record is None or not self._is_due(record, rounds):
            return None
        if self.callbacks:
            return None  # they are told of a round before the next one trains, and may end the run
        t = self.server.round
        changes_first = self.reclustering is not None and self.reclustering.is_due(t)
        if t >= rounds or interruption.requested or changes_first:
            return None  # there is no training to stand beside, or rows would change before it
        return self.trainer.evaluation(self.evaluator, self.server.w, self.buffers)

    def _why_stop(
        self,
        rounds: int,
        evaluated: Record | None,
        stopped_by_callback: bool,
        interruption: Interruption,
    ) -> Stopped | None:
        if reached(self.evaluation.target_accuracy, evaluated):
            return "target"
        if stopped_by_callback:
            return "callback"
        if self.server.round >= rounds:
            return "rounds"
        return "interrupted" if interruption.requested else None


@contextlib.contextmanager
def _kept_if_all_fails(model: FlatModel) -> Iterator[None]:
    """A run that fails leaves the caller's module as it was, not with some client's weights."""
    w, buffers = model.vector(), model.buffers()
    training = [(part, part.training) for part in model.module.modules()]
    try:
        yield
    except BaseException:
        model.bind(w)
        model.load_buffers(buffers)
        for part, mode in training:
            part.training = mode
        raise


class _Log:
    """Where finished records go: to the callbacks, the run's directory and the bar.

    A commit that takes long runs while the next cohort is trained, which changes nothing of what is
    committed; before the server changes, it is done. The bar shows a round once it is committed.
    """

    def __init__(
        self,
        server: Server,
        callbacks: Sequence[Callback],
        keep: Keep | None,
        bar: RunProgress,
    ) -> None:
        self.metrics: list[Record] = []
        self.stopped = False  # a callback asked for it
        self._bar = bar
        self._server = server
        self._callbacks = callbacks
        self._keep = keep
        self._clock = time.perf_counter()
        self._unsettled: tuple[Record, Commit | None] | None = None

    def __enter__(self) -> _Log:
        return self

    def __exit__(self, *exception: object) -> None:
        self.settle()  # a round that is done is kept, whatever happens to the next one

    def finish(self, record: Record, figures: Figures) -> Record | None:
        """Completes a record and passes it on; returns it if it was evaluated."""
        record = without_nan(record | dict(figures))  # in memory as on disk
        numbers = {name: value for name, value in figures.items() if isinstance(value, float)}
        for callback in self._callbacks:
            try:
                if figures:
                    _add(record, callback, callback.on_evaluation(numbers, self._server))
                shown = MappingProxyType(record)
                _add(record, callback, callback.on_round_end(shown, self._server))
            except StopRun:
                self.stopped = True
        if self._keep is None:  # a run that is kept can have tens of thousands
            self.metrics.append(record)
        seconds, self._clock = time.perf_counter() - self._clock, time.perf_counter()
        commit = None if self._keep is None else self._keep(record, seconds)
        self._unsettled = record, commit
        if commit is None or self._callbacks:  # which may change the server before it trains
            self.settle()
        return record if figures else None

    def settle(self) -> None:
        """Commits what has not been committed yet."""
        if self._unsettled is not None:
            (record, commit), self._unsettled = self._unsettled, None
            if commit is not None:
                commit()
            self._bar.advance(record)

    @contextlib.contextmanager
    def settled_meanwhile(self) -> Iterator[None]:
        """Commits beside what is done within, and is done with it afterwards."""
        if self._unsettled is None:
            yield
            return
        (record, commit), self._unsettled = self._unsettled, None
        assert commit is not None  # else it was settled at once
        beside = ThreadPoolExecutor(1, "commit")
        committed = beside.submit(commit)
        try:
            with beside:  # which waits for it at the end
                yield
        except BaseException as error:
            if committed.done() and (lost := committed.exception()) is not None:
                why = sentence(lost)
                error.add_note(f"Round {record['round']} could not be saved either: {why}")
            raise
        committed.result()
        self._bar.advance(record)


def _add(record: Record, callback: Callback, metrics: Mapping[str, float] | None) -> None:
    """Adds a callback's metrics to a record, as plain numbers and under names of their own."""
    who = type(callback).__name__
    taken = (record.keys() | set(FIGURES)) & (metrics or {}).keys()
    if taken:
        raise InvalidError(
            f"{who} adds {', '.join(sorted(taken))} to the record of a round, a name that is taken "
            f"already. Give its metric another name."
        )
    for name, value in (metrics or {}).items():
        try:
            record[name] = without_nan(float(value))
        except (TypeError, ValueError) as error:
            raise InvalidError(
                f"{who} gives {name} = {value!r}, which is no number; a metric is one number for "
                f"each round."
            ) from error
