"""`Server.receive` for FedVARP: large models against moving the bytes they must, and small ones."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from benchmarks.timing import (
    beside_the_first,
    interleaved,
    ratios,
    streaming,
    table,
    with_spread,
)
from fedvarp import (
    Aggregator,
    FedAvg,
    FedVARP,
    MemoryTable,
    RoundUpdates,
    Server,
    ServerSGD,
    stream,
)
from fedvarp.clients import UniformSampler
from fedvarp.tables.largest_entries import LargestEntries

DIM, COHORT = 11_173_962, 5


def measure(repeats: int = 15) -> str:
    rows = []
    for threads in (1, torch.get_num_threads()):
        torch.set_num_threads(threads)
        server = Server(torch.zeros(DIM), FedVARP(MemoryTable(COHORT, DIM)), ServerSGD())
        ones = torch.ones(COHORT, dtype=torch.int64)
        clients = torch.arange(COHORT)
        deltas = torch.randn(COHORT, DIM, generator=stream(0, "deltas"))
        measured = LargestEntries.of(deltas)

        def receive(measured: LargestEntries | None) -> None:
            updates = RoundUpdates(clients, deltas, ones, ones, scale=1e-3, measured=measured)  # noqa: B023
            server.receive(updates)  # noqa: B023

        y = torch.zeros(COHORT, DIM)
        mean, w = torch.zeros(DIM), torch.zeros(DIM)

        def plain() -> None:
            nonlocal y, mean, w
            v = mean + (deltas - y).mean(0)  # noqa: B023
            w = w - 1e-3 * v
            mean = mean + (deltas - y).sum(0) / COHORT  # noqa: B023
            y = deltas.clone()  # noqa: B023

        # M updates read; M rows, the float64 sum and w read and written.
        must_move = DIM * (4 * COHORT + 8 * COHORT + 16 + 8)
        seconds = interleaved(
            {
                "limit": streaming(must_move),
                "measured": lambda: receive(measured),  # noqa: B023
                "unmeasured": lambda: receive(None),
                "plain": plain,
            },
            repeats,
        )
        limit, ours = (statistics.median(seconds[name]) for name in ("limit", "measured"))
        beside = {name: ratios(each, seconds["limit"]) for name, each in seconds.items()}
        rows.append(
            [
                str(threads),
                f"{must_move / 1e6:.0f} MB",
                f"{must_move / limit / 1e9:.1f} GB/s",
                f"{limit * 1e3:.0f} ms",
                f"{ours * 1e3:.0f} ms",
                with_spread(beside["measured"], 2),
                with_spread(beside["unmeasured"], 2),
                with_spread(beside["plain"], 1),
            ]
        )
    header = [
        "threads",
        "must move",
        "bandwidth",
        "limit",
        "`receive`, rows measured by their maker",
        "/ limit",
        "`receive`, rows it must look at first / limit",
        "plain expressions / limit",
    ]
    large = table(f"Server update, FedVARP, d = {DIM:,}, M = {COHORT}", header, rows)
    return large + "\n" + small()


def small(rounds: int = 300) -> str:
    """What FedVARP's server does in a round of W2, as the vectorised trainer hands it over."""
    torch.set_num_threads(1)
    dim, num_clients, cohort = 610, 1000, 20
    ones = torch.ones(cohort, dtype=torch.int64)
    deltas = torch.randn(cohort, dim, generator=stream(0, "deltas"))
    measured = LargestEntries.of(deltas)
    sampler = UniformSampler(num_clients, cohort, seed=0)
    cohorts = [sampler.cohort(t).clients for t in range(100)]

    def receiving(aggregator: Aggregator) -> Callable[[], object]:
        server = Server(torch.zeros(dim), aggregator, ServerSGD())

        def run() -> object:
            clients = cohorts[server.round % len(cohorts)]
            updates = RoundUpdates(clients, deltas, ones, ones, scale=1e-3, measured=measured)
            return server.receive(updates)

        return run

    seconds = interleaved(
        {
            "FedAvg": receiving(FedAvg()),
            "FedVARP": receiving(FedVARP(MemoryTable(num_clients, dim))),
        },
        rounds,
        clock=time.thread_time,
    )
    title = f"The server's part of a round of W2, d = {dim}, M = {cohort}, N = {num_clients:,}"
    header = ["", "`receive`, processor time", "ratio to FedAvg's"]
    return table(title, header, beside_the_first(seconds, 2))
