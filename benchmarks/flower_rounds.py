"""Whole rounds of a small app, training included, with Flower's FedAvg and with ours."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from flwr.serverapp.strategy import FedAvg

from benchmarks.server_app import inside_a_server_app
from benchmarks.timing import beside_the_first, interleaved, table
from fedvarp import flower

ROUNDS = 20


@inside_a_server_app()
def measure(repeats: int = 5) -> str:
    """The PyTorch app of the tests, six clients, all of them in this process."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from flower import stock_apps as apps
    from flower.in_process import InProcessGrid

    torch.set_num_threads(1)

    def rounds_of(strategy: Any) -> Callable[[], object]:
        def run() -> object:
            grid = InProcessGrid(apps.torch_app())
            for number in range(apps.NUM_CLIENTS):
                grid.connect(1000 + number, {"partition-id": number})
            return apps.plain(strategy, grid, apps.torch_model(), ROUNDS)

        return run

    strategies = {"Flower's FedAvg": FedAvg, "FedAvg": flower.FedAvg, "FedVARP": flower.FedVARP}
    # All of it runs in this thread, whose own time other processes do not lengthen.
    seconds = interleaved(
        {n: rounds_of(s) for n, s in strategies.items()}, repeats, 1, time.process_time
    )
    return table(
        f"A whole round of a small Flower app, {apps.NUM_CLIENTS} clients in one process",
        ["strategy", "round, processor time", "ratio to Flower's FedAvg"],
        beside_the_first(seconds, 0, ROUNDS),
    )
