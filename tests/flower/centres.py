"""Clients whose optimum is known: f_i(w) = ½ ‖w − c_i‖² with n_i examples, a step of half the way.

A run rests where Σ p_i (w − c_i) = 0, with p_i = n_i / Σ n_j, or 1/N.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg as FlowersFedAvg

from fedvarp.flower import FedVARP
from flower.in_process import InProcessGrid

HALF_WAY = 0.5


def centres_app(named: bool = False, reported: Mapping[str, float] | None = None) -> ClientApp:
    """Client i is drawn to c_i = (i + 1) e_{i mod 4} and has i + 1 examples; named, it says so."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        number = int(context.node_config["partition-id"])
        w = message.content.array_records["arrays"]["w"].numpy()
        moved = w - HALF_WAY * (w - centre(number))
        metrics = MetricRecord({"num-examples": number + 1, **(reported or {})})
        if named:
            metrics["partition-id"] = number
        arrays = ArrayRecord({"w": Array(moved.astype(np.float32))})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    return app


def centre(number: int) -> Any:
    return (number + 1) * np.eye(4)[number % 4]


def optimum(numbers: list[int], weighting: str) -> list[float]:
    weights = [n + 1 if weighting == "examples" else 1 for n in numbers]
    mean: list[float] = np.average([centre(n) for n in numbers], axis=0, weights=weights).tolist()
    return mean


def centres_grid(num_clients: int = 4, **settings: Any) -> InProcessGrid:
    """Client i is at node 100 + i."""
    grid = InProcessGrid(centres_app(**settings))
    for number in range(num_clients):
        grid.connect(100 + number, {"partition-id": number})
    return grid


def zeros() -> ArrayRecord:
    return ArrayRecord({"w": Array(np.zeros(4, dtype=np.float32))})


def flowers_fedavg(grid: InProcessGrid, rounds: int) -> list[float]:
    """Where Flower's own FedAvg takes the model."""
    strategy = FlowersFedAvg(fraction_evaluate=0.0)
    result = strategy.start(grid, zeros(), num_rounds=rounds)
    model: list[float] = result.arrays["w"].numpy().tolist()
    return model


class OwnMessages(FedVARP):
    """Client selection as recipes write it: messages of one's own, without the strategy's."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        config["server-round"] = server_round
        chosen = sorted(grid.get_node_ids())[server_round % 2 :: 2]
        record = RecordDict({"arrays": arrays, "config": config})
        return [Message(content=record, message_type="train", dst_node_id=n) for n in chosen]


def train(strategy: Any, grid: InProcessGrid, rounds: int, **more: Any) -> list[float]:
    """Runs up to that round; where the model is then."""
    result = strategy.start(grid, zeros(), num_rounds=rounds, timeout=2.0, **more)
    model: list[float] = result.arrays["w"].numpy().tolist()
    return model
