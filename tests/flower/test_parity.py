"""The strategies are the simulation, with messages in between."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn
from torch.nn.functional import cross_entropy

from fedvarp import FlatModel, LocalSGD
from fedvarp.clients.cohorts import ClientSampler
from fedvarp.clients.importance_sampling import ImportanceSampler
from fedvarp.clients.local_training import batches
from fedvarp.clients.schedules import Exponential
from fedvarp.data import FederatedDataset, digits
from fedvarp.data.federated_dataset import Examples
from fedvarp.flower import (
    MIFA,
    ClusterFedVARP,
    FedAvg,
    FedDyn,
    FedProx,
    FedStale,
    FedVARP,
    FedVARPAdaptive,
    FedVARPMixed,
    LocalSteps,
    Median,
    Scaffold,
    TrimmedMean,
    answer_identity,
)
from fedvarp.models import LogisticRegression, initialised
from flower.in_process import InProcessGrid
from simulating import simulate

NUM_CLIENTS = 32
STRATEGIES: dict[str, Any] = {
    "fedavg": FedAvg,
    "fedvarp": FedVARP,
    "cluster_fedvarp": ClusterFedVARP,
    "mifa": MIFA,
    "scaffold": Scaffold,
    "fedstale(beta=0.3)": partial(FedStale, beta=0.3),
    "fedvarp_adaptive(beta=one)": partial(FedVARPAdaptive, beta="one"),
    "fedvarp_mixed": FedVARPMixed,
    "fedprox(mu=0.5)": partial(FedProx, mu=0.5),
    "feddyn(alpha=0.5)": partial(FedDyn, alpha=0.5),
    "trimmed_mean(trim=0.3)": partial(TrimmedMean, trim=0.3),
    "median": Median,
}


@dataclass(frozen=True)
class Case:
    """A run that both engines should make alike."""

    local_sgd: LocalSGD
    rounds: int
    clients_per_round: int


PLAIN = LocalSGD(lr=0.2, batch_size=10, epochs=2)
CHANGING = LocalSGD(
    lr=0.2,
    batch_size=10,
    epochs=2,
    momentum=0.5,
    weight_decay=0.001,
    schedule=Exponential(decay=0.9),
    step_decay=0.95,
)
NORMALISED = CHANGING.model_copy(update={"normalise_steps": True})
# The simulation knows the mean τ of all clients, a federation that of the clients it has heard of:
# the same where all take part, or all take as many steps.
CASES = {
    "plain": Case(PLAIN, rounds=10, clients_per_round=5),
    "momentum and changing rates": Case(CHANGING, rounds=10, clients_per_round=5),
    "normalised, all take part": Case(NORMALISED, rounds=4, clients_per_round=NUM_CLIENTS),
    "normalised, equal steps": Case(
        NORMALISED.model_copy(update={"epochs": None, "steps": 6}), rounds=10, clients_per_round=5
    ),
}


PAPERS = ("fedavg", "fedvarp", "cluster_fedvarp", "mifa", "scaffold")
OFTEN = "momentum and changing rates"  # the case for all others in `make test`


def a_model() -> LogisticRegression:
    return initialised(lambda: LogisticRegression(64, 10), 0)


def local_sgd_app(
    dataset: FederatedDataset, model: nn.Module, local_sgd: LocalSGD, seed: int
) -> ClientApp:
    """A client app as a user writes it, with torch's SGD, over the batches of `fedvarp.simulate`.

    It says who it is when asked.
    """
    app = ClientApp()
    answer_identity(app)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        current = message.content.config_records["config"]["server-round"]
        assert isinstance(current, int)
        x, y = dataset.client(client)
        optimizer = torch.optim.SGD(
            model.parameters(),
            lr=local_sgd.rate(current - 1),
            momentum=local_sgd.momentum,
            weight_decay=local_sgd.weight_decay,
        )
        decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, local_sgd.step_decay)
        steps = LocalSteps(message, model, optimizer)
        for chosen in batches(local_sgd, len(x), seed, current - 1, client):
            optimizer.zero_grad()
            torch.autograd.backward(cross_entropy(model(x[chosen]), y[chosen]))
            optimizer.step()
            decay.step()
        metrics = MetricRecord({"num-examples": len(x), **steps.metrics()})
        content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
        return Message(content, reply_to=message)

    return app


@pytest.fixture(scope="module")
def dataset() -> FederatedDataset:
    """Digits over clients of 5 … 50 examples, so that they take 2 … 10 steps."""
    equal = digits(num_clients=NUM_CLIENTS)
    assert equal.num_examples is not None
    sizes = [5 + 7 * i % 46 for i in range(NUM_CLIENTS)]
    assert max(sizes) <= int(equal.num_examples.min())

    def load(i: int) -> Examples:
        x, y = equal.client(i)
        return x[: sizes[i]], y[: sizes[i]]

    return replace(equal, load=load, num_examples=torch.tensor(sizes))


@pytest.mark.parametrize(
    ("algorithm", "case"),
    [
        pytest.param(
            algorithm,
            case,
            marks=[pytest.mark.slow] if algorithm not in PAPERS and case != OFTEN else [],
        )
        for algorithm in STRATEGIES
        for case in CASES
        if not (algorithm.startswith("feddyn") and CASES[case].local_sgd.normalise_steps)  # refused
    ],
)
def test_rounds_are_those_of_the_simulation(
    dataset: FederatedDataset, algorithm: str, case: str
) -> None:
    hold_together(dataset, algorithm, case)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedvarp", "fedvarp_mixed", "scaffold"])
def test_cohorts_by_importance_are_those_of_the_simulation(
    dataset: FederatedDataset, algorithm: str
) -> None:
    """Who is drawn, and at what weight, depends on all that came back before."""
    sampler = ImportanceSampler(NUM_CLIENTS, 5, seed=3, uniform_share=0.1)
    hold_together(
        dataset, algorithm, OFTEN, sampler=sampler, sampling="importance", uniform_share=0.1
    )


def hold_together(
    dataset: FederatedDataset,
    algorithm: str,
    case: str,
    sampler: ClientSampler | None = None,
    **settings: Any,
) -> None:
    """Node ids are random, and nodes come in random order: only names may count."""
    local_sgd, rounds = CASES[case].local_sgd, CASES[case].rounds
    clients_per_round = CASES[case].clients_per_round
    simulated = simulate(
        dataset,
        a_model(),
        algorithm=algorithm,
        local_sgd=local_sgd,
        rounds=rounds,
        clients_per_round=sampler or clients_per_round,
        seed=3,
        evaluate_every=rounds,
        progress=False,
        clip_updates="median",  # as strategies do unless told otherwise
    )
    grid = InProcessGrid(local_sgd_app(dataset, a_model(), local_sgd, seed=3))
    chance = random.Random(algorithm)
    for client in chance.sample(range(NUM_CLIENTS), NUM_CLIENTS):
        grid.connect(chance.getrandbits(63), {"partition-id": client})
    if algorithm in ("cluster_fedvarp", "fedvarp_mixed"):
        assert dataset.cluster_of is not None
        settings["clusters"] = dict(enumerate(dataset.cluster_of.tolist()))
    strategy = STRATEGIES[algorithm](
        num_clients=NUM_CLIENTS,
        clients_per_round=clients_per_round,
        seed=3,
        fraction_evaluate=0.0,
        normalise_steps=local_sgd.normalise_steps,
        weighting="uniform",
        ask_names=True,
        **settings,
    )
    start = ArrayRecord(a_model().state_dict())
    result = strategy.start(grid, start, num_rounds=rounds, timeout=60)
    assert strategy.server.round == rounds
    arrays = result.arrays.to_torch_state_dict()
    flower = torch.cat([tensor.reshape(-1) for tensor in arrays.values()])
    torch.testing.assert_close(flower, simulated.server.w, rtol=0, atol=1e-6)
    assert float((flower - FlatModel(a_model()).vector()).norm()) > 0.5, "the model has moved"
