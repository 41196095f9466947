"""What a round takes beside local training: sampling, broadcast, aggregation, commit, metrics."""

from __future__ import annotations

import copy
import itertools
import statistics
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks.rounds.workload import Workload, make_model
from benchmarks.rounds.workloads import federated, w1, w2
from benchmarks.timing import table, with_spread
from fedvarp import (
    Broadcast,
    Evaluation,
    FlatModel,
    LocalSGD,
    OnRoundEnd,
    Recording,
    RoundUpdates,
    simulate,
)
from fedvarp.simulation.cohorts_ahead import AHEAD
from fedvarp.trainers import ClientTrainer, SequentialTrainer
from fedvarp.trainers.threads import torch_threads


@dataclass
class Timed(ClientTrainer):
    """A trainer with a watch."""

    trainer: ClientTrainer
    seconds: list[float] = field(default_factory=list)

    def train(self, broadcast: Broadcast, clients: Tensor, round: int) -> RoundUpdates:
        """Trains, and notes how long it took."""
        start = time.perf_counter()
        updates = self.trainer.train(broadcast, clients, round)
        self.seconds.append(time.perf_counter() - start)
        return updates


def seconds_beside_training(
    workload: Workload, algorithm: str, rounds: int, warm_up: int, out: Path | None
) -> tuple[list[float], list[float]]:
    """Of each round: the seconds of training, and all the others."""
    settings, dataset = workload.settings, federated(workload)
    local_sgd = LocalSGD(lr=settings.lr, batch_size=settings.batch_size, epochs=settings.epochs)
    model = make_model(settings)
    own = FlatModel(copy.deepcopy(model))
    timed = Timed(SequentialTrainer(dataset, own, cross_entropy, local_sgd, seed=0))
    ends: list[float] = []
    simulate(
        dataset,
        model,
        cross_entropy,
        algorithm=algorithm,
        local_sgd=local_sgd,
        rounds=warm_up + rounds,
        clients_per_round=settings.clients_per_round,
        trainer=timed,
        evaluation=Evaluation(every=warm_up + rounds + 1, num_train_clients=0),
        recording=Recording(out=None if out is None else str(out), progress=False),
        callbacks=[OnRoundEnd(lambda record, server: ends.append(time.perf_counter()))],
    )
    whole = [end - start for start, end in itertools.pairwise(ends)]
    beside = [a - b for a, b in zip(whole, timed.seconds, strict=True)]
    # The last round is evaluated whatever the settings.
    return timed.seconds[warm_up:-1], beside[warm_up:-1]


def means(seconds: list[float]) -> list[float]:
    """Of sixteen rounds each, or of all: cohorts are drawn sixteen at once, which one pays for."""
    size = min(AHEAD, len(seconds))
    starts = range(0, len(seconds) - size + 1, size)
    return [statistics.fmean(seconds[start : start + size]) for start in starts]


def row(
    workload: Workload,
    algorithm: str,
    what: str,
    target: str,
    rounds: int,
    warm_up: int,
    committed: bool,
) -> list[str]:
    """One algorithm on one workload; two workers at their best would halve its training."""
    with tempfile.TemporaryDirectory() as place, torch_threads(1):
        out = Path(place) / "run" if committed else None
        of_rounds = seconds_beside_training(workload, algorithm, rounds, warm_up, out)
    training, beside = map(means, of_rounds)
    share = statistics.median(beside) / (statistics.median(training) / 2)
    halved = f"{share:.1%}" if committed else ""
    milliseconds = [with_spread(seconds, 2, 1e3) for seconds in (training, beside)]
    return [f"{workload.settings.name}, {algorithm}, {what}", *milliseconds, halved, target]


def table_of(rows: Iterable[list[str]]) -> str:
    """The table in docs/benchmarks.md."""
    header = ["", "training, ms", "the rest, ms", "the rest / half of training", "target"]
    return table("A round beside its local training", header, list(rows))


def measure() -> str:
    return table_of(
        [
            row(w1(), "fedvarp", "a commit with fsync each round", "< 3 %", 81, 3, committed=True),
            row(w2(), "fedavg", "no commits", "< 1 ms", 401, 20, committed=False),
            row(w2(), "fedvarp", "no commits", "", 401, 20, committed=False),
        ]
    )
