"""What it takes to go on with a server that has a row for each of very many clients."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.timing import table
from fedvarp import (
    Checkpoint,
    DiskTable,
    FedVARP,
    MemoryTable,
    RoundUpdates,
    Server,
    ServerMomentum,
)
from fedvarp.tables import RowTable

CLIENTS, DIM = 181_000, 250  # 1 kB a row
AT_ONCE = 20_000


def measure(num_clients: int = CLIENTS, dim: int = DIM, repeats: int = 3) -> str:
    """Medians of opening a checkpoint, which proves its file whole, and of reading the rows."""
    rows = []
    for where in ("memory", "disk"):
        with tempfile.TemporaryDirectory() as folder:
            _write(Path(folder), where, num_clients, dim)
            taken = [_go_on(Path(folder), where, num_clients, dim) for _ in range(repeats)]
        opened, restored = (statistics.median(seconds) for seconds in zip(*taken, strict=True))
        rows.append([where, f"{opened:.1f} s", f"{restored:.1f} s"])
    return table(
        f"Going on with {num_clients:,} rows of {dim * 4 / 1000:g} kB",
        ["rows in", "the file proven whole", "the state restored"],
        rows,
    )


def _server(folder: Path, where: str, num_clients: int, dim: int) -> tuple[Server, RowTable]:
    rows: RowTable = MemoryTable(num_clients, dim)
    if where == "disk":
        rows = DiskTable(folder, num_clients, dim)
    return Server(torch.zeros(dim), FedVARP(rows), ServerMomentum(0.9)), rows


def _write(folder: Path, where: str, num_clients: int, dim: int) -> None:
    with Checkpoint(folder) as checkpoint:
        server, rows = _server(folder, where, num_clients, dim)
        checkpoint.restore(server)
        for cohort in torch.split(torch.arange(num_clients), AT_ONCE):
            ones = torch.ones(len(cohort), dtype=torch.int64)
            deltas = torch.randn(len(cohort), dim)
            server.receive(RoundUpdates(cohort, deltas, ones, ones, scale=0.1))
        checkpoint.commit(server)
        if isinstance(rows, DiskTable):
            rows.close()


def _go_on(folder: Path, where: str, num_clients: int, dim: int) -> tuple[float, float]:
    began = time.perf_counter()
    with Checkpoint(folder) as checkpoint:
        opened = time.perf_counter()
        server, rows = _server(folder, where, num_clients, dim)
        checkpoint.restore(server)
        restored = time.perf_counter()
        if isinstance(rows, DiskTable):
            rows.close()
    return opened - began, restored - opened
