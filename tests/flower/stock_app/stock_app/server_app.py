# mypy: ignore-errors
# The quick-start is not typed strictly; it stays as it is.
"""The server of Flower's PyTorch quick-start, with one import changed."""

from __future__ import annotations

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

from fedvarp.flower import FedVARP
from stock_app.task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Trains."""
    fraction_evaluate = context.run_config["fraction-evaluate"]
    num_rounds = context.run_config["num-server-rounds"]
    lr = context.run_config["learning-rate"]
    arrays = ArrayRecord(Net().state_dict())
    strategy = FedVARP(
        fraction_evaluate=fraction_evaluate,
        min_available_nodes=3,
        checkpoint=context.run_config["checkpoint"],
    )
    strategy.start(
        grid=grid,
        initial_arrays=arrays,
        train_config=ConfigRecord({"lr": lr}),
        num_rounds=num_rounds,
    )
