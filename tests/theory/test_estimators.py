"""σ_g², σ_K² and ‖∇f‖² from samples: unbiased, with standard errors that are what they say."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from fedvarp import LocalSGD, stream
from fedvarp.data import quadratics
from fedvarp.theory.estimators import (
    SpreadWithinClusters,
    error_of_heterogeneity,
    error_of_squared_norm,
    heterogeneity_of,
    mean_estimate,
    squared_norm,
)
from fedvarp.theory.intervals import Estimate, effective_draws, unseen_error
from small_problems import (
    gradients_of_unequal,
    mean_within,
    quadratic_gradients,
    unequal_clients,
)

SEEDS = 300


def check_estimates(estimates: list[Estimate], truth: float, overstated: float = 1.25) -> None:
    """Unbiased, and an error that is what it says, or at most `overstated` times as large.

    The mean of n estimates has a standard deviation of spread/√n: four of them leave a chance of
    6e-5. The standard deviation of SEEDS values is itself known to about 1/√(2 SEEDS), 4 %, more
    with heavy tails: it may exceed the stated error by 20 %.
    """
    values = torch.tensor([e.value for e in estimates], dtype=torch.float64)
    errors = torch.tensor([e.standard_error for e in estimates], dtype=torch.float64)
    spread = float(values.std())
    assert abs(float(values.mean()) - truth) < 4 * spread / math.sqrt(len(estimates))
    stated = float(errors.square().mean().sqrt())
    assert spread / 1.2 < stated < overstated * spread
    # One by one: an estimate more than 4 of its own errors away is an exception.
    assert float((((values - truth) / errors).abs() > 4).double().mean()) < 0.05


def drawn(x: Tensor, n: int, seed: int) -> Tensor:
    return torch.randperm(len(x), generator=stream(seed, "drawn"))[:n].sort().values


def estimated_within(x: Tensor, chosen: Tensor, clusters: Tensor) -> Estimate:
    sizes, seen, mine = torch.bincount(clusters), x[chosen], clusters[chosen]
    value, error = heterogeneity_of(seen, mine, sizes), error_of_heterogeneity(seen, mine, sizes)
    unseen = (0.0, unseen_error(value, len(chosen), len(x)))
    return Estimate.of_squares(value, error, draws_of(seen), unseen)


def draws_of(seen: Tensor) -> float:
    return effective_draws((seen - seen.mean(0)).square().sum(1))


def estimated_norm2(x: Tensor, chosen: Tensor) -> Estimate:
    seen, mean = x[chosen], x[chosen].mean(0)
    spread = float((seen - mean).square().sum())
    return Estimate.of_square(
        squared_norm(float(mean @ mean), spread, len(chosen), len(x)),
        error_of_squared_norm(seen, len(x)),
        draws_of(seen),
    )


@pytest.mark.parametrize("n", [3, 5])
def test_over_every_possible_sample_the_mean_estimate_is_the_truth(n: int) -> None:
    x = torch.randn(6, 3, generator=stream(0, "six"), dtype=torch.float64)
    clusters = torch.tensor([0, 1, 0, 2, 1, 0])
    samples = [torch.tensor(chosen) for chosen in itertools.combinations(range(6), n)]
    within = sum(estimated_within(x, chosen, clusters).value for chosen in samples) / len(samples)
    length = sum(estimated_norm2(x, chosen).value for chosen in samples) / len(samples)
    assert within == pytest.approx(mean_within(x, clusters), rel=1e-12)
    assert length == pytest.approx(float(x.mean(0).square().sum()), rel=1e-12)


@pytest.mark.parametrize("num_clusters", [1, 6])
@pytest.mark.parametrize("n", [30, 60])
def test_a_sample_of_unequal_clients_over_many_seeds(n: int, num_clusters: int) -> None:
    """n of 120 clients. With few pairs of one cluster in the sample, errors are overstated."""
    x = gradients_of_unequal(unequal_clients(120, 8))
    clusters = torch.arange(120) % num_clusters
    samples = [drawn(x, n, seed) for seed in range(SEEDS)]
    overstated = 1.7 if n == 30 else 1.3  # without the finite-population factor: by √2 at 60
    within = [estimated_within(x, chosen, clusters) for chosen in samples]
    check_estimates(within, mean_within(x, clusters), overstated)
    lengths = [estimated_norm2(x, chosen) for chosen in samples]
    check_estimates(lengths, float(x.mean(0).square().sum()), overstated)


def test_a_sample_of_clients_that_lie_equally_far() -> None:
    """All at one distance: the jackknife overstates the error, by √2 and some more with few."""
    data = quadratics(60, 10, num_clusters=12, sigma_g2=2.0, sigma_K2=0.4, sigma2=0.0)
    x = torch.stack([data.curvature * (0.0 - data.client(i)[0].mean(0)) for i in range(60)])
    one = torch.zeros(60, dtype=torch.int64)
    found = [estimated_within(x.double(), drawn(x, 20, seed), one) for seed in range(SEEDS)]
    check_estimates(found, 2.0, overstated=2.0)


def test_errors_of_noisy_numbers_over_many_seeds() -> None:
    """The noise of batches at four clients, all of them measured: its error is not zero."""
    data = quadratics(4, 10, num_clusters=2, sigma2=1.5)
    sgd = LocalSGD(lr=0.1, batch_size=4, epochs=2)
    found = []
    for seed in range(60):
        gradients = quadratic_gradients(data, 10, sgd, seed)
        noises = torch.tensor([gradients.of(i).noise for i in range(4)])
        found.append(mean_estimate(noises, 4, noisy=True))
    spread = float(torch.tensor([e.value for e in found]).std())
    errors = torch.tensor([e.standard_error for e in found])
    assert float(errors.square().mean().sqrt()) == pytest.approx(spread, rel=0.25)
    assert mean_estimate(torch.arange(4.0), 4).standard_error == 0


def test_vectors_that_come_cluster_by_cluster_give_the_same_as_all_at_once() -> None:
    x = torch.randn(12, 5, generator=stream(0, "vectors"), dtype=torch.float64)
    clusters = torch.tensor([2, 0, 1, 2, 0, 1, 2, 2, 0, 1, 2, 0])
    for clients in (torch.arange(12), torch.tensor([0, 3, 4, 8, 9])):
        spread = SpreadWithinClusters(clusters, dim=5)
        for client in clients[spread.order(clients)].tolist():
            spread.add(client, x[client])
        expected = heterogeneity_of(x[clients], clusters[clients], torch.bincount(clusters))
        assert spread.heterogeneity == pytest.approx(expected)


@pytest.mark.parametrize("unequal", [True, False])
def test_intervals_of_twelve_of_forty_cover_about_95_percent(unequal: bool) -> None:
    """σ_g² and ‖∇f‖²; of 300 draws a coverage of 95 % has a standard error of 1.3 %.

    Where two of forty clients make up a third of σ_g², most samples of twelve have not seen both.
    """
    if unequal:
        x = gradients_of_unequal(unequal_clients(40, 8))
    else:
        x = torch.randn(40, 8, generator=stream(0, "equal"), dtype=torch.float64) + 0.5
    one = torch.zeros(40, dtype=torch.int64)
    truths = (mean_within(x, one), float(x.mean(0).square().sum()))
    samples = [drawn(x, 12, seed) for seed in range(SEEDS)]
    for truth, found in (
        (truths[0], [estimated_within(x, chosen, one) for chosen in samples]),
        (truths[1], [estimated_norm2(x, chosen) for chosen in samples]),
    ):
        covered = sum(one.low <= truth <= one.high for one in found) / SEEDS
        assert covered > 0.92


def test_intervals() -> None:
    """t with 10 degrees of freedom has its 97.5 % quantile at 2.228."""
    mean = Estimate.of_mean(-1.0, 1.0, 11)
    assert (mean.low, mean.high) == pytest.approx((-3.228, 1.228), abs=2e-3)
    square = Estimate.of_square(1.0, 1.0, 11)
    assert (square.low, square.high) == pytest.approx((0.0, 3.228), abs=2e-3)
    squares = Estimate.of_squares(2.0, 0.5, 11)
    assert squares.low * squares.high == pytest.approx(4.0)
    assert squares.high == pytest.approx(2 * math.exp(2.228 / 4), rel=1e-3)
    below_zero = Estimate.of_squares(-0.1, 0.2, 11)
    assert below_zero.low == -0.1
    assert below_zero.high == pytest.approx(-0.1 + 0.4456, abs=1e-3)
    assert Estimate.exact(3.0) == Estimate.of_squares(3.0, 0.0, 5)
    # What was not drawn adds to one end, as a standard error of a normal number would.
    unseen = Estimate.of_squares(2.0, 0.5, 11, (0.0, 0.4))
    assert unseen.low == squares.low
    reach = math.sqrt((2.228 * 0.5) ** 2 + (1.96 * 0.4) ** 2)
    assert unseen.high == pytest.approx(2 * math.exp(reach / 2), rel=1e-3)


@pytest.mark.parametrize("draws", [3, 11, 1000])
def test_intervals_of_squares_change_without_a_leap_as_the_value_falls(draws: int) -> None:
    """With a standard error of 1: neither end leaps, down to values below zero."""
    values = [k / 1000 for k in range(5000, -500, -1)]
    found = [Estimate.of_squares(value, 1.0, draws) for value in values]
    for one, following in itertools.pairwise(found):
        assert abs(one.high - following.high) < 0.01
        assert abs(one.low - following.low) < 0.01
        assert one.low <= one.value <= one.high


def test_intervals_of_squares_do_not_explode_where_the_error_is_as_large_as_the_value() -> None:
    """0.0129 with an error of nearly that, from few draws, was said to be 0.0004 to 0.38."""
    found = Estimate.of_squares(0.0129, 0.0122, 5)
    linear = Estimate.of_mean(0.0129, 0.0122, 5)
    assert linear.high < found.high < 2.5 * linear.high
    assert found.low < 0.1 * found.value
    assert Estimate.of_squares(1e-12, 1.0, 11).high == pytest.approx(
        Estimate.of_mean(0.0, 1.0, 11).high
    )


@pytest.mark.parametrize(("count", "at_least"), [(3, 0.88), (5, 0.93), (8, 0.93)])
def test_intervals_of_few_squares_cover_about_95_percent(count: int, at_least: float) -> None:
    """Means of so few squares of normal numbers: their errors are often as large as they are."""
    squares = torch.randn(2000, count, generator=stream(0, "few"), dtype=torch.float64).square()
    covered = 0
    for drawn_squares in squares:
        error = float(drawn_squares.std()) / math.sqrt(count)
        one = Estimate.of_squares(
            float(drawn_squares.mean()), error, effective_draws(drawn_squares)
        )
        covered += one.low <= 1 <= one.high
    assert covered / len(squares) > at_least
