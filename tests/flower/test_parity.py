"""The strategies are the simulation, with messages in between."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord

from fedvarp import FlatModel, LocalSGD
from fedvarp.data import FederatedDataset, digits
from fedvarp.flower import MIFA, ClusterFedVARP, FedAvg, FedVARP, Scaffold
from fedvarp.models import LogisticRegression, initialised
from flower.apps import local_sgd_app
from flower.in_process import InProcessGrid, be_the_server_app
from simulating import simulate

NUM_CLIENTS = 32
LOCAL_SGD = LocalSGD(lr=0.2, batch_size=10, epochs=2)
STRATEGIES: dict[str, Any] = {
    "fedavg": FedAvg,
    "fedvarp": FedVARP,
    "cluster_fedvarp": ClusterFedVARP,
    "mifa": MIFA,
    "scaffold": Scaffold,
}


def a_model() -> LogisticRegression:
    return initialised(lambda: LogisticRegression(64, 10), 0)


@pytest.fixture(scope="module")
def dataset() -> FederatedDataset:
    return digits(num_clients=NUM_CLIENTS)


@pytest.mark.parametrize("algorithm", STRATEGIES)
def test_twenty_rounds_are_those_of_the_simulation(
    dataset: FederatedDataset, algorithm: str
) -> None:
    """Node ids are random, and nodes come in random order: only names may count."""
    be_the_server_app()
    simulated = simulate(
        dataset,
        a_model(),
        algorithm=algorithm,
        local_sgd=LOCAL_SGD,
        rounds=20,
        clients_per_round=5,
        seed=3,
        evaluate_every=20,
        progress=False,
    )
    grid = InProcessGrid(local_sgd_app(dataset, a_model(), LOCAL_SGD, seed=3))
    chance = random.Random(algorithm)
    for client in chance.sample(range(NUM_CLIENTS), NUM_CLIENTS):
        grid.connect(chance.getrandbits(63), {"partition-id": client})
    settings: dict[str, Any] = {}
    if algorithm == "cluster_fedvarp":
        assert dataset.cluster_of is not None
        settings["clusters"] = dict(enumerate(dataset.cluster_of.tolist()))
    strategy = STRATEGIES[algorithm](
        num_clients=NUM_CLIENTS,
        clients_per_round=5,
        seed=3,
        fraction_evaluate=0.0,
        **settings,
    )
    start = ArrayRecord(a_model().state_dict())
    result = strategy.start(grid, start, num_rounds=20, timeout=60)
    assert strategy.server.round == 20
    arrays = result.arrays.to_torch_state_dict()
    flower = torch.cat([tensor.reshape(-1) for tensor in arrays.values()])
    torch.testing.assert_close(flower, simulated.server.w, rtol=0, atol=1e-6)
    assert float((flower - FlatModel(a_model()).vector()).norm()) > 0.5, "the model has moved"
