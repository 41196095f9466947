"""What it takes to draw a cohort in a federation of a million clients, with a Flower strategy."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from typing import cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp import Grid

from benchmarks.server_app import inside_a_server_app
from benchmarks.timing import table
from fedvarp import flower

COHORT, ROUNDS = 100, 10


class Nodes:
    """The part of Flower's grid that says who is online: another sample in each round."""

    def __init__(self, everybody: Sequence[int], online: int) -> None:
        chance = random.Random(0)
        self.samples = [list(everybody)] * (ROUNDS + 1)
        if online < len(everybody):
            self.samples = [chance.sample(everybody, online) for _ in range(ROUNDS + 1)]
        self.round = 0

    def get_node_ids(self) -> list[int]:
        """Who is online; a list of its own, as Flower's is."""
        return list(self.samples[self.round])


@inside_a_server_app()
def measure(num_clients: int = 1_000_000) -> str:
    """Medians of ten rounds' `configure_train`, after a first one."""
    arrays = ArrayRecord({"w": Array(np.zeros(10, dtype=np.float32))})
    rows = []
    for online in (num_clients, num_clients // 100):
        strategy = flower.FedVARP(clients_per_round=COHORT, seed=0)
        strategy.begin(arrays)
        for number in range(num_clients):
            strategy.clients.meet(str(number), node=number + 1)
        nodes, seconds = Nodes(range(1, num_clients + 1), online), []
        for nodes.round in range(ROUNDS + 1):
            began = time.perf_counter()
            strategy.configure_train(
                nodes.round + 1, strategy.arrays, ConfigRecord(), cast(Grid, nodes)
            )
            seconds.append(time.perf_counter() - began)
        took = statistics.median(seconds[1:])
        rows.append([f"{online:,}", f"{seconds[0] * 1e3:.0f} ms", f"{took * 1e3:.0f} ms"])
    return table(
        f"Drawing {COHORT} of {num_clients:,} clients in a Flower strategy",
        ["nodes online", "first round", "round"],
        rows,
    )
