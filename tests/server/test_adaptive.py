"""FedAdam, FedYogi and FedAdagrad: the paper's lines, and Flower's own strategies."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from fedvarp import FedAvg, RoundUpdates, Server, ServerAdagrad, ServerAdam, ServerYogi, stream
from fedvarp.server.adaptive import AdaptiveOptimizer

D, ROUNDS = 5, 8


def directions() -> list[tuple[Tensor, float]]:
    """(v, scale) of some rounds; the client rate changes, and one number never moves."""
    generator = stream(0, "directions")
    found = []
    for t in range(ROUNDS):
        v = torch.randn(D, generator=generator, dtype=torch.float64)
        v[2] = 0
        found.append((v * 10.0 ** (t % 3), 0.1 * 0.9**t))
    return found


def walked(optimizer: AdaptiveOptimizer) -> Tensor:
    w = torch.ones(D, dtype=torch.float64)
    for v, scale in directions():
        optimizer.step(w, v, scale)
    return w


@pytest.mark.parametrize("name", ["adam", "yogi", "adagrad"])
def test_algorithm_2_of_the_paper_number_by_number(name: str) -> None:
    """Lines 11 to 15 in plain Python, one number of the model after the other; u from zero."""
    optimizers: dict[str, AdaptiveOptimizer] = {
        "adam": ServerAdam(0.3, beta1=0.8, beta2=0.95, tau=0.02, bias_correction=False),
        "yogi": ServerYogi(0.3, beta1=0.8, beta2=0.95, tau=0.02),
        "adagrad": ServerAdagrad(0.3, beta1=0.8, tau=0.02),
    }
    expected = []
    for i in range(D):
        x, m, u = 1.0, 0.0, 0.0
        for v, scale in directions():
            delta = -scale * float(v[i])  # the mean of the clients' models minus x
            m = 0.8 * m + 0.2 * delta
            if name == "adagrad":
                u = u + delta**2
            elif name == "yogi":
                sign = (u > delta**2) - (u < delta**2)
                u = u - 0.05 * delta**2 * sign
            else:
                u = 0.95 * u + 0.05 * delta**2
            x = x + 0.3 * m / (math.sqrt(u) + 0.02)
        expected.append(x)
    found = walked(optimizers[name])
    torch.testing.assert_close(found, torch.tensor(expected).double(), rtol=1e-6, atol=0)
    assert float(found[2]) == 1.0, "what is never moved stays"


def test_the_first_corrected_step_of_adam() -> None:
    """m = 0.1 δ and √u = 0.1 |δ|, so that |m|/√u = 1; the factor is √(1 − 0.99²)/(1 − 0.9²)."""
    w = torch.zeros(2, dtype=torch.float64)
    ServerAdam(0.01, tau=1e-12).step(w, torch.tensor([4.0, -0.5]).double(), 0.5)
    factor = math.sqrt(1 - 0.99**2) / (1 - 0.9**2)
    expected = torch.tensor([-0.01, 0.01], dtype=torch.float64) * factor
    torch.testing.assert_close(w, expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize("optimizer", [ServerAdam(), ServerYogi(), ServerAdagrad()])
def test_the_client_rate_is_no_part_of_the_method(optimizer: AdaptiveOptimizer) -> None:
    """The same models with half the rate and twice the Δ: the same steps."""
    clients, ones = torch.arange(2), torch.ones(2, dtype=torch.int64)
    deltas = torch.tensor([[1.0, -3.0], [2.0, 0.5]])
    servers = [Server(torch.zeros(2), FedAvg(), optimizer) for _ in range(2)]
    for _ in range(3):
        servers[0].receive(RoundUpdates(clients, deltas, ones, ones, scale=0.5))
        servers[1].receive(RoundUpdates(clients, 2 * deltas, ones, ones, scale=0.25))
    assert torch.equal(servers[0].w, servers[1].w)


@pytest.mark.parametrize("optimizer", [ServerAdam(), ServerYogi(), ServerAdagrad()])
def test_what_is_remembered_is_counted_and_forgotten(optimizer: AdaptiveOptimizer) -> None:
    one = torch.tensor([1])
    server = Server(torch.zeros(3), FedAvg(), optimizer)
    assert server.num_bytes == 12
    server.receive(RoundUpdates(one, torch.ones(1, 3), one, one, scale=0.5))
    assert server.num_bytes == 3 * 12 + 8, "w, m, u, and the number of steps"
    first = server.w.clone()
    other = Server(torch.zeros(3), FedAvg(), server.optimizer)
    other.receive(RoundUpdates(one, torch.ones(1, 3), one, one, scale=0.5))
    assert torch.equal(other.w, first), "another server's memory is not ours"


def test_settings_are_described_by_name() -> None:
    assert ServerYogi(0.5).describe() == {
        "optimizer": "yogi",
        "server_lr": 0.5,
        "server_beta1": 0.9,
        "server_beta2": 0.99,
        "server_tau": 1e-3,
    }


def test_steps_are_those_of_torchs_optimisers_which_pfl_research_takes_for_the_servers() -> None:
    """Adagrad's to the digit. Adam's with the correction of the round after, as Flower has it:
    √(1 − β2ˢ) / (1 − β1ˢ) with s = t + 1, where torch has s = t; without τ nothing else differs."""
    adagrad, adam, generator = ServerAdagrad(), ServerAdam(tau=1e-12), stream(0, "directions")
    models = [torch.ones(50, dtype=torch.float64) for _ in range(2)]
    theirs = [nn.Parameter(model.clone()) for model in models]
    optimizers = [
        torch.optim.Adagrad([theirs[0]], lr=0.1, eps=1e-3),
        torch.optim.Adam([theirs[1]], lr=0.01, betas=(0.9, 0.99), eps=1e-12),
    ]

    def correction(s: int) -> float:
        return float((1 - 0.99**s) ** 0.5 / (1 - 0.9**s))

    for t in range(1, 20):
        v = torch.randn(50, dtype=torch.float64, generator=generator)
        before = models[1].clone(), theirs[1].detach().clone()
        for ours, model in zip((adagrad, adam), models, strict=True):
            ours.step(model, v.clone(), 1.0)
        for parameter, optimizer in zip(theirs, optimizers, strict=True):
            parameter.grad = v.clone()
            optimizer.step()
        torch.testing.assert_close(models[0], theirs[0].detach())
        expected = (theirs[1].detach() - before[1]) * (correction(t + 1) / correction(t))
        torch.testing.assert_close(models[1] - before[0], expected)
