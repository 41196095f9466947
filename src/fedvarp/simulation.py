"""The round loop: train one model over many clients on one machine."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedvarp.algorithms import Aggregator
from fedvarp.algorithms.by_name import TableSettings, make_algorithm
from fedvarp.client_sampling import ClientSampler, Cohort, UniformSampler, WeightedSampler
from fedvarp.clusters_by_name import clusters_by_name
from fedvarp.data import FederatedDataset
from fedvarp.evaluation import Evaluator, Figures
from fedvarp.flat_model import FlatModel, average_buffers
from fedvarp.interruption import Interruption
from fedvarp.local_sgd import LocalSGD, Loss
from fedvarp.progress import RunProgress
from fedvarp.reclustering import Reclustering, reclustering
from fedvarp.recorded_run import RecordedRun
from fedvarp.round_updates import RoundUpdates
from fedvarp.run_description import fingerprint, name_of, plain, plain_value
from fedvarp.run_directory import RunDirectory, without_nan
from fedvarp.server import RoundReport, Server
from fedvarp.server_optimizers import SGD, ServerOptimizer
from fedvarp.simulation_checks import (
    refuse_another_run,
    refuse_impossible,
    refuse_target,
    refuse_two_objectives,
)
from fedvarp.trainers import AutoTrainer, ClientTrainer, ParallelTrainer
from fedvarp.trainers.auto import close
from fedvarp.trainers.by_name import TrainerName, TrainerParts, make_trainer

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


def simulate(
    dataset: FederatedDataset,
    model: nn.Module,
    loss: Loss = cross_entropy,
    *,
    local_sgd: LocalSGD,
    rounds: int,
    clients_per_round: int | None = None,
    algorithm: str | Callable[[TableSettings], Aggregator] = "fedvarp",
    seed: int = 0,
    server_optimizer: ServerOptimizer | None = None,
    sampler: ClientSampler | None = None,
    cluster_of: Tensor | str | None = None,
    recluster_every: int | None = None,
    client_weights: Tensor | None = None,
    states: Literal["memory", "disk"] = "memory",
    dtype: str = "float32",
    trainer: TrainerName | ClientTrainer = "sequential",
    workers: int | None = None,
    compile: bool = False,
    exact: bool = True,
    evaluate_every: int = 10,
    num_train_clients: int | None = None,
    target_accuracy: float | None = None,
    callbacks: Sequence[Callback] = (),
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    commit_every: int = 1,
    fsync: bool = True,
    settings: Mapping[str, Any] | None = None,
    progress: bool | None = None,
    device: torch.device | str = "cpu",
) -> SimulationResult:
    """Trains `model` over the clients of `dataset`, a few of them in each round.

    With `out` the run is kept in that directory, round by round: kill it at any moment and call
    again with ``resume=True`` and the same settings, and it goes on as if nothing had happened.

    Args:
        dataset: The clients' examples.
        model: Any module without BatchNorm, on the CPU; it ends up with the final weights.
        loss: (output, targets) → mean loss of a batch.
        local_sgd: What a client does: rate, batch size, epochs.
        rounds: T.
        clients_per_round: M, drawn uniformly; or give a `sampler`.
        algorithm: "fedavg", "fedvarp", "cluster_fedvarp", "mifa", "scaffold", or a function that
            makes an `Aggregator` of your own.
        seed: Keys every draw. The same seed gives all algorithms the same cohorts and batches.
        server_optimizer: The paper's SGD(lr=1) unless given.
        sampler: Who takes part; see `fedvarp.client_sampling`.
        cluster_of: (N,) clusters for "cluster_fedvarp", or "labels" for clients with the same
            labels, or "auto:K" for K clusters by k-means on sketched gradients at the first model
            ("auto:K:updates": on sketched updates); the data set's own unless given.
        recluster_every: With "auto:K", rounds after which clusters are made anew; None: never.
        client_weights: (N,) p_i of the objective Σ p_i f_i; None for 1/N each, as in the paper.
        states: Where the table of client states lives; "disk" needs `out`.
        dtype: How its rows are stored: float32, bfloat16, float16 or int8.
        trainer: Who trains the clients: "sequential" (the plain loop), "parallel" (processes, to
            the same bits), "vectorised" (for small dense models and GPUs), "ray" (several
            machines), "auto" (tries on the first rounds which is fastest), or one of your own.
        workers: Processes of "parallel", actors of "ray"; None: one for each core.
        compile: Whether gradients are compiled, which takes a while and then may be faster.
        exact: Whether "auto" keeps to trainers that give the plain loop's figures bit for bit.
        evaluate_every: Rounds between evaluations; the last round is always evaluated.
        num_train_clients: Clients that the training loss is averaged over; None: all; 0: none.
        target_accuracy: Stops at the first evaluation that reaches it.
        callbacks: Called with each round's record and the server.
        out: Directory of the run.
        resume: Goes on with the run in `out`; starts it if there is none.
        commit_every: Rounds between checkpoints.
        fsync: Whether a checkpoint waits for the disk, which guards against power failures too.
        settings: What config.toml records and a resumed run must agree with; described from the
            arguments unless given.
        progress: Whether to show a progress bar; None: in a terminal.
        device: Where to train, such as "cuda".
    """
    refuse_impossible(rounds, evaluate_every, commit_every, states, out)
    refuse_target(target_accuracy, dataset)
    clusters = clusters_by_name(cluster_of, recluster_every, dataset)
    refuse_two_objectives(client_weights, clusters.at_first, sampler, clients_per_round, dataset)
    sampler = sampler or _sampler(dataset, clients_per_round, client_weights, seed)
    flat = FlatModel(model.to(device))
    directory = None if out is None else RunDirectory(out)
    table = TableSettings(
        num_clients=dataset.num_clients,
        dim=flat.dim,
        dtype=dtype,
        folder=str(directory.checkpoint_folder) if directory and states == "disk" else None,
        cluster_of=clusters.at_first,
        clustering=clusters.changing,
        client_weights=client_weights,
        device=device,
    )
    name = algorithm if isinstance(algorithm, str) else name_of(algorithm)
    described = {
        "algorithm": name,
        "rounds": rounds,
        "seed": seed,
        "evaluate_every": evaluate_every,
        "target_accuracy": target_accuracy,
        "model": name_of(model),
        "loss": name_of(loss),
        "local_sgd": plain(local_sgd),
        "sampler": plain(sampler),
        "server_optimizer": dict((server_optimizer or SGD(lr=1.0)).describe()),
        "states": {"dtype": dtype},
        "trainer": trainer if isinstance(trainer, str) else name_of(trainer),
        "workers": workers,
        "compile": compile,
        "exact": exact,
        "num_train_clients": num_train_clients,
        "client_weights": plain_value(client_weights),
        "dataset": repr(dataset),
        "num_clients": dataset.num_clients,
    }
    kept = dict(described if settings is None else settings)
    if directory is not None:
        refuse_another_run(directory, kept, resume)
        if directory.exists and trainer == "auto":
            kept |= directory.chosen_by_auto()
            trainer, workers = kept["trainer"], kept.get("workers")
    evaluator = Evaluator(dataset, flat, loss, client_weights, num_train_clients, seed)
    parts = TrainerParts(
        dataset, flat, loss, local_sgd, seed, evaluator, workers, compile=compile, exact=exact
    )

    def remember(chosen: str, why: str) -> None:
        if directory is not None:
            directory.write_settings({**kept, "trainer": chosen, "auto": why})

    training = make_trainer(trainer, parts, remember) if isinstance(trainer, str) else trainer
    aggregator = (
        make_algorithm(algorithm, table) if isinstance(algorithm, str) else algorithm(table)
    )
    try:
        simulation = Simulation(
            server=Server(flat.vector(), aggregator, server_optimizer or SGD(lr=1.0)),
            sampler=sampler,
            trainer=training,
            evaluator=evaluator,
            model=flat,
            evaluate_every=evaluate_every,
            target_accuracy=target_accuracy,
            callbacks=callbacks,
            buffers=flat.buffers(),
            title=name,
            reclustering=reclustering(clusters, aggregator, dataset, flat, loss, local_sgd, seed),
        )
        if directory is None:
            return simulation.run(rounds, progress)
        if not directory.exists:
            directory.create(kept)
        what = fingerprint(dataset.fingerprint(), model, loss)
        with RecordedRun(directory, simulation, what, commit_every, fsync) as recorded:
            return recorded.run(rounds, progress, announce=settings is None)
    finally:
        if isinstance(trainer, str):
            close(training)
        for rows in () if aggregator.states is None else aggregator.states.tables():
            rows.close()


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
        if self.target_accuracy is None or evaluated is None:
            return False
        accuracy = evaluated.get("test_accuracy")
        return accuracy is not None and bool(accuracy >= self.target_accuracy)


def _weighted(updates: RoundUpdates, cohort: Cohort) -> RoundUpdates:
    if cohort.weights is None:
        return updates
    weight_of = dict(zip(cohort.clients.tolist(), cohort.weights.tolist(), strict=True))
    weights = [weight_of[client] for client in updates.clients.tolist()]
    return dataclasses.replace(updates, weights=torch.tensor(weights, dtype=torch.float64))


def _sampler(
    dataset: FederatedDataset, size: int | None, client_weights: Tensor | None, seed: int
) -> ClientSampler:
    if size is None:
        raise ValueError(
            "Say how many clients take part in a round: clients_per_round, or sampler."
        )
    if client_weights is None:
        return UniformSampler(dataset.num_clients, size, seed)
    equal = torch.ones(dataset.num_clients)
    return WeightedSampler(equal, size, seed, objective=client_weights)
