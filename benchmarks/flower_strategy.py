"""A round of `fedvarp.flower.FedVARP` next to Flower's own FedAvg, over the same replies."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import cast

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Strategy

from benchmarks.server_app import inside_a_server_app
from benchmarks.timing import beside_the_first, interleaved, table
from fedvarp import flower, stream
from fedvarp.models import ResNet18

DIM, COHORT = 11_173_962, 5


class OnlineNodes:
    """The part of Flower's grid that chooses who is asked: five nodes, all online."""

    def get_node_ids(self) -> list[int]:
        """Who is online."""
        return list(range(1, COHORT + 1))


def replies_of_clients() -> tuple[ArrayRecord, list[RecordDict]]:
    """A model, and what five clients make of it."""
    model = ResNet18().state_dict()
    assert sum(tensor.numel() for tensor in model.values()) == DIM
    contents = []
    for client in range(COHORT):
        generator = stream(0, "noise", client)
        trained = {
            name: tensor + 1e-3 * torch.randn(tensor.shape, generator=generator)
            for name, tensor in model.items()
        }
        metrics = MetricRecord({"num-examples": 50 + client, "num-steps": 10})
        contents.append(RecordDict({"arrays": ArrayRecord(trained), "metrics": metrics}))
    return ArrayRecord(model), contents


def a_round(
    strategy: Strategy, initial: ArrayRecord, contents: list[RecordDict]
) -> Callable[[], None]:
    """All that a strategy does in a round: whom to ask, what to send, what to make of replies."""
    grid = cast(Grid, OnlineNodes())
    arrays, number = initial, 0

    def run() -> None:
        nonlocal arrays, number
        number += 1
        messages = strategy.configure_train(number, arrays, ConfigRecord(), grid)
        replies = [
            Message(contents[message.metadata.dst_node_id - 1], reply_to=message)
            for message in messages
        ]
        aggregated, _ = strategy.aggregate_train(number, replies)
        assert aggregated is not None
        arrays = aggregated

    return run


@inside_a_server_app()
def measure(repeats: int = 15) -> str:
    """In one thread, whose own time other processes do not lengthen."""
    initial, contents = replies_of_clients()
    torch.set_num_threads(1)
    strategies: dict[str, Strategy] = {
        "Flower's FedAvg": FedAvg(min_available_nodes=COHORT),
        "FedAvg": flower.FedAvg(identity="node-id", late_replies=0),
        "FedVARP": flower.FedVARP(identity="node-id", late_replies=0),
        "FedVARP, not clipped": flower.FedVARP(
            identity="node-id", late_replies=0, clip_updates=None
        ),
        "FedVARP, late replies awaited": flower.FedVARP(identity="node-id"),
    }
    rounds = {name: a_round(each, initial, contents) for name, each in strategies.items()}
    seconds = interleaved(rounds, repeats, clock=time.process_time)
    return table(
        f"A round of a Flower strategy, d = {DIM:,}, M = {COHORT}, one thread",
        ["strategy", "round, processor time", "ratio to Flower's FedAvg"],
        beside_the_first(seconds, 0),
    )
