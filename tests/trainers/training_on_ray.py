"""Run by test_ray.py in a process of its own: rounds on Ray beside the same rounds in a loop.

`python training_on_ray.py one-machine|own-cluster|two-machines FOLDER` prints what it saw as JSON.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedvarp import FlatModel, LocalSGD
from fedvarp.data import FederatedDataset
from fedvarp.trainers.ray import RayTrainer
from simulating import simulate

SIZES = torch.tensor([3, 17, 5, 9, 30, 4])
DIVERGES, TROUBLED = 2, 4
LOCAL = LocalSGD(lr=0.1, batch_size=4, epochs=2)


def nothing(client: int) -> None:
    """A client without trouble."""


@dataclass(frozen=True)
class Load:
    """Clients of unequal sizes; one has data that no model survives."""

    trouble: Callable[[int], None]

    def __call__(self, client: int) -> tuple[Tensor, Tensor]:
        self.trouble(client)
        generator = torch.Generator().manual_seed(client)
        x = torch.randn(int(SIZES[client]), 3, generator=generator)
        y = torch.randint(2, (len(x),), generator=generator)
        return x * (torch.inf if client == DIVERGES else 1), y


class Counting(nn.Module):
    """Draws random numbers, and keeps a mean and a counter beside its weights."""

    mean: Tensor
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.3), nn.Linear(4, 2))
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
            self.seen.add_(len(x))
        out: Tensor = self.layers(x)
        return out


def same_bits(algorithm: str, trouble: Callable[[int], None], **options: Any) -> bool:
    """Whether four rounds on Ray leave the same model and metrics as four in a loop."""
    torch.manual_seed(1)
    module = Counting()
    data = dataset(trouble)
    with RayTrainer(
        data, FlatModel(copy.deepcopy(module)), cross_entropy, LOCAL, 7, **options
    ) as trainer:
        on_ray = run(algorithm, data, copy.deepcopy(module), trainer)
    alone = run(algorithm, dataset(nothing), copy.deepcopy(module), None)
    assert any(record.get("refused") for record in alone.metrics), "no client diverged"
    states = zip(on_ray.model.state_dict().values(), alone.model.state_dict().values(), strict=True)
    return on_ray.metrics == alone.metrics and all(a.equal(b) for a, b in states)


def run(algorithm: str, data: FederatedDataset, module: nn.Module, trainer: Any) -> Any:
    return simulate(
        data,
        module,
        local_sgd=LOCAL,
        rounds=4,
        clients_per_round=5,
        algorithm=algorithm,
        seed=7,
        trainer="sequential" if trainer is None else trainer,
        num_train_clients=0,
        progress=False,
    )


def dataset(trouble: Callable[[int], None]) -> FederatedDataset:
    return FederatedDataset(load=Load(trouble), num_clients=len(SIZES), num_examples=SIZES)


def raises(client: int) -> None:
    if client == TROUBLED:
        raise ValueError("no such shelf")


def kills(client: int) -> None:
    if client == TROUBLED:
        os.kill(os.getpid(), signal.SIGKILL)


def error_of(trouble: Callable[[int], None]) -> str:
    try:
        same_bits("fedavg", trouble, num_workers=2)
    except Exception as error:
        return " ".join([type(error).__name__, str(error), *getattr(error, "__notes__", [])])
    return "no error"


def one_machine(folder: Path) -> dict[str, Any]:
    """A cluster of the trainer's own, with actors that are lost and clients that fail."""
    import ray

    def kills_once(client: int) -> None:
        if client == TROUBLED and not (folder / "killed").exists():
            (folder / "killed").touch()
            kills(client)

    ray.init(address="local", num_cpus=3, include_dashboard=False, log_to_driver=False)
    seen = {
        "fedavg": same_bits("fedavg", nothing, num_workers=3),
        "feddyn": same_bits("feddyn", nothing, num_workers=2),
        "killed once": same_bits("fedavg", kills_once, num_workers=1),
        "killed": (folder / "killed").exists(),
        "raises": error_of(raises),
        "kills": error_of(kills),
        "connected": ray.is_initialized(),
    }
    ray.shutdown()
    return seen


def own_cluster(folder: Path) -> dict[str, Any]:
    """A cluster that the trainer starts and ends."""
    sockets: list[str] = []

    def look(client: int) -> None:
        (folder / "looked").touch()
        time.sleep(0.2)

    watcher = threading.Thread(target=lambda: sockets.extend(open_sockets(folder / "looked")))
    watcher.start()
    same = same_bits("fedavg", look, num_workers=2)
    watcher.join()
    import ray

    return {"same": same, "sockets": sockets, "connected": ray.is_initialized()}


def two_machines(folder: Path) -> dict[str, Any]:
    """Two nodes, a slow one and one that is killed while it trains a client; a third joins."""
    import ray
    from ray.cluster_utils import Cluster

    cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    other = cluster.add_node(num_cpus=1)
    slow, doomed = cluster.head_node.node_id, other.node_id

    def waits_for_the_end(client: int) -> None:
        here = ray.get_runtime_context().get_node_id()
        if here == doomed:
            (folder / "training").touch()
            time.sleep(300)
        if here != slow:
            (folder / "joined").touch()
        while not (folder / "joined").exists():  # or one node could do it all before the others
            time.sleep(0.05)
        time.sleep(0.2 if here == slow else 0)

    same: list[bool] = []

    def train() -> None:
        same.append(same_bits("scaffold", waits_for_the_end, address=cluster.address))

    training = threading.Thread(target=train)  # nodes can be added by the main thread alone
    training.start()
    sockets = open_sockets(folder / "training")
    cluster.remove_node(other, allow_graceful=False)
    cluster.add_node(num_cpus=2)
    training.join()
    cluster.shutdown()
    signs = {"killed": "training", "joined": "joined"}
    seen = {what: (folder / sign).exists() for what, sign in signs.items()}
    return {"same": same == [True], "sockets": sockets, **seen}


def open_sockets(sign: Path) -> list[str]:
    """Once the sign is there: the addresses that this process and its descendants listen on."""
    deadline = time.monotonic() + 200
    while not sign.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    listening = subprocess.run(["ss", "-ltnpH"], capture_output=True, text=True, check=True).stdout
    ours = family(os.getpid())
    return [
        line.split()[3].rpartition(":")[0]
        for line in listening.splitlines()
        if ours & {int(pid) for pid in re.findall(r"pid=(\d+)", line)}
    ]


def family(root: int) -> set[int]:
    """A process and its descendants."""
    table = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True)
    pairs = [line.split() for line in table.stdout.splitlines()]
    parent = {int(pid): int(its) for pid, its in pairs}
    found = {root}
    while more := {pid for pid, its in parent.items() if its in found} - found:
        found |= more
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.basicConfig()
    scenarios = {
        "one-machine": one_machine,
        "own-cluster": own_cluster,
        "two-machines": two_machines,
    }
    print(json.dumps(scenarios[sys.argv[1]](Path(sys.argv[2]))))
