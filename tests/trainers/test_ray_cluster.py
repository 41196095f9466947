"""Which cluster is used, and that one of our own stays on this machine."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from fedvarp.system.processes import CORES_VARIABLE
from fedvarp.trainers import RayTrainer
from fedvarp.trainers import ray as on_ray
from fedvarp.trainers.ray_cluster import connect
from small_federation import plain


def test_a_ray_that_would_listen_on_all_networks_is_not_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", sys)  # imported by somebody before
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", raising=False)
    with pytest.raises(RuntimeError, match="would listen on all networks"):
        connect(None, 1, "")


@pytest.mark.parametrize(
    ("address", "environment", "used"),
    [
        (None, None, "local"),
        (None, "", "local"),
        (None, "local", "local"),
        (None, "10.0.0.1:6379", "10.0.0.1:6379"),
        ("auto", "10.0.0.1:6379", "auto"),
    ],
)
def test_the_cluster_is_the_one_named_or_that_of_the_environment(
    address: str | None, environment: str | None, used: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if environment is not None:
        monkeypatch.setenv("RAY_ADDRESS", environment)
    asked: dict[str, object] = {}
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=asked.update))
    connect(address, 1, "")
    assert asked["address"] == used
    assert ("num_cpus" in asked) == (used == "local")


def test_a_cluster_of_ones_own_keeps_to_these_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep gives each of its runs some of the cores, whoever trains in them."""
    asked: list[int] = []
    monkeypatch.setattr(on_ray, "connect", lambda address, cores, instead: asked.append(cores))
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setenv(CORES_VARIABLE, "3")
    work = plain()
    RayTrainer(work.dataset, work.model, work.loss, work.local_sgd, seed=0)._connect()
    assert asked == [3]
