"""Runs to look at: real ones on digits, and ones whose every number is chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedvarp import LocalSGD
from fedvarp.data import digits
from fedvarp.models import LogisticRegression, initialised
from fedvarp.runs.directory import RunDirectory
from fedvarp.runs.journal import Journal
from simulating import simulate

EVALUATE_EVERY = 10


def digits_runs(folder: Path, algorithms: Sequence[str] = ("fedavg", "fedvarp", "mifa")) -> Path:
    """Real runs: each algorithm with seeds 0 and 1, evaluated at rounds 0, 5, 10, 15, 20."""
    for algorithm in algorithms:
        for seed in (0, 1):
            simulate(
                digits(),
                initialised(lambda: LogisticRegression(64, 10), seed),
                algorithm=algorithm,
                local_sgd=LocalSGD(lr=1.0, batch_size=10, epochs=2),
                clients_per_round=2,
                rounds=20,
                evaluate_every=5,
                seed=seed,
                out=folder / f"{algorithm}-{seed}",
                fsync=False,
                progress=False,
            )
    return folder


def write_run(
    path: Path,
    accuracy: Sequence[float | None] = (),
    *,
    algorithm: str = "fedvarp",
    seed: int = 0,
    lr: float = 0.1,
    train_loss: Sequence[float | None] = (),
    validation_accuracy: Sequence[float] = (),
    validation_loss: Sequence[float] = (),
    seconds: float | None = 2.0,
    clients: Sequence[int] = (0, 1),
    refused: Mapping[str, str] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Path:
    """A run evaluated at rounds 0, 10, 20, …; each round sends 300 bytes and takes 2 seconds.

    Server memory after round t is 1000 + t bytes.
    """
    figures = {
        "test_accuracy": accuracy,
        "train_loss": train_loss,
        "validation_accuracy": validation_accuracy,
        "validation_loss": validation_loss,
    }
    evaluations = max(map(len, figures.values()))
    directory = RunDirectory(path)
    usual = {
        "algorithm": algorithm,
        "seed": seed,
        "rounds": (evaluations - 1) * EVALUATE_EVERY,
        "local_sgd": {"lr": lr, "batch_size": 10},
        "sampler": {"num_clients": 4, "seed": seed},
        "dataset": "FederatedDataset(4 clients, 40 examples)",
    }
    directory.create(usual | dict(settings or {}))
    metrics, timings = Journal(directory.metrics_file), Journal(directory.timings_file)
    for t in range((evaluations - 1) * EVALUATE_EVERY + 1):
        record: dict[str, Any] = {"round": t}
        if t == 0:
            record["num_clients"] = 4
        else:
            record |= {"clients": list(clients), "refused": dict(refused or {})}
            record |= {"bytes_down": 200, "bytes_up": 100, "server_bytes": 1000 + t}
        if t % EVALUATE_EVERY == 0:
            at = t // EVALUATE_EVERY
            record |= {name: values[at] for name, values in figures.items() if values}
        metrics.append(record)
        if seconds is not None:
            timings.append({"round": t, "seconds": seconds})
    metrics.close()
    timings.close()
    return path
