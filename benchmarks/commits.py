"""What a commit per round costs, with and without waiting for the disk."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.timing import interleaved, table
from fedvarp import (
    Checkpoint,
    DiskTable,
    FedVARP,
    MemoryTable,
    RoundUpdates,
    Server,
    ServerSGD,
    stream,
)
from fedvarp.tables import RowTable

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


def measure(repeats: int = 300) -> str:
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
    least = seconds["no checkpoint"]
    rows = [
        [name, f"{s * 1e3:.2f} ms", f"{(s - least) * 1e3:.2f} ms", f"{s / least:.1f}"]
        for name, s in seconds.items()
    ]
    return table(
        f"A round with its commit, d = {DIM:,}, M = {COHORT}, N = {CLIENTS}",
        ["", "`receive` and `commit`", "commit alone", "ratio to no checkpoint"],
        rows,
    )
