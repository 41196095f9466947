"""Clients whose every number can be worked out: client i moves the model by i + 1."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedvarp import ClientTable
from fedvarp.flower import answer_identity
from flower.in_process import InProcessGrid


def an_app(
    answers: bool = True,
    reports: bool = False,
    steps: int | None = None,
    uneven: bool = False,
    rates: Mapping[int, float] | None = None,
) -> ClientApp:
    """Client i moves the model by i + 1; may answer who it is, and report it.

    If uneven, it takes i steps more than the others. It reports the rate of a round, by its number,
    where it is told one.
    """
    app = ClientApp()
    if answers:
        answer_identity(app, "partition-id", "region")

    @app.train()
    def train(message: Message, context: Context) -> Message:
        number = int(context.node_config["partition-id"])
        arrays = message.content.array_records["arrays"].to_torch_state_dict()
        moved = ArrayRecord({name: a + number + 1 for name, a in arrays.items()})
        metrics = MetricRecord({"num-examples": number + 1})
        if reports:
            metrics["partition-id"] = number
            metrics["region"] = number % 3
        if steps is not None:
            metrics["num-steps"] = steps + number * uneven
        current = message.content.config_records["config"]["server-round"]
        assert isinstance(current, int)
        if rates is not None and current in rates:
            metrics["client-lr"] = rates[current]
        return Message(RecordDict({"arrays": moved, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        number = int(context.node_config["partition-id"])
        metrics = MetricRecord({"num-examples": number + 1, "loss": float(number)})
        if reports:
            metrics["partition-id"] = number
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def a_grid(app: ClientApp, num_clients: int, seed: int) -> InProcessGrid:
    grid, chance = InProcessGrid(app), random.Random(seed)
    for client in chance.sample(range(num_clients), num_clients):
        grid.connect(chance.getrandbits(62), {"partition-id": client, "region": client % 3})
    return grid


def numbered_grid(app: ClientApp, num_clients: int = 3) -> InProcessGrid:
    """Client i is at node 100 + i."""
    grid = InProcessGrid(app)
    for client in range(num_clients):
        grid.connect(100 + client, {"partition-id": client})
    return grid


def w0() -> ArrayRecord:
    return ArrayRecord({"w": torch.zeros(2)})


def run(strategy: Any, grid: InProcessGrid, rounds: int, **more: Any) -> Any:
    return strategy.start(grid, w0(), num_rounds=rounds, timeout=1.0, **more)


def ask(strategy: Any, grid: InProcessGrid, round: int) -> list[Message]:
    """The messages of a round of training, which are not sent."""
    return list(strategy.configure_train(round, strategy.arrays, ConfigRecord(), grid))


def train(strategy: Any, grid: InProcessGrid, round: int) -> None:
    """A round of training to which everybody answers in time."""
    strategy.aggregate_train(round, grid.send_and_receive(ask(strategy, grid, round)))


def table(strategy: Any) -> ClientTable:
    states: ClientTable = strategy.server.aggregator.table
    return states


def row_of(strategy: Any, name: str) -> list[float]:
    client = strategy.clients.named(name)
    rows: list[float] = table(strategy).get(torch.tensor([client.row]))[0].tolist()
    return rows
