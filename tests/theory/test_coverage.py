"""Nominal 95 % intervals hold the truth about so often, for a family of federations.

Every draw draws the clients as well as the sample, so that no lucky federation decides. Of 300
draws a coverage of 95 % has a standard error of 1.3 %: one below 92 % has a chance of 1 %.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import pytest
import torch
from benchmarks.theorems.coverage import (
    DIM,
    SAMPLES,
    clients,
    drawn,
    lengths,
    spread_between,
    variation_known,
)
from torch import Tensor

from fedvarp import FlatModel, LocalSGD, stream
from fedvarp.clients.gradients import ClientGradients
from fedvarp.data import digits
from fedvarp.models import LogisticRegression, initialised
from fedvarp.theory.estimators import (
    error_of_squared_norm,
    mean_estimate,
    squared_norm,
)
from fedvarp.theory.intervals import VARIATION, Estimate, effective_draws
from fedvarp.theory.step_errors import UpdateSpread
from fedvarp.theory.update_sketches import Uncertainty, UpdateSketches

DRAWS, AT_LEAST = 300, 0.92


def squared_length(x: Tensor, chosen: Tensor) -> Estimate:
    """‖∇f‖² as `measure` estimates it."""
    seen, mean = x[chosen], x[chosen].mean(0)
    distances = (seen - mean).square().sum(1)
    value = squared_norm(float(mean @ mean), float(distances.sum()), len(chosen), len(x))
    error = error_of_squared_norm(seen, len(x))
    return Estimate.of_square(value, error, effective_draws(distances))


def holds(estimate: Estimate, truth: float) -> bool:
    return estimate.low <= truth <= estimate.high


def of_all(estimator: Callable[..., Estimate], x: Tensor, *clusters: Tensor) -> float:
    """What is estimated: from all clients it is exact."""
    return estimator(x, torch.arange(len(x)), *clusters).value


@pytest.mark.parametrize("kind", ["equal", "few large", "squares", "log-normal 0.5"])
@pytest.mark.parametrize(("n", "N"), SAMPLES)
def test_spreads_and_lengths(n: int, N: int, kind: str) -> None:
    spreads = lengths_of_mean = 0
    for seed in range(DRAWS):
        x, chosen = clients(kind, N, seed), drawn(n, N, seed)
        spreads += holds(spread_between(x, chosen), of_all(spread_between, x))
        lengths_of_mean += holds(squared_length(x, chosen), of_all(squared_length, x))
    assert spreads / DRAWS >= AT_LEAST
    assert lengths_of_mean / DRAWS >= AT_LEAST


@pytest.mark.parametrize("kind", ["equal", "few large", "squares", "log-normal 0.5"])
@pytest.mark.parametrize(("n", "N"), [(12, 40), (20, 100)])
def test_spreads_within_clusters(n: int, N: int, kind: str) -> None:
    """Five clusters; of 5 of 60 clients hardly two share one, and little can be known."""
    within = 0
    for seed in range(DRAWS):
        clusters = torch.arange(N)[torch.randperm(N, generator=stream(seed, "clusters"))] % 5
        x, chosen = clients(kind, N, seed), drawn(n, N, seed)
        x += 2 * torch.randn(5, DIM, generator=stream(seed, "centres")).double()[clusters]
        truth = of_all(spread_between, x, clusters)
        within += holds(spread_between(x, chosen, clusters), truth)
    assert within / DRAWS >= AT_LEAST


@pytest.mark.parametrize("kind", ["equal", "few large", "squares", "log-normal 0.5"])
@pytest.mark.parametrize(("n", "N"), SAMPLES)
def test_noise_of_clients(n: int, N: int, kind: str) -> None:
    """σ² of each client is known to a tenth, and differs as their squared lengths do."""
    covered = 0
    for seed in range(DRAWS):
        draw = stream(seed, "noise", N)
        noises = lengths(kind, N, draw).flatten().square()
        chosen = drawn(n, N, seed)
        measured = noises[chosen] * (1 + 0.1 * torch.randn(n, generator=draw).double())
        found = mean_estimate(measured, N, noisy=True, squares=True)
        covered += holds(found, float(noises.mean()))
    assert covered / DRAWS >= AT_LEAST


def test_steps_that_are_known_to_differ() -> None:
    """Updates as long as Zipf's numbers of steps: the largest client is three fifths of all.

    That numbers of steps are known makes the intervals longer, though not long enough; a diagnosis
    says of such samples that they are lopsided.
    """
    known = variation_known("Zipf", 40)
    covered = blindly = 0
    for seed in range(DRAWS):
        x, chosen = clients("Zipf", 40, seed), drawn(12, 40, seed)
        truth = of_all(spread_between, x)
        covered += holds(spread_between(x, chosen, variation=known), truth)
        blindly += holds(spread_between(x, chosen), truth)
    assert blindly / DRAWS < 0.8 < 0.85 < covered / DRAWS < AT_LEAST
    hits = hits_of_step_errors(12, 40, "Zipf", known)
    assert 80 <= min(hits.values()) < 90


def test_where_no_interval_can() -> None:
    """Lengths that are log-normal with σ = 1: the largest client is a third of all squares.

    (0.35 and 0.31 of those of 40 and 60 clients, on average.) Most samples miss it, and have no
    other like it. The documentation says so, and is held to it; what misses lies above.
    """
    for n, N in SAMPLES:
        found = [
            (spread_between(x, drawn(n, N, seed)), of_all(spread_between, x))
            for seed, x in ((seed, clients("log-normal 1", N, seed)) for seed in range(DRAWS))
        ]
        assert 0.8 <= sum(holds(*one) for one in found) / DRAWS < AT_LEAST
        assert sum(truth < one.low for one, truth in found) / DRAWS < 0.025


@functools.cache
def gradients_of_digits(steps: int) -> Tensor:
    """(100, 650) of a logistic regression after so many steps on the mean of a hundred clients."""
    flat = FlatModel(initialised(lambda: LogisticRegression(64, 10), 0))
    data = digits(num_clients=100)
    loss, w = torch.nn.functional.cross_entropy, flat.vector()
    for step in range(steps + 1):
        all_of_them = ClientGradients(data, flat, loss, LocalSGD(lr=0.1, batch_size=16, steps=1), w)
        x = torch.stack([all_of_them.gradient(client, w) for client in range(100)]).double()
        if step < steps:
            w = w - 0.5 * x.mean(0).float()
    return x


@pytest.mark.parametrize("steps", [0, 20])
@pytest.mark.parametrize("n", [5, 12, 20])
def test_gradients_of_digits(n: int, steps: int) -> None:
    x = gradients_of_digits(steps)
    for estimator in (spread_between, squared_length):
        truth = of_all(estimator, x)
        covered = [holds(estimator(x, drawn(n, 100, seed)), truth) for seed in range(DRAWS)]
        assert sum(covered) / DRAWS >= AT_LEAST


def test_what_it_costs_where_clients_are_equal() -> None:
    """Twelve of forty: exp(1.96 · 1.3 · √(0.7/12)) is 1.85; t standard errors add some to it."""
    found = [
        spread_between(clients("equal", 40, seed), drawn(12, 40, seed)) for seed in range(DRAWS)
    ]
    highest = sorted(one.high / one.value for one in found)
    assert 1.85 < highest[DRAWS // 2] < 2.0
    assert sorted(one.low / one.value for one in found)[DRAWS // 2] > 0.8


FIGURES: dict[str, Callable[[UpdateSpread, int], float]] = {
    "FedAvg": lambda spread, N: spread.fedavg(N, 5).total,
    "participation": lambda spread, N: spread.fedavg(N, 5).partial_participation,
    "mini-batches": lambda spread, N: spread.fedavg(N, 5).stochastic_gradient,
    "FedVARP": lambda spread, N: spread.fedvarp(N, 5).total,
    "drift": lambda spread, N: spread.drift,
    "change": lambda spread, N: spread.fedvarp(N, 5).total - spread.fedavg(N, 5).total,
}
KINDS = {"drift": Estimate.of_square, "change": Estimate.of_mean}


def updates(
    x: Tensor,
    noises: Tensor,
    chosen: Tensor,
    pooled: Tensor,
    seed: int,
    variation: float = VARIATION,
) -> UpdateSketches:
    """Two trainings of each client drawn, with the noise of its own, and eight walks."""
    draw, n = stream(seed, "batches"), len(chosen)
    scale = (noises[chosen] / DIM).sqrt()[:, None]
    one, other = (
        x[chosen] + scale * torch.randn(n, DIM, generator=draw, dtype=torch.float64)
        for _ in range(2)
    )
    return UpdateSketches(
        clients=chosen,
        num_clients=len(x),
        one=one,
        other=other,
        noises=0.5 * (one - other).square().sum(1),
        gradients=x[chosen],
        walks=pooled + 0.1 * torch.randn(8, DIM, generator=draw, dtype=torch.float64),
        walks_at_w=x.mean(0).expand(8, -1),
        variation=variation,
    )


@pytest.mark.parametrize("kind", ["equal", "few large", "squares", "log-normal 0.5"])
@pytest.mark.parametrize(
    ("n", "N"), [(12, 40), *(pytest.param(*one, marks=pytest.mark.slow) for one in SAMPLES[1:])]
)
def test_step_errors(n: int, N: int, kind: str) -> None:
    """Clients that lie far out have as much more noise.

    A coverage of 95 % is 90 or more of 100 draws with a chance of 99 %. All six figures are of the
    same draws, and most cover more.
    """
    assert min(hits_of_step_errors(n, N, kind).values()) >= 90


def hits_of_step_errors(n: int, N: int, kind: str, variation: float = VARIATION) -> dict[str, int]:
    """Counts, of 100 draws, those whose interval holds the truth."""
    hits = dict.fromkeys(FIGURES, 0)
    for seed in range(100):
        x = clients(kind, N, seed)
        noises = 2 * lengths(kind, N, stream(seed, "clients", N)).flatten().square()
        pooled = x.mean(0) + math.sqrt(0.2 / DIM)
        between = float((x - x.mean(0)).square().sum(1).mean())
        truth = UpdateSpread(float(noises.mean()), between, 0.2)
        found = Uncertainty(updates(x, noises, drawn(n, N, seed), pooled, seed, variation))
        for name, figure in FIGURES.items():
            of_spread = functools.partial(lambda figure, spread: figure(spread, N), figure)
            kind_of_figure = KINDS.get(name, Estimate.of_squares)
            one = found.estimate(kind_of_figure, figure(found.spread, N), of_spread)
            hits[name] += holds(one, figure(truth, N))
    return hits
