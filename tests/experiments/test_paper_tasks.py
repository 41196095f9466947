"""One real round of each of the paper's tasks, on the real data, with its own settings."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedvarp import LocalSGD, SimulationResult
from fedvarp.data import FederatedDataset, cifar10, shakespeare
from fedvarp.models import CharGRU, LeNet5, ResNet18, initialised
from simulating import simulate

PAPER = LocalSGD(lr=0.03, batch_size=64, epochs=5)


@pytest.fixture(scope="module")
def cifar(real_data: Path) -> FederatedDataset:
    return cifar10(real_data)


def one_round(
    dataset: FederatedDataset, factory: type[torch.nn.Module], **changes: object
) -> SimulationResult:
    settings: dict[str, object] = {
        "local_sgd": PAPER,
        "clients_per_round": 5,
        "rounds": 1,
        "num_train_clients": 2,
    }
    return simulate(dataset, initialised(factory, 0), **(settings | changes))  # type: ignore[arg-type]


def check(result: SimulationResult, dim: int, num_steps: int | None = None) -> None:
    record = result.metrics[-1]
    assert len(record["clients"]) == 5
    assert record["refused"] == {}
    assert record["bytes_down"] == 5 * dim * 4
    if num_steps is not None:
        assert record["num_steps"] == num_steps
    assert len(result.server.w) == dim
    assert result.server.w.isfinite().all()


@pytest.mark.parametrize(
    "algorithm",
    [
        "cluster_fedvarp",
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("fedavg", "fedvarp", "mifa")),
    ],
)
def test_cifar10_with_lenet5(cifar: FederatedDataset, algorithm: str) -> None:
    """200 examples, batches of 64, so four steps an epoch: 5 clients × 5 epochs × 4 steps."""
    result = one_round(cifar, LeNet5, algorithm=algorithm)
    check(result, dim=62_006, num_steps=100)
    clusters = result.server.describe().get("num_clusters")
    assert clusters == (55 if algorithm == "cluster_fedvarp" else None)


@pytest.mark.slow
def test_shakespeare_with_a_gru(real_data: Path) -> None:
    """The faithful split; one epoch and a sparse evaluation keep the round short."""
    text = shakespeare(real_data, test_stride=500)
    assert text.num_clients == 1089
    local = LocalSGD(lr=0.03, batch_size=64, epochs=1)
    result = one_round(text, CharGRU, local_sgd=local, algorithm="cluster_fedvarp")
    check(result, dim=sum(p.numel() for p in CharGRU().parameters()))
    assert result.server.describe()["num_clusters"] == 36


@pytest.mark.slow
def test_cifar10_with_resnet18(cifar: FederatedDataset) -> None:
    local = LocalSGD(lr=0.03, batch_size=64, steps=1)
    small_test = FederatedDataset(
        load=cifar.load, num_clients=cifar.num_clients, cluster_of=cifar.cluster_of, num_classes=10
    )
    check(one_round(small_test, ResNet18, local_sgd=local), dim=11_173_962, num_steps=5)
