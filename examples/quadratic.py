"""The five algorithms on a federation small enough to see through.

Forty clients with quadratic losses around different centres; two of them take part in a round. The
loss left over after a number of rounds is what partial participation costs each algorithm.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from fedvarp import (
    MIFA,
    Aggregator,
    Broadcast,
    ClusteredTable,
    ClusterFedVARP,
    FedAvg,
    FedVARP,
    MemoryTable,
    RoundUpdates,
    Scaffold,
    Server,
    ServerSGD,
    stream,
)

NUM_CLIENTS, CLIENTS_PER_ROUND, DIM = 40, 2, 20
NUM_STEPS, CLIENT_LR = 10, 0.02
ROUNDS = (50, 200, 800)
NUM_CLUSTERS = 8

generator = stream(0, "problem")
cluster_of = torch.arange(NUM_CLIENTS) % NUM_CLUSTERS
cluster_centres = torch.randn(NUM_CLUSTERS, DIM, generator=generator)
centres = cluster_centres[cluster_of] + 0.2 * torch.randn(NUM_CLIENTS, DIM, generator=generator)
optimum = centres.mean(0)  # every client has the same curvature


def local_sgd(broadcast: Broadcast) -> RoundUpdates:
    """Algorithm 1 for all clients of the round at once: f_i(w) = ½ ‖w − centre_i‖²."""
    local = broadcast.w.expand(len(broadcast.clients), -1)
    correction = 0.0 if broadcast.corrections is None else broadcast.corrections
    for _ in range(NUM_STEPS):
        local = local - CLIENT_LR * (local - centres[broadcast.clients] + correction)
    count = torch.full((len(broadcast.clients),), NUM_STEPS)
    return RoundUpdates(
        clients=broadcast.clients,
        deltas=(broadcast.w - local) / (CLIENT_LR * NUM_STEPS),
        num_steps=count,
        num_examples=torch.ones_like(count),
        scale=CLIENT_LR * NUM_STEPS,
    )


def excess_losses(aggregator: Aggregator) -> list[float]:
    """f(w) − f(optimum), averaged over the last 20 rounds before each entry of ROUNDS."""
    server = Server(torch.zeros(DIM), aggregator, ServerSGD(lr=1.0))
    losses: list[Tensor] = []
    for t in range(ROUNDS[-1]):
        shuffled = torch.randperm(NUM_CLIENTS, generator=stream(0, "cohort", t))
        server.receive(local_sgd(server.broadcast(shuffled[:CLIENTS_PER_ROUND].sort().values)))
        losses.append((server.w - optimum).square().sum() / 2)
    return [float(torch.stack(losses[t - 20 : t]).mean()) for t in ROUNDS]


def main() -> None:
    """Prints the table."""

    def rows(count: int) -> MemoryTable:
        return MemoryTable(num_clients=count, dim=DIM)

    algorithms: dict[str, tuple[int, Callable[[], Aggregator]]] = {
        "FedAvg": (0, FedAvg),
        "MIFA": (NUM_CLIENTS, lambda: MIFA(rows(NUM_CLIENTS))),
        "SCAFFOLD": (NUM_CLIENTS, lambda: Scaffold(rows(NUM_CLIENTS))),
        "ClusterFedVARP": (
            NUM_CLUSTERS,
            lambda: ClusterFedVARP(ClusteredTable(cluster_of, rows(NUM_CLUSTERS))),
        ),
        "FedVARP": (NUM_CLIENTS, lambda: FedVARP(rows(NUM_CLIENTS))),
    }
    table = Table(
        title=f"Excess loss; {CLIENTS_PER_ROUND} of {NUM_CLIENTS} clients take part in a round"
    )
    table.add_column("algorithm")
    table.add_column("rows kept", justify="right")
    for t in ROUNDS:
        table.add_column(f"round {t}", justify="right")
    for name, (num_rows, build) in algorithms.items():
        table.add_row(name, str(num_rows), *(f"{loss:.1e}" for loss in excess_losses(build())))
    Console().print(table)


if __name__ == "__main__":
    main()
