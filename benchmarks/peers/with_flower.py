"""A workload in Flower: a ServerApp and a ClientApp, simulated on Ray with a CPU a client."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.rounds.contestant import Pace
from benchmarks.rounds.with_plain_torch import train
from benchmarks.rounds.workload import load, make_model, without_the_package


def client_app(folder: Path) -> ClientApp:
    """A client loads its own examples and trains by a loop of its own, as in Flower's tutorial."""
    app = ClientApp()

    @app.train()
    def train_client(message: Message, context: Context) -> Message:
        without_the_package()
        workload = load(folder)
        model = make_model(workload.settings)
        model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        client = int(context.node_config["partition-id"])
        train(model, workload, client)
        content = RecordDict(
            {
                "arrays": ArrayRecord(model.state_dict()),
                "metrics": MetricRecord({"num-examples": len(workload.y[client])}),
            }
        )
        return Message(content=content, reply_to=message)

    return app


def server_app(folder: Path) -> ServerApp:
    """FedAvg; its hook for evaluation on the server, called between rounds, keeps the pace."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        workload = load(folder)
        pace = Pace()
        strategy = FedAvg(
            fraction_train=workload.settings.clients_per_round / workload.num_clients,
            fraction_evaluate=0.0,
            min_available_nodes=workload.num_clients,
        )
        strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(make_model(workload.settings).state_dict()),
            num_rounds=pace.rounds,
            evaluate_fn=lambda round, arrays: pace(),
        )

    return app


def run(folder: Path) -> None:
    """Runs the simulation on the cores of this machine."""
    without_the_package()
    cores = len(os.sched_getaffinity(0))
    run_simulation(
        server_app=server_app(folder),
        client_app=client_app(folder),
        num_supernodes=load(folder).num_clients,
        backend_config={
            "init_args": {"num_cpus": cores},
            "client_resources": {"num_cpus": 1},
        },
    )


if __name__ == "__main__":
    run(Path(sys.argv[1]))
