"""The server's time per round and memory as the number of registered clients grows."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.timing import beside_the_first, interleaved, table
from fedvarp import FedVARP, MemoryTable, RoundUpdates, Server, ServerSGD, stream

DIM, COHORT = 62_006, 5
SIZES = (100, 1_000, 10_000, 100_000, 1_000_000)


def resident_mb() -> float:
    """Resident memory of this process; zero where the system does not tell."""
    status = Path("/proc/self/statm")
    return int(status.read_text().split()[1]) * 4096 / 1e6 if status.exists() else 0.0


def a_round(num_clients: int) -> Callable[[], None]:
    """A server for that many clients of whom a hundred ever take part, and its next round."""
    server = Server(torch.zeros(DIM), FedVARP(MemoryTable(num_clients, DIM)), ServerSGD())
    ones = torch.ones(COHORT, dtype=torch.int64)
    deltas = torch.randn(COHORT, DIM, generator=stream(0, "deltas"))
    seen = torch.randperm(num_clients, generator=stream(0, "seen"))[:100].view(-1, COHORT)

    def run() -> None:
        clients = seen[server.round % len(seen)].sort().values
        server.receive(RoundUpdates(clients, deltas, ones, ones, scale=1e-3))

    for _ in range(len(seen)):
        run()
    return run


def measure(repeats: int = 400) -> str:
    seconds = interleaved({f"{n:,}": a_round(n) for n in SIZES}, repeats)
    by_clients = table(
        f"Server time per round, d = {DIM:,}, M = {COHORT}, 100 clients ever seen",
        ["registered clients", "round", "ratio to the first"],
        beside_the_first(seconds, 2),
    )

    with multiprocessing.get_context("spawn").Pool(1) as fresh_process:
        return by_clients + "\n" + fresh_process.apply(memory_of_rows)


def memory_of_rows() -> str:
    """Resident memory as rows are written; in a process of its own, where nothing else moves it."""
    states = MemoryTable(1_000_000, DIM)
    states.put(torch.tensor([0]), torch.ones(1, DIM))
    first = resident_mb()
    rows = []
    for written in (250, 500, 1_000, 2_000):
        for client in range(states.num_rows, written):
            states.put(torch.tensor([client]), torch.ones(1, DIM))
        grown = resident_mb() - first
        rows.append([f"{written:,}", f"{grown:.0f} MB", f"{grown / (written - 1) * 1e3:.0f} kB"])
    return table(
        f"Resident memory, float32 table for 1,000,000 clients; a row is {DIM * 4 / 1e3:.0f} kB",
        ["rows ever written", "resident", "per row"],
        rows,
    )
