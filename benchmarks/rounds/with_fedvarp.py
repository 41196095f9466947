"""fedvarp's own rounds, at the pace a benchmark sets."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from benchmarks.rounds.contestant import Pace
from benchmarks.rounds.workload import load, make_model
from benchmarks.rounds.workloads import federated
from fedvarp import Evaluation, LocalSGD, OnRoundEnd, Recording, Trainer, simulate


def main(folder: Path, how: dict[str, Any]) -> None:
    """FedAvg without evaluation, as everybody else runs it.

    Args:
        folder: Of the workload.
        how: Settings of the trainer, such as {"name": "vectorised"}.
    """
    torch.set_num_threads(1)
    workload = load(folder)
    settings = workload.settings
    pace = Pace()
    simulate(
        federated(workload),
        make_model(settings),
        cross_entropy,
        local_sgd=LocalSGD(lr=settings.lr, batch_size=settings.batch_size, epochs=settings.epochs),
        rounds=pace.rounds,
        clients_per_round=settings.clients_per_round,
        algorithm="fedavg",
        trainer=Trainer(**how),
        evaluation=Evaluation(every=pace.rounds + 1, num_train_clients=0),
        recording=Recording(progress=False),
        callbacks=[OnRoundEnd(lambda record, server: pace())],
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
