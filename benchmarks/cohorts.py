"""Rounds of few and of many clients, in federations small and large: what a client costs."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import Final

import torch
from torch.nn.functional import cross_entropy

from benchmarks import ROOT
from benchmarks.timing import peak_mb, table
from fedvarp import FlatModel, LocalSGD, RoundUpdates, Server, ServerSGD, stream
from fedvarp.algorithms.registry import TableSettings, make_algorithm
from fedvarp.clients import UniformSampler
from fedvarp.data import FederatedDataset
from fedvarp.models import LeNet5, ResNet18, initialised
from fedvarp.system.processes import usable_cores
from fedvarp.trainers import ParallelTrainer, SequentialTrainer
from fedvarp.trainers.threads import torch_threads

MODELS: Final = {"LeNet-5": (LeNet5, 64), "ResNet-18": (ResNet18, 2)}
"""With the examples of a client, all of which it takes in one step."""
COHORTS: Final = (5, 20, 100)
FEDERATIONS: Final = (100, 10_000, 1_000_000)


def rounds(
    model: str, cohort: int, workers: int, num_clients: int, algorithm: str, repeats: int
) -> dict[str, float]:
    """Runs a few rounds in this process.

    Returns:
        Seconds of the quickest round, training and server; the least processor time of one; and the
        largest memory in MB; the last two are of this process, without its workers.
    """
    make, examples = MODELS[model]

    def load(client: int) -> tuple[torch.Tensor, torch.Tensor]:
        images = torch.randn(examples, 3, 32, 32, generator=stream(0, "images", client))
        return images, torch.arange(examples) % 10

    dataset = FederatedDataset(load=load, num_clients=num_clients)
    flat = FlatModel(initialised(make, seed=0))
    sgd = LocalSGD(lr=0.01, batch_size=examples, steps=1)
    plain = SequentialTrainer(dataset, flat, cross_entropy, sgd, seed=0)
    trainer = plain if workers == 1 else ParallelTrainer(plain, workers)
    made = make_algorithm(algorithm, TableSettings(num_clients, flat.dim))
    server = Server(flat.vector(), made, ServerSGD())
    sampler = UniformSampler(num_clients, cohort, seed=0)
    seconds, busy = [], []
    with torch_threads(1), trainer:
        for t in range(1 + repeats):  # the first starts workers and touches memory
            clients = sampler.cohort(t).clients
            start, busy_at = time.perf_counter(), time.process_time()
            updates: RoundUpdates | None = trainer.train(server.broadcast(clients), clients, t)
            assert updates is not None
            server.receive(updates)
            updates = None  # before the next ones are made
            seconds.append(time.perf_counter() - start)
            busy.append(time.process_time() - busy_at)
    return {"seconds": min(seconds[1:]), "busy": min(busy[1:]), "peak_mb": peak_mb()}


def in_a_process(*arguments: str | int) -> dict[str, float]:
    """The same in a process of its own, whose memory nobody else has touched."""
    command = [sys.executable, "-m", "benchmarks.cohorts", *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    found: dict[str, float] = json.loads(ended.stdout)
    return found


def measure(repeats: int = 3) -> str:
    rows = []
    for model in MODELS:
        for workers in range(1, min(2, usable_cores()) + 1):
            first: dict[str, float] = {}
            for cohort in COHORTS:
                name = f"{model}, {workers} worker{'s'[: workers - 1]}"
                try:
                    found = in_a_process(model, cohort, workers, 1000, "fedavg", repeats)
                except subprocess.CalledProcessError as error:  # updates take 8 · M · d bytes
                    why = f"ended with code {error.returncode}: too little memory?"
                    rows.append([name, str(cohort), why, "", ""])
                    continue
                each = {name: found[name] / cohort for name in ("seconds", "busy")}
                first = first or each
                times = [f"{s * 1e3:.1f} ms ({s / first[name]:.2f})" for name, s in each.items()]
                rows.append([name, str(cohort), *times, f"{found['peak_mb']:.0f} MB"])
    title = "Cohorts of one local step, FedAvg, 1,000 clients"
    header = [
        "",
        "clients a round",
        "per client (ratio to the first)",
        "processor time of the parent",
        "resident",
    ]
    by_cohort = table(title, header, rows)
    peaks = [in_a_process("LeNet-5", 20, 1, n, "fedvarp", 2)["peak_mb"] for n in FEDERATIONS]
    rows = [[f"{n:,}", f"{peak:.0f} MB"] for n, peak in zip(FEDERATIONS, peaks, strict=True)]
    title = "Three rounds of 20 clients, LeNet-5, FedVARP"
    return by_cohort + "\n" + table(title, ["clients in all", "resident"], rows)


def main() -> None:
    """Runs the rounds that are named and prints what they took as JSON."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("model", choices=list(MODELS))
    for number in ("cohort", "workers", "num_clients"):
        parser.add_argument(number, type=int)
    parser.add_argument("algorithm")
    parser.add_argument("repeats", type=int)
    print(json.dumps(rounds(**vars(parser.parse_args()))))


if __name__ == "__main__":
    main()
