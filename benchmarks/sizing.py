"""The server's time, memory and disk for each kind of table, by clients N and model size d.

Each cell is measured in a process of its own, if its products fit the limits: docs/algorithms.md,
"How large may it get?".
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.registered_clients import resident_mb
from benchmarks.timing import table
from fedvarp import Checkpoint, RoundUpdates, Server, ServerSGD, stream
from fedvarp.algorithms.registry import TableSettings, make_algorithm
from fedvarp.tables.codecs import codec_named

COHORT, SEEN, CLUSTERS = 5, 50, 100
MOST_MEMORY, MOST_DISK = 6e9, 10e9
CLIENTS = (10**3, 10**5, 10**7, 10**9)
DIMS = (10**5, 10**6, 10**7, 10**8, 10**9)


@dataclass(frozen=True)
class Kind:
    """A table, as settings describe it.

    Attributes:
        algorithm: What it is for.
        codec: How rows are stored.
        on_disk: Whether rows live on disk; rounds are then committed.
        last: Which part of a row is kept, from its end.
        max_rows: How many rows there may be; None: one for each client.
    """

    algorithm: str = "fedvarp"
    codec: str = "float32"
    on_disk: bool = False
    last: float = 1.0
    max_rows: int | None = None

    @property
    def most_rows(self) -> int:
        """How many rows there are once all clients of the benchmark were seen."""
        return min(SEEN, self.max_rows or SEEN)

    def memory(self, num_clients: int, dim: int) -> float:
        """Bytes that a round is bound to hold: updates, model, v twice, the sum, rows."""
        kept = self.last * dim
        held = 4 * dim * (COHORT + 3) + 8 * kept + 4 * kept * COHORT * (self.last < 1)
        rows = COHORT if self.on_disk else self.most_rows
        labels = 3 * 8 * num_clients if self.algorithm == "cluster_fedvarp" else 0
        return held + rows * codec_named(self.codec).row_bytes(int(kept)) + labels

    def disk(self, dim: int) -> float:
        """Bytes of rows and checkpoints."""
        rows = self.most_rows * codec_named(self.codec).row_bytes(int(self.last * dim))
        return 2 * (rows + 12 * dim) if self.on_disk else 0

    def fits(self, num_clients: int, dim: int) -> bool:
        """Whether it can be measured here."""
        return self.memory(num_clients, dim) <= MOST_MEMORY and self.disk(dim) <= MOST_DISK


KINDS = {
    "in memory": Kind(),
    "in memory, int8": Kind(codec="int8"),
    "on disk": Kind(on_disk=True),
    "on disk, int8": Kind(codec="int8", on_disk=True),
    f"{CLUSTERS} clusters": Kind("cluster_fedvarp"),
    "rows of the last 1 %": Kind(last=0.01),
    "`max_rows = 10`": Kind(max_rows=10),
}


@dataclass(frozen=True)
class Cell:
    """What was measured: processor seconds a round, and bytes beside the model and the updates."""

    seconds: float
    memory_mb: float
    disk_mb: float

    def __str__(self) -> str:
        disk = f", {self.disk_mb:,.0f} MB disk" if self.disk_mb else ""
        return f"{self.seconds * 1e3:,.1f} ms, {self.memory_mb:,.0f} MB{disk}"


def cell(kind: Kind, num_clients: int, dim: int, passes: int = 3) -> Cell:
    """Rounds of clients that were seen before, after one in which each was seen first.

    Processor time, which other work on the machine hardly changes; waiting for a disk is not in it.
    """
    ones = torch.ones(COHORT, dtype=torch.int64)
    deltas = torch.randn(COHORT, dim, generator=stream(0, "deltas"))
    w = torch.zeros(dim)
    before = resident_mb()
    seen = torch.unique(torch.linspace(0, num_clients - 1, SEEN).long()).clamp(max=num_clients - 1)
    cohorts = seen[: len(seen) // COHORT * COHORT].view(COHORT, -1).T.sort(1).values
    with tempfile.TemporaryDirectory() as folder:
        body = dim - int(kind.last * dim)
        clusters = None
        if kind.algorithm == "cluster_fedvarp":
            clusters = torch.arange(num_clients).remainder_(CLUSTERS)
        settings = TableSettings(
            num_clients,
            dim,
            kind.codec,
            folder if kind.on_disk else None,
            clusters,
            parameters={"body": slice(0, body), "head": slice(body, dim)},
            kept=["head"] if kind.last < 1 else None,
            max_rows=kind.max_rows,
        )
        server = Server(w, make_algorithm(kind.algorithm, settings), ServerSGD())
        checkpoint = Checkpoint(folder) if kind.on_disk else None
        seconds = []
        for number in range(passes * len(cohorts)):
            start = time.process_time()
            updates = RoundUpdates(cohorts[number % len(cohorts)], deltas, ones, ones, scale=1e-3)
            server.receive(updates)
            if checkpoint is not None:
                checkpoint.commit(server)
            seconds.append(time.process_time() - start)
        memory = resident_mb() - before - w.nbytes / 1e6
        disk = sum(file.stat().st_blocks * 512 for file in Path(folder).rglob("*"))
        if checkpoint is not None:
            checkpoint.close()
        assert server.aggregator.table is not None
        for rows in server.aggregator.table.tables():
            rows.close()
    return Cell(statistics.median(seconds[len(cohorts) :]), memory, disk / 1e6)


def measure() -> str:
    """Two tables: all kinds by d for a million clients, and by N for the smallest d."""
    by_dim = [[name, *(_shown(kind, 10**6, dim) for dim in DIMS)] for name, kind in KINDS.items()]
    by_clients = [
        [name, *(_shown(kind, N, DIMS[0]) for N in CLIENTS)] for name, kind in KINDS.items()
    ]
    about = f"M = {COHORT}, {SEEN} clients seen; processor time a round, memory beside w and Δ"
    return "\n".join(
        [
            table(f"N = 10⁶, {about}", ["", *(f"d = {d:.0e}" for d in DIMS)], by_dim),
            table(f"d = 10⁵, {about}", ["", *(f"N = {N:.0e}" for N in CLIENTS)], by_clients),
        ]
    )


def _shown(kind: Kind, num_clients: int, dim: int) -> str:
    if not kind.fits(num_clients, dim):
        return "–"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # so that torch is loaded once for all cells
    with context.Pool(1) as fresh_process:
        return str(fresh_process.apply(cell, (kind, num_clients, dim)))
