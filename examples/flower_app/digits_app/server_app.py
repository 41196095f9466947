"""The server: the algorithm that the run's configuration names, over the clients online."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Strategy

from fedvarp.flower import MIFA, ClusterFedVARP, FedAvg, FedDyn, FedProx, FedVARP, Scaffold

from .task import Net

ALGORITHMS: dict[str, Callable[..., Strategy]] = {
    "fedavg": FedAvg,
    "fedvarp": FedVARP,
    # The neighbours 0 and 1, 2 and 3, ... have almost the same digits; each pair shares a row.
    "cluster-fedvarp": partial(ClusterFedVARP, clusters=lambda name: int(name) // 2),
    "mifa": MIFA,
    "scaffold": Scaffold,
    "fedprox": partial(FedProx, mu=0.01),
    "feddyn": partial(FedDyn, alpha=0.1),
}

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Trains and evaluates, round by round."""
    config = context.run_config
    strategy = ALGORITHMS[str(config["algorithm"])](
        num_clients=int(config["num-clients"]),
        clients_per_round=int(config["clients-per-round"]),
        fraction_evaluate=float(config["fraction-evaluate"]),
        seed=int(config["seed"]),
        ask_names=True,  # clients answer with their partition-id: cohorts follow the seed at once
        checkpoint=str(config["checkpoint"]) or None,
    )
    torch.manual_seed(int(config["seed"]))
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        num_rounds=int(config["num-server-rounds"]),
        timeout=float(config["deadline"]),
    )
