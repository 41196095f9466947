"""What a run will cost: memory by codec, bytes a round, and time, extrapolated from real steps."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

from fedvarp.algorithms.registry import make_algorithm
from fedvarp.analysis.units import in_bytes, in_seconds
from fedvarp.clients import local_training
from fedvarp.experiments.build import Experiment
from fedvarp.server.flat_model import FlatModel
from fedvarp.tables.codecs import codec_named
from fedvarp.tables.settings import CODEC_NAMES
from fedvarp.trainers.threads import torch_threads

_MEASURE_FOR: Final = 0.5  # seconds, at least one call
_FORWARD: Final = 500  # examples in the forward pass that is timed


@dataclass(frozen=True)
class Estimate:
    """Figures of a run that has not been made.

    Attributes:
        objective: What the run would minimise, in words.
        dim: Parameters of the model.
        rows: Rows of the table when every client (or cluster) has been seen.
        whose_rows: What a row belongs to: "client", "cluster", or nothing.
        table_bytes: By codec, the rows when all were seen and their running sum.
        bytes_down: To the clients, in a round.
        bytes_up: From the clients, in a round.
        step_seconds: Measured: one local step on a full batch.
        evaluation_seconds: Of one evaluation; the speed of the forward pass is measured.
        round_seconds: Of the local training in a round, on average over clients.
        total_seconds: Of all rounds and evaluations.
    """

    objective: str
    dim: int
    rows: int
    whose_rows: str
    table_bytes: dict[str, int]
    bytes_down: int
    bytes_up: int
    step_seconds: float
    evaluation_seconds: float
    round_seconds: float
    total_seconds: float

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return dataclasses.asdict(self)

    def lines(self, experiment: Experiment) -> list[str]:
        """For people."""
        settings = experiment.settings
        evaluations = _evaluations(experiment)
        if self.rows:
            kept = ", ".join(f"{name} {in_bytes(size)}" for name, size in self.table_bytes.items())
            place = "on disk" if settings.table.where == "disk" else "in memory"
            table = (
                f"{self.rows:,} rows, one for each {self.whose_rows}, as {settings.table.codec} "
                f"{place}; when all have been seen: {kept}"
            )
        else:
            table = f"none: {settings.algorithm} remembers no client"
        return [
            f"Data      {experiment.dataset!r}",
            f"Objective {self.objective}",
            f"Model     {settings.model.name}: {self.dim:,} parameters, {in_bytes(4 * self.dim)}",
            f"Table     {table}",
            f"Round     {settings.clients_per_round} clients, {in_bytes(self.bytes_down)} down, "
            f"{in_bytes(self.bytes_up)} up",
            f"Time      about {in_seconds(self.total_seconds)}: {settings.rounds:,} rounds of "
            f"{in_seconds(self.round_seconds)} and {evaluations:,} evaluations of "
            f"{in_seconds(self.evaluation_seconds)}",
            f"          (a step on a full batch took {in_seconds(self.step_seconds)} just now; "
            f"this leaves out the server's own step and the disk)",
        ]


def estimate(experiment: Experiment) -> Estimate:
    """Measures a local step and a forward pass on real examples, and counts the rest."""
    settings = experiment.settings
    flat = FlatModel(experiment.model.to(settings.trainer.device))
    task = experiment.task()
    _, table = task.clusters_and_table(None)
    aggregator = make_algorithm(settings.algorithm, table)
    tables = () if aggregator.table is None else aggregator.table.tables()
    rows = sum(table.num_clients for table in tables)
    with torch_threads(settings.trainer.threads):
        step = _step_seconds(experiment, flat)
        evaluation = _evaluation_seconds(experiment)
    round_seconds = step * _mean_batches(experiment) * _mean_answers(experiment)
    return Estimate(
        objective=task.objective,
        dim=flat.dim,
        rows=rows,
        whose_rows="cluster" if settings.algorithm == "cluster_fedvarp" else "client",
        table_bytes={
            codec: rows * codec_named(codec).row_bytes(flat.dim) + 8 * flat.dim
            for codec in CODEC_NAMES
            if rows
        },
        bytes_down=settings.clients_per_round * aggregator.vectors_down * 4 * flat.dim,
        bytes_up=round(_mean_answers(experiment) * aggregator.vectors_up * 4 * flat.dim),
        step_seconds=step,
        evaluation_seconds=evaluation,
        round_seconds=round_seconds,
        total_seconds=settings.rounds * round_seconds + _evaluations(experiment) * evaluation,
    )


def _step_seconds(experiment: Experiment, flat: FlatModel) -> float:
    """One step at the client with the most examples, whose batches are full if any are."""
    settings, dataset = experiment.settings, experiment.dataset
    client = 0 if dataset.num_examples is None else int(dataset.num_examples.argmax())
    x, y = (part.to(settings.trainer.device) for part in dataset.client(client))
    one_step = experiment.local_sgd.replace(epochs=None, steps=1)
    w = flat.vector()

    def step() -> None:
        result = local_training.train(
            one_step,
            flat,
            experiment.loss,
            w,
            (x, y),
            seed=settings.seed,
            round=0,
            client=client,
            augment=dataset.augment,
        )
        float(result.mean_loss)  # waits for a GPU

    return _seconds(step)


def _evaluation_seconds(experiment: Experiment) -> float:
    settings, dataset = experiment.settings, experiment.dataset
    x = (dataset.test or dataset.client(0))[0][:_FORWARD].to(settings.trainer.device)

    def forward() -> None:
        with torch.no_grad():
            experiment.model.eval()(x).sum().item()

    test = 0 if dataset.test is None else len(dataset.test[0])
    if settings.evaluation.num_test_examples is not None:
        test = min(test, settings.evaluation.num_test_examples)
    train = 0.0 if dataset.num_examples is None else float(dataset.num_examples.sum())
    if settings.evaluation.num_train_clients is not None:
        train *= min(1.0, settings.evaluation.num_train_clients / dataset.num_clients)
    return _seconds(forward) / len(x) * (test + train)


def _mean_batches(experiment: Experiment) -> float:
    """Full batches' worth of examples at a client, on average over the clients that are drawn."""
    local, dataset = experiment.local_sgd, experiment.dataset
    sizes = dataset.num_examples
    if sizes is None:
        return float(local.steps or local.epochs or 1)
    n = sizes.double()
    if local.steps is not None:
        batches = local.steps * (n / local.batch_size).clamp(max=1.0)
    else:
        batches = (local.epochs or 0) * n / min(local.batch_size, float(n.max()))
    by_size = experiment.settings.sampling.scheme == "examples"
    drawn = n if by_size else torch.ones_like(n)
    return float(batches @ drawn / drawn.sum())


def _mean_answers(experiment: Experiment) -> float:
    settings = experiment.settings
    return settings.clients_per_round * (1 - settings.sampling.dropout)


def _evaluations(experiment: Experiment) -> int:
    settings = experiment.settings
    whole, rest = divmod(settings.rounds, settings.evaluation.every)
    return 1 + whole + (rest > 0)


def _seconds(work: Callable[[], None]) -> float:
    work()  # the first call pays for what is set up once
    calls, start = 0, time.perf_counter()
    while (took := time.perf_counter() - start) < _MEASURE_FOR or calls == 0:
        work()
        calls += 1
    return took / calls
