"""The constants of the paper's assumptions as measured at one w, and what clusters would change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from fedvarp.clusters.k_means import k_means
from fedvarp.errors import InvalidError
from fedvarp.theory.estimators import heterogeneity_of
from fedvarp.theory.intervals import VARIATION, Estimate
from fedvarp.theory.problem import Problem
from fedvarp.theory.smoothness import Smoothness

_LOPSIDED: Final = 1 / 3  # of a sample; clients with lengths like U² count as 0.36 of their number


@dataclass(frozen=True, eq=False)
class Measurements:
    """What was measured at w, over n of the N clients.

    Attributes:
        num_clients: N.
        clients: (n,) int64, those measured, ascending.
        draws: As how many of equal weight they count in σ_g² (`effective_draws`).
        variation: What squares are taken to vary by among all clients (`unseen_error`): more than
            is supposed of any where numbers of steps are known to.
        dim: d.
        num_steps: τ, the mean over clients of their local steps in a round.
        equal_steps: Whether all take equally many.
        loss: f(w). This and all below is about the objective that the training descends: with
            unequal clients the mean of f̃_i = (τ_i/τ̄) f_i, unless updates are divided by τ_i.
        loss_lower_bound: A number that f never falls below.
        gradient_norm2: ‖∇f(w)‖².
        sigma2: Mean over clients of E‖∇f_i(w; batch) − ∇f_i(w)‖², batches as LocalSGD draws them.
        sigma_g2: Mean over clients of ‖∇f_i(w) − ∇f(w)‖².
        sigma_g2_max: The largest of the same among the clients measured.
        sigma_K2: Mean over clients of ‖∇f_i(w) − mean over its cluster‖²; None without clusters.
        cluster_of: (N,) int64, the clusters of σ_K²; None without, or if the sample holds no two
            clients of one cluster, from which σ_K² could be told.
        smoothness: L.
        sketches: (n, s) of the gradients, for clusters to be found in.
        other_sketches: (n, s), independent of them, for those clusters to be judged by.
    """

    num_clients: int
    clients: Tensor
    draws: float
    variation: float
    dim: int
    num_steps: float
    equal_steps: bool
    loss: Estimate
    loss_lower_bound: float
    gradient_norm2: Estimate
    sigma2: Estimate
    sigma_g2: Estimate
    sigma_g2_max: float
    sigma_K2: Estimate | None
    cluster_of: Tensor | None
    smoothness: Smoothness
    sketches: Tensor
    other_sketches: Tensor

    @property
    def of_all_clients(self) -> bool:
        """Whether no client was left out."""
        return len(self.clients) == self.num_clients

    @property
    def is_lopsided(self) -> bool:
        """Whether a few clients make up most of σ_g², of which a sample may have none.

        So it is if a few of those measured do, or if numbers of steps are known to differ so much.
        """
        a_few = self.draws < _LOPSIDED * len(self.clients) or self.variation > VARIATION
        return a_few and not self.of_all_clients

    @property
    def cluster_sizes(self) -> list[int] | None:
        """How many clients each cluster has; None without clusters."""
        return None if self.cluster_of is None else torch.bincount(self.cluster_of).tolist()

    def problem(self, clients_per_round: int) -> Problem:
        """Puts what was measured in the terms of the theorems, with w as the initial model.

        Args:
            clients_per_round: M.

        Returns:
            The problem that `error_terms`, `conditions` and `corollary` are asked about.

        Raises:
            ValueError: Unless 1 ≤ M ≤ N and L > 0.
        """
        return Problem(
            num_clients=self.num_clients,
            clients_per_round=clients_per_round,
            num_steps=self.num_steps,
            smoothness=self.smoothness.value,
            sigma2=self.sigma2.value,
            sigma_g2=max(self.sigma_g2.value, 0.0),
            sigma_K2=None if self.sigma_K2 is None else self.sigma_K2.value,
            initial_gap=self.loss.value - self.loss_lower_bound,
            initial_gradient_norm2=max(self.gradient_norm2.value, 0.0),
            cluster_sizes=self.cluster_sizes,
        )

    def heterogeneity_within(self, cluster_of: Tensor) -> float:
        """Estimates σ_K² of any clustering from the sketches, right to a few per cent.

        The share of σ_g² that the sketches show within clusters is taken of the exact σ_g²: one
        cluster gives σ_g², one for each client gives 0.

        Args:
            cluster_of: (N,) int64.

        Returns:
            σ_K².
        """
        one = torch.zeros(len(self.clients), dtype=torch.int64)
        whole = heterogeneity_of(self.other_sketches, one, torch.tensor([self.num_clients]))
        within = heterogeneity_of(
            self.other_sketches, cluster_of[self.clients], torch.bincount(cluster_of)
        )
        return self.sigma_g2.value * (within / whole) if whole > 0 else 0.0

    def as_json(self) -> dict[str, Any]:
        """Returns all but the sketches as plain numbers, for files and programs."""
        L = self.smoothness
        return {
            "num_clients": self.num_clients,
            "measured_clients": len(self.clients),
            "effective_clients": self.draws,
            "dim": self.dim,
            "num_steps": self.num_steps,
            "equal_steps": self.equal_steps,
            "loss": self.loss.as_json(),
            "loss_lower_bound": self.loss_lower_bound,
            "gradient_norm2": self.gradient_norm2.as_json(),
            "sigma2": self.sigma2.as_json(),
            "sigma_g2": self.sigma_g2.as_json(),
            "sigma_g2_max": self.sigma_g2_max,
            "sigma_K2": None if self.sigma_K2 is None else self.sigma_K2.as_json(),
            "num_clusters": None if self.cluster_sizes is None else len(self.cluster_sizes),
            "smoothness": {
                "value": L.value,
                "curvature": L.curvature,
                "curvature_by_client": {str(i): value for i, value in L.by_client.items()},
                "own_curvature_by_client": {str(i): one for i, one in L.own_by_client.items()},
                "num_screened": L.num_screened,
                "median_screened": L.median_screened,
                "largest_residual": L.largest_residual,
                "gradient_difference": L.gradient_difference,
            },
        }


@dataclass(frozen=True, eq=False)
class CurvePoint:
    """What K shared rows buy.

    Attributes:
        num_clusters: K.
        sigma_K2: The variance within the clusters that k-means finds.
        share_removed: 1 − σ_K² / σ_g², of the variance between clients.
        cluster_of: (N,) int64, the clusters.
    """

    num_clusters: int
    sigma_K2: float
    share_removed: float
    cluster_of: Tensor

    @property
    def sizes(self) -> list[int]:
        """How many clients each cluster has."""
        return torch.bincount(self.cluster_of).tolist()

    def as_json(self) -> dict[str, float]:
        """Returns all but the clusters as plain numbers."""
        return {
            "num_clusters": self.num_clusters,
            "sigma_K2": self.sigma_K2,
            "share_removed": self.share_removed,
        }


def cluster_curve(
    measured: Measurements,
    numbers: Sequence[int] | None = None,
    *,
    extra: Sequence[int] = (),
    seed: int = 0,
) -> list[CurvePoint]:
    """Weighs storage against variance: σ_K² of k-means clusters for several numbers of rows K.

    Clusters are found in one sketch and judged by another: judged by the sketch they were fitted to
    they would look better than they are.

    Args:
        measured: What `measure` found, over all clients.
        numbers: The K to try; powers of two, N, and the K of the measured clusters unless given.
        extra: More K to try.
        seed: Keys the starts of k-means.

    Returns:
        One point for each K, ascending.

    Raises:
        ValueError: If only a sample of the clients was measured.
    """
    if not measured.of_all_clients:
        raise InvalidError(
            f"Only {len(measured.clients)} of {measured.num_clients} clients were measured; the "
            f"others have no cluster. Measure all of them for this curve."
        )
    N = measured.num_clients
    if numbers is None:
        own = [] if measured.cluster_sizes is None else [len(measured.cluster_sizes)]
        numbers = [*(2**power for power in range(N.bit_length()) if 2**power < N), N, *own]
    points = []
    for K in sorted({*numbers, *extra}):
        cluster_of = k_means(measured.sketches, K, seed)
        sigma_K2 = measured.heterogeneity_within(cluster_of)
        removed = 1 - sigma_K2 / measured.sigma_g2.value if measured.sigma_g2.value > 0 else 0.0
        points.append(CurvePoint(K, sigma_K2, removed, cluster_of))
    return points
