"""The strategies are the simulation, with messages in between."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn
from torch.nn.functional import cross_entropy

from fedvarp import FlatModel, LocalSGD
from fedvarp.clients import local_training
from fedvarp.data import FederatedDataset, digits
from fedvarp.flower import MIFA, ClusterFedVARP, FedAvg, FedVARP, Scaffold, answer_identity
from fedvarp.flower.client import CORRECTION_RECORD
from fedvarp.models import LogisticRegression, initialised
from flower.in_process import InProcessGrid
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


def local_sgd_app(
    dataset: FederatedDataset, model: nn.Module, local_sgd: LocalSGD, seed: int
) -> ClientApp:
    """A client app that trains as `fedvarp.simulate` does, and says who it is when asked."""
    app = ClientApp()
    answer_identity(app)
    flat = FlatModel(model)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        arrays = message.content.array_records["arrays"].to_torch_state_dict()
        w = torch.cat([arrays[name].reshape(-1) for name in flat.names])
        current = message.content.config_records["config"]["server-round"]
        assert isinstance(current, int)
        correction = None
        if CORRECTION_RECORD in message.content:
            sent = message.content.array_records[CORRECTION_RECORD].to_torch_state_dict()
            correction = torch.cat([sent[name].reshape(-1) for name in flat.names])
        result = local_training.train(
            local_sgd,
            flat,
            cross_entropy,
            w,
            dataset.client(client),
            seed=seed,
            round=current - 1,
            client=client,
            correction=correction,
            augment=dataset.augment,
        )
        own = w - result.delta * result.walk
        metrics = MetricRecord(
            {
                "num-examples": result.num_examples,
                "num-steps": result.num_steps,
                "client-lr": result.walk / result.num_steps,
                "loss": result.mean_loss,
            }
        )
        content = RecordDict({"arrays": ArrayRecord(flat.state_dict(own)), "metrics": metrics})
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        x, y = dataset.client(client)
        module = flat.module
        module.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        with torch.no_grad():
            loss = float(cross_entropy(module(x), y))
        metrics = MetricRecord({"loss": loss, "num-examples": len(x)})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


@pytest.fixture(scope="module")
def dataset() -> FederatedDataset:
    return digits(num_clients=NUM_CLIENTS)


@pytest.mark.parametrize("algorithm", STRATEGIES)
def test_twenty_rounds_are_those_of_the_simulation(
    dataset: FederatedDataset, algorithm: str
) -> None:
    """Node ids are random, and nodes come in random order: only names may count."""
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
