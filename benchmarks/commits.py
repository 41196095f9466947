"""What a commit per round costs: with and without the disk, and beside the next training."""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor

from benchmarks.timing import beside_the_first, interleaved, table
from fedvarp import (
    Broadcast,
    Checkpoint,
    DiskTable,
    Evaluation,
    FedVARP,
    LocalSGD,
    MemoryTable,
    Recording,
    RoundUpdates,
    Server,
    ServerSGD,
    simulate,
    stream,
)
from fedvarp.data import from_tensors
from fedvarp.models import ResNet18, initialised
from fedvarp.runs.directory import RunDirectory
from fedvarp.simulation import recording
from fedvarp.tables import RowTable
from fedvarp.trainers import ClientTrainer

DIM, COHORT, CLIENTS = 62_006, 5, 250


def a_round(states: RowTable, checkpoint: Checkpoint | None) -> Callable[[], None]:
    server = Server(torch.zeros(DIM), FedVARP(states), ServerSGD())
    ones = torch.ones(COHORT, dtype=torch.int64)
    deltas = torch.randn(COHORT, DIM, generator=stream(0, "deltas"))

    def run() -> None:
        cohort = torch.randperm(CLIENTS, generator=stream(0, "cohort", server.round))[:COHORT]
        updates = RoundUpdates(cohort.sort().values, deltas, ones, ones, scale=1e-3)
        server.receive(updates)
        if checkpoint is not None:
            checkpoint.commit(server)

    return run


def each_round(repeats: int = 300) -> str:
    candidates = {"no checkpoint": a_round(MemoryTable(CLIENTS, DIM), None)}
    opened: list[Checkpoint | DiskTable] = []
    with tempfile.TemporaryDirectory() as folder:
        for fsync in (False, True):
            wait = "fsync" if fsync else "no fsync"
            place = Path(folder) / wait
            in_memory = Checkpoint(place / "memory", fsync=fsync)
            on_disk = DiskTable(place / "disk", CLIENTS, DIM, fsync=fsync)
            beside = Checkpoint(place / "disk", fsync=fsync)
            opened += [in_memory, on_disk, beside]
            candidates[f"rows in memory, {wait}"] = a_round(MemoryTable(CLIENTS, DIM), in_memory)
            candidates[f"rows on disk, {wait}"] = a_round(on_disk, beside)
        seconds = interleaved(candidates, repeats)
        for one in opened:
            one.close()
    least = statistics.median(seconds["no checkpoint"])
    rows = [
        [*row[:2], f"{(statistics.median(s) - least) * 1e3:.2f} ms", row[2]]
        for row, s in zip(beside_the_first(seconds, 2), seconds.values(), strict=True)
    ]
    return table(
        f"A round with its commit, d = {DIM:,}, M = {COHORT}, N = {CLIENTS}",
        ["", "`receive` and `commit`", "commit alone", "ratio to no checkpoint"],
        rows,
    )


class Pretended(ClientTrainer):
    """Training that takes a given time on other cores, and noise for updates."""

    def __init__(self, seconds: float, dim: int) -> None:
        self._seconds = seconds
        self._deltas = torch.randn(COHORT, dim, generator=stream(0, "deltas"))

    def train(self, broadcast: Broadcast, clients: Tensor, round: int) -> RoundUpdates:
        """Waits; see `ClientTrainer.train`."""
        time.sleep(self._seconds)
        ones = torch.ones(COHORT, dtype=torch.int64)
        return RoundUpdates(clients, self._deltas, ones, ones, scale=1e-6)


def seconds_of_rounds(training: float, width: int, rounds: int, beside: bool) -> float:
    """The median round of a recorded run of ResNet-18 whose training takes so long."""
    model = initialised(lambda: ResNet18(width=width), seed=0)
    dim = sum(parameter.numel() for parameter in model.parameters())
    images = torch.zeros(1, 3, 32, 32), torch.zeros(1, dtype=torch.int64)
    slow = recording._SLOW if beside else math.inf
    with tempfile.TemporaryDirectory() as place, mock.patch.object(recording, "_SLOW", slow):
        out = Path(place) / "run"
        result = simulate(
            from_tensors([images] * COHORT),
            model,
            local_sgd=LocalSGD(lr=0.1, batch_size=1, steps=1),
            rounds=rounds,
            clients_per_round=COHORT,
            trainer=Pretended(training, dim),
            evaluation=Evaluation(every=rounds + 1, num_train_clients=0),
            recording=Recording(out=str(out), progress=False),
        )
        assert result.server.round == rounds
        taken: list[float] = [line["seconds"] for line in RunDirectory(out).timings()]
    return statistics.median(taken[3:])


def beside_training(width: int = 64, rounds: int = 8, training: float = 3.0) -> str:
    """Rounds whose training has cores of its own: the commit, alone and put beside it."""
    rows = []
    for beside in (False, True):
        seconds = seconds_of_rounds(training, width, rounds, beside)
        name = "beside the next training" if beside else "after each round"
        rows.append([name, f"{seconds:.2f} s", f"{seconds - training:.2f} s"])
    title = f"Commits of ResNet-18, FedVARP, M = {COHORT}, training of {training:g} s"
    return table(title, ["the commit", "round", "beyond its training"], rows)


def measure() -> str:
    return each_round() + "\n" + beside_training()
