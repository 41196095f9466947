"""Clients trained by actors of real Ray clusters on this machine, to the bits of the plain loop."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedvarp import Broadcast, FlatModel, LocalSGD
from fedvarp.data import digits
from fedvarp.trainers import SequentialTrainer
from fedvarp.trainers.ray import RayTrainer, combine
from fedvarp.trainers.ray_actor_pool import ActorPool
from trainers import training_on_ray

LOCAL = LocalSGD(lr=0.1, batch_size=5, epochs=1)


def on_ray(scenario: str, folder: Path) -> tuple[dict[str, Any], str]:
    """What a scenario of training_on_ray.py saw and logged; nothing of it may be left behind."""
    pytest.importorskip("ray")
    if shutil.which("ss") is None:
        pytest.skip("ss is not installed: nobody can tell where Ray listens")
    # Not below tmp_path: the names of Ray's sockets would become too long for the system.
    with tempfile.TemporaryDirectory(prefix="ray-") as place:
        settings = {
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[1]),
            "RAY_TMPDIR": place,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray's way to say: 127.0.0.1 only
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": uuid.uuid4().hex,  # or Ray would write one into the home directory
        }
        if scenario == "own-cluster":
            del settings["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"]  # the trainer says it
        command = [sys.executable, training_on_ray.__file__, scenario, str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, env=settings, timeout=500)
        assert done.returncode == 0, done.stderr
        deadline = time.monotonic() + 60
        while left := processes_with(place):
            assert time.monotonic() < deadline, f"left behind: {left}"
            time.sleep(0.2)
        seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return seen, done.stderr


def processes_with(setting: str) -> list[str]:
    """Processes that have this text in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if setting.encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue  # it has ended
    return found


def loopback(address: str) -> bool:
    return address.strip("[]").removeprefix("::ffff:").startswith("127.")


@pytest.mark.slow
def test_same_bits_also_where_actors_are_lost_and_errors_name_the_client(tmp_path: Path) -> None:
    seen, log = on_ray("one-machine", tmp_path)
    assert seen["fedavg"]
    assert seen["feddyn"]  # which sends corrections and a proximal term
    assert seen["killed"]
    assert seen["killed once"]
    assert "lost with client 4" in log
    assert seen["raises"].startswith("ValueError no such shelf It happened at client 4 in round ")
    assert seen["kills"].startswith("RuntimeError Client 4 ended 3 Ray actors in round ")
    assert seen["connected"]  # it was up before the trainers and stays


@pytest.mark.slow
def test_a_cluster_of_its_own_stays_on_this_machine_and_ends(tmp_path: Path) -> None:
    seen, _ = on_ray("own-cluster", tmp_path)
    assert seen["same"]
    assert len(seen["sockets"]) >= 3
    assert all(map(loopback, seen["sockets"])), seen["sockets"]
    assert not seen["connected"]


@pytest.mark.slow
def test_a_slow_machine_one_that_dies_and_one_that_joins_cost_no_bit(tmp_path: Path) -> None:
    seen, log = on_ray("two-machines", tmp_path)
    assert seen["killed"]
    assert seen["joined"]
    assert seen["same"]
    assert len(seen["sockets"]) >= 5  # two raylets, the head's store, the driver, an actor
    assert all(map(loopback, seen["sockets"])), seen["sockets"]
    assert "is trained again" in log


def test_updates_of_single_clients_are_those_of_the_round() -> None:
    data, model = digits(partition="dirichlet", num_clients=30), FlatModel(nn.Linear(64, 10))
    trainer = SequentialTrainer(data, model, cross_entropy, LOCAL, 0)
    clients = torch.tensor([9, 2, 21])
    broadcast = Broadcast(0, clients, model.vector(), None)
    whole = trainer.train(broadcast, clients, 3)
    singles = [trainer.train(broadcast, clients[m : m + 1], 3) for m in range(3)]
    parts = combine(singles, broadcast.w, LOCAL.lr)
    for name in ("clients", "deltas", "num_steps", "num_examples", "num_gradients"):
        assert getattr(parts, name).equal(getattr(whole, name)), name
    assert parts.scale == whole.scale
    assert parts.losses == whole.losses
    nobody = combine([], broadcast.w, 0.25)
    assert nobody.deltas.shape == (0, 650)
    assert nobody.clients.dtype == torch.int64
    assert nobody.scale == 0.25


def test_without_ray_the_way_to_install_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    model = FlatModel(nn.Linear(64, 10))
    trainer = RayTrainer(digits(), model, cross_entropy, LOCAL, 0)
    clients = torch.tensor([1])
    with pytest.raises(ImportError, match=r'pip install "fedvarp\[ray\]"'):
        trainer.train(Broadcast(0, clients, model.vector(), None), clients, 0)
    trainer.close()  # nothing to close, and nothing fails


def test_actors_are_added_for_machines_that_join() -> None:
    started: list[SimpleNamespace] = []

    def start() -> SimpleNamespace:
        ready = SimpleNamespace(remote=lambda: len(started))
        started.append(SimpleNamespace(ready=ready))
        return started[-1]

    pool = ActorPool(None, start, 2)
    assert len(started) == 2
    pool.grow(4)
    assert len(started) == 4
    pool.grow(3)  # one has left: the others go on
    assert len(started) == 4


def test_no_workers_are_refused() -> None:
    with pytest.raises(ValueError, match="num_workers=0 must be at least 1"):
        RayTrainer(digits(), FlatModel(nn.Linear(64, 10)), cross_entropy, LOCAL, 0, num_workers=0)
