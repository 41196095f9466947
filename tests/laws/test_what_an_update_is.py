"""An update is a model difference: FedAvg averages models, and every algorithm has its optimum."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import registry
from fedvarp import Broadcast, FedAvg, FlatModel, LocalSGD, Server, ServerSGD
from fedvarp.clients import local_training
from fedvarp.clients.schedules import Constant, Exponential
from fedvarp.data import FederatedDataset, from_tensors
from fedvarp.models import Quadratic, quadratic_loss
from fedvarp.trainers import SequentialTrainer
from quadratics import Quadratics
from registry import every_algorithm

D = 3
CURVATURE = 1.3


def clients_of(sizes: list[int], seed: int) -> FederatedDataset:
    """Points of clients with as many examples as wanted, drawn anew for each seed."""
    draw = torch.Generator().manual_seed(seed)
    return from_tensors(
        [(torch.randn(n, D, generator=draw), torch.full((n, D), CURVATURE)) for n in sizes]
    )


def model_of_client(
    data: FederatedDataset, client: int, sgd: LocalSGD, w: Tensor, t: int
) -> Tensor:
    """What torch's own SGD makes of the client's batches, in float64."""
    x = data.client(client)[0].double()
    local = nn.Parameter(w.double().clone())
    optimizer = torch.optim.SGD(
        [local], lr=sgd.rate(t), momentum=sgd.momentum, weight_decay=sgd.weight_decay
    )
    decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, sgd.step_decay)
    for batch in local_training.batches(sgd, len(x), 0, t, client):
        loss = (0.5 * CURVATURE * (local - x[batch]).square().sum(1)).mean()
        (local.grad,) = torch.autograd.grad(loss, [local])
        optimizer.step()
        decay.step()
    return local.detach()


settings_of_clients = st.builds(
    lambda amount, **rest: LocalSGD(**amount, **rest),
    amount=st.one_of(
        st.integers(1, 3).map(lambda n: {"epochs": n}),
        st.integers(1, 9).map(lambda n: {"steps": n}),
    ),
    lr=st.floats(0.01, 0.3),
    batch_size=st.integers(1, 6),
    momentum=st.sampled_from([0.0, 0.5, 0.9]),
    weight_decay=st.sampled_from([0.0, 0.1]),
    step_decay=st.sampled_from([1.0, 0.7]),
    schedule=st.sampled_from([Constant(), Exponential(decay=0.8)]),
)


@settings(deadline=None)  # torch.optim is loaded in the first call
@given(
    sizes=st.lists(st.integers(1, 15), min_size=1, max_size=5),
    sgd=settings_of_clients,
    first_round=st.integers(0, 5),
)
def test_fedavgs_model_is_the_mean_of_the_clients_models(
    sizes: list[int], sgd: LocalSGD, first_round: int
) -> None:
    data = clients_of(sizes, seed=len(sizes))
    trainer = SequentialTrainer(data, FlatModel(Quadratic(D)), quadratic_loss, sgd, seed=0)
    server, everyone = Server(torch.ones(D), FedAvg(), ServerSGD(1.0)), torch.arange(len(sizes))
    for t in range(first_round, first_round + 2):
        w = server.w.clone()
        server.receive(trainer.train(server.broadcast(everyone), everyone, t))
        models = [model_of_client(data, client, sgd, w, t) for client in everyone.tolist()]
        expected = torch.stack(models).mean(0)
        torch.testing.assert_close(server.w.double(), expected, rtol=1e-5, atol=1e-5)


# Which objective


N, M = 6, 2
STEPS = torch.tensor([1, 20, 3, 8, 2, 14])
COHORTS = [torch.tensor(S) for S in itertools.combinations(range(N), M)]


def problem_at(client_lr: float) -> Quadratics:
    made = Quadratics.make(N, D)
    return Quadratics(made.centres, made.curvatures, client_lr)


def all_updates(
    problem: Quadratics, w: Tensor, proximal: float = 0.0, normalised: bool = False
) -> Tensor:
    """(N, d): Δ_i of everybody at w."""
    sent = Broadcast(0, torch.arange(N), w, None, proximal=proximal)
    return problem.train(sent, STEPS, normalised).deltas


def fixed_point(problem: Quadratics, proximal: float = 0.0, normalised: bool = False) -> Tensor:
    """Where the updates of everybody add up to nothing; they are affine in w, and diagonal."""
    zero, one = torch.zeros(D, dtype=torch.float64), torch.ones(D, dtype=torch.float64)
    at_zero, at_one = (all_updates(problem, w, proximal, normalised).sum(0) for w in (zero, one))
    return at_zero / (at_zero - at_one)


def weighted_optimum(problem: Quadratics, weights: Tensor) -> Tensor:
    h = weights.double().unsqueeze(1) * problem.curvatures
    return (h * problem.centres).sum(0) / h.sum(0)


@every_algorithm
@pytest.mark.parametrize("normalised", [False, True])
def test_every_algorithm_rests_at_the_same_model(algorithm: str, normalised: bool) -> None:
    """Over all cohorts, with the rows that everybody would send there, the mean step is none.

    The step counts, not v alone: the first edition's was longer where the cohort held more data,
    so that FedAvg went elsewhere. FedProx's clients drift less, to a mean of their own. SCAFFOLD's
    and FedDyn's do not drift at all: they rest at the uniform optimum itself, whatever their steps,
    with ∇f_i in their rows.
    """
    problem = problem_at(0.002)
    with registry.algorithm_of(algorithm, "memory", N, D, "float64") as aggregator:
        w = fixed_point(problem, aggregator.proximal, normalised)
        rows = all_updates(problem, w, aggregator.proximal, normalised)
        if not aggregator.counts_steps:
            w = problem.optimum()
            rows = torch.stack([problem.gradient(i, w) for i in range(N)])
        if aggregator.table is not None:
            aggregator.table.put(torch.arange(N), rows)
        moved = torch.zeros(D, dtype=torch.float64)
        for S in COHORTS:
            server = Server(w, copy.deepcopy(aggregator), ServerSGD())
            server.receive(problem.train(server.broadcast(S), STEPS, normalised))
            moved += (server.w - w) / len(COHORTS)
    torch.testing.assert_close(moved, torch.zeros_like(moved), rtol=0, atol=1e-15)


@pytest.mark.parametrize("client_lr", [2e-3, 2e-4])
def test_plain_differences_count_steps_and_normalised_ones_count_clients(client_lr: float) -> None:
    """Up to drift, which goes with the rate: Σ τ_i ∇f_i = 0 and Σ ∇f_i = 0."""
    problem = problem_at(client_lr)
    plain, normalised = (fixed_point(problem, normalised=which) for which in (False, True))
    by_steps = weighted_optimum(problem, STEPS)
    assert (plain - by_steps).norm() < 10 * client_lr
    assert (normalised - problem.optimum()).norm() < 10 * client_lr
    assert (by_steps - problem.optimum()).norm() > 0.3
