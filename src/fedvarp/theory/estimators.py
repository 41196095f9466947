"""σ_g², σ_K² and ‖∇f‖² from the gradients of some clients: unbiased, with standard errors.

The clients are n of N, drawn uniformly without replacement. Plain plug-in figures would be biased:
the mean of few gradients is longer than the mean of all, and a spread around the mean of the few is
smaller than one around the mean of all. With n = N every correction vanishes, and every error.

Standard errors are those of the jackknife (each estimate again without each client in turn), with
the finite-population factor 1 − n/N. It overstates the error where the clients lie equally far from
their mean, and never understates it by much; `tests/theory/test_estimators.py` checks both.
Intervals are by Student's t, of spreads on their logarithm, with as many degrees of freedom as
clients really contribute (`effective_draws`).

That is not enough where a few clients make up much of a spread: half of the samples of 12 of 40
have seen neither of two that make up a third of it, and in such a sample nothing tells of them. No
estimate from it can, the bootstrap included. So a spread is taken to be uncertain by what it would
be if the squared distances varied by 1.3 times their mean, as they do with two such clients in
forty, in addition to what the jackknife sees (`intervals.unseen_error`). Samples miss large clients
and never invent them: this raises the upper end of an interval only. It costs little where clients
are seen to be unequal, and puts the upper end at 1.9 times the estimate in place of 1.2 where
twelve of forty happen to look alike. `tests/theory/test_coverage.py` has the coverage, and where it
ends: if lengths are log-normal with σ = 1, one client of forty is a third of the spread, and the
interval holds the truth in about 85 % of the samples; one that did better would be of no use.
Nor is much known of σ_K² where hardly two clients of a sample share a cluster. Measure all there.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedvarp.clients.running_spread import RunningSpread
from fedvarp.theory.intervals import VARIATION, Estimate, effective_draws, unseen_error


def heterogeneity(spread_within: Tensor, sampled: Tensor, sizes: Tensor) -> float:
    """Estimates σ_K², the mean over all N clients of ‖∇f_i − mean of ∇f_j over the cluster of i‖².

    Every pair of clients of one cluster is in the sample with the probability
    n(n−1) / N(N−1), and σ_K² is a sum over such pairs: weighing those drawn by its inverse leaves
    no bias. One cluster gives σ_g².

    Args:
        spread_within: (K,) Σ ‖∇f_i − their mean‖² over the sampled clients of each cluster.
        sampled: (K,) how many clients of each cluster were sampled.
        sizes: (K,) how many clients each cluster has.

    Returns:
        σ_K².
    """
    n, N = int(sampled.sum()), int(sizes.sum())
    if n == N:
        return float(spread_within.sum()) / N
    share = sampled.double() / sizes.double()
    return float(share @ spread_within.double()) * (N - 1) / (n * (n - 1))


def squared_norm(mean_norm2: float, spread: float, n: int, N: int) -> float:
    """Estimates ‖∇f‖² from the mean of n gradients.

    ‖mean‖² exceeds ‖∇f‖² by (1/n − 1/N) S² on average, which is taken off.

    Args:
        mean_norm2: ‖mean of the sampled gradients‖².
        spread: Σ ‖∇f_i − that mean‖² over the sample.
        n: Clients in the sample.
        N: Clients in all.

    Returns:
        ‖∇f‖²; slightly below zero at times, where there is next to none.
    """
    return mean_norm2 - (1 / n - 1 / N) * spread / (n - 1) if n < N else mean_norm2


def heterogeneity_of(vectors: Tensor, clusters: Tensor, sizes: Tensor) -> float:
    """Estimates σ_K² from gradients that are all at hand.

    Args:
        vectors: (n, s) float64, gradients or sketches of them.
        clusters: (n,) their clusters.
        sizes: (K,) how many clients each cluster has.

    Returns:
        σ_K².
    """
    _, within, sampled = _distances(vectors, clusters, len(sizes))
    return heterogeneity(within, sampled, sizes)


class SpreadWithinClusters:
    """σ_K² of vectors that come cluster by cluster: the mean of one cluster is held at a time.

    Args:
        cluster_of: (N,) int64, the clusters of all clients.
        dim: d.
        device: Where the vectors are.
    """

    def __init__(self, cluster_of: Tensor, dim: int, device: torch.device | str = "cpu") -> None:
        self._cluster_of, self._dim, self._device = cluster_of, dim, device
        self._sizes = torch.bincount(cluster_of)
        self._within = torch.zeros(len(self._sizes), dtype=torch.float64)
        self._sampled = torch.zeros_like(self._sizes)
        self._cluster, self._spread = -1, RunningSpread(dim, device)

    def order(self, clients: Tensor) -> Tensor:
        """Says in which order to visit clients.

        Args:
            clients: (n,) int64.

        Returns:
            (n,) positions in `clients`, cluster by cluster.
        """
        return self._cluster_of[clients].argsort(stable=True)

    def add(self, client: int, vector: Tensor) -> None:
        """Takes in the vector of one more client.

        Args:
            client: Its number.
            vector: (d,).
        """
        cluster = int(self._cluster_of[client])
        if cluster != self._cluster:
            self._cluster, self._spread = cluster, RunningSpread(self._dim, self._device)
        self._spread.add(vector)
        self._within[cluster] = self._spread.sum_of_squares
        self._sampled[cluster] += 1

    @property
    def heterogeneity(self) -> float:
        """The estimate of σ_K² from the vectors so far."""
        return heterogeneity(self._within, self._sampled, self._sizes)


def error_of_heterogeneity(vectors: Tensor, clusters: Tensor, sizes: Tensor) -> float:
    """Estimates the standard error of σ_K² by the jackknife.

    Args:
        vectors: (n, s) float64, gradients or sketches of them.
        clusters: (n,) their clusters.
        sizes: (K,) how many clients each cluster has.

    Returns:
        The standard error; 0 with all clients.
    """
    n, N = len(vectors), int(sizes.sum())
    if n == N:
        return 0.0
    distance, within, sampled = _distances(vectors, clusters, len(sizes))
    terms = sampled.double() / sizes.double() * within  # (K,) Σ over these is the estimate
    # Without client i its cluster k has n_k − 1 members, spread by n_k/(n_k−1) distance_i less.
    count = sampled[clusters].double()
    loss = distance * count / (count - 1).clamp(min=1)
    left = (count - 1) / sizes[clusters].double() * (within[clusters] - loss)
    without = (terms.sum() - terms[clusters] + left) * (N - 1) / ((n - 1) * (n - 2))
    return _jackknife_error(without, N)


def error_of_squared_norm(vectors: Tensor, N: int) -> float:
    """Estimates the standard error of ‖∇f‖² by the jackknife.

    Args:
        vectors: (n, s) float64, gradients or sketches of them.
        N: Clients in all.

    Returns:
        The standard error; 0 with all clients.
    """
    n = len(vectors)
    if n == N:
        return 0.0
    mean = vectors.mean(0)
    distance = (vectors - mean).square().sum(1)
    means = mean + (mean - vectors) / (n - 1)  # (n, s) without each
    spreads = distance.sum() - distance * n / (n - 1)
    without = means.square().sum(1) - (1 / (n - 1) - 1 / N) * spreads / (n - 2)
    return _jackknife_error(without, N)


def mean_estimate(
    values: Tensor,
    N: int,
    *,
    noisy: bool = False,
    squares: bool = False,
    variation: float = VARIATION,
) -> Estimate:
    """Estimates the mean over clients of a number known for n of them.

    Args:
        values: (n,).
        N: Clients in all.
        noisy: Whether the numbers themselves were estimated from random draws. The error then
            stays above zero for n = N. It is overstated there by what clients truly differ.
        squares: Whether the numbers are squares, or means of them.
        variation: What squares of all clients vary by, over their mean (`unseen_error`).

    Returns:
        The mean, its standard error and its interval.
    """
    n = len(values)
    remaining = 1.0 if noisy else 1 - n / N
    spread = float(values.double().var()) if n > 1 else 0.0
    mean, error = float(values.double().mean()), math.sqrt(remaining * spread / n)
    if squares:
        unseen = (0.0, unseen_error(mean, n, N, variation))
        return Estimate.of_squares(mean, error, effective_draws(values.double()), unseen)
    return Estimate.of_mean(mean, error, n)


def _distances(
    vectors: Tensor, clusters: Tensor, num_clusters: int
) -> tuple[Tensor, Tensor, Tensor]:
    """(n,) squared distances to the mean of the cluster, (K,) their sums, (K,) counts."""
    counts = torch.bincount(clusters, minlength=num_clusters)
    sums = torch.zeros(num_clusters, vectors.shape[1], dtype=vectors.dtype)
    means = sums.index_add_(0, clusters, vectors) / counts.clamp(min=1)[:, None]
    distance = (vectors - means[clusters]).square().sum(1)
    within = torch.zeros(num_clusters, dtype=torch.float64).index_add_(0, clusters, distance)
    return distance, within, counts


def _jackknife_error(without: Tensor, N: int) -> float:
    n = len(without)
    squares = float((without - without.mean()).square().sum())
    return math.sqrt((1 - n / N) * (n - 1) / n * squares)
