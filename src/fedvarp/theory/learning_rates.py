"""The learning rates for which the theorems are proved, and those that the corollaries prescribe.

`conditions` lists the inequalities of Theorems 1, 2 and 3; `corollary` gives the rates of their
corollaries, the bound that follows, and from how many rounds on the conditions are met.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from pydantic import InstanceOf

from fedvarp.settings.bounds import Count, Positive
from fedvarp.settings.checked import checked
from fedvarp.theory.bounds import ErrorTerms, error_terms, refuse_algorithm
from fedvarp.theory.participation import Staleness, sampling_variance
from fedvarp.theory.problem import Problem

# A rate set to the largest one allowed is allowed, and 64 rounds are not 65 because a square came
# out a bit larger.
_ROUNDING: Final = 1e-12


@dataclass(frozen=True)
class Condition:
    """One inequality that the learning rates have to satisfy.

    Attributes:
        name: What it guards against: "local steps", "server step", "cohort size" or "staleness".
        inequality: In the paper's symbols.
        left: Value of the left side: η_c, or η_s η_c.
        right: Value of the right side.
        largest_client_lr: The largest η_c that meets it with everything else as it is.
        largest_server_lr: The largest η_s; None if η_s does not occur in the inequality.
        exact: False if its p is an average over clusters of unequal sizes.
    """

    name: str
    inequality: str
    left: float
    right: float
    largest_client_lr: float
    largest_server_lr: float | None
    exact: bool = True

    @property
    def met(self) -> bool:
        """Whether the inequality holds, up to rounding."""
        return self.left <= self.right * (1 + _ROUNDING)


@checked
def conditions(
    algorithm: str,
    problem: InstanceOf[Problem],
    *,
    client_lr: Positive,
    server_lr: Positive = 1.0,
) -> list[Condition]:
    """Lists the conditions of an algorithm's theorem, in the order of the paper.

    >>> problem = Problem(num_clients=250, clients_per_round=5, num_steps=10, smoothness=1.0)
    >>> for condition in conditions("fedvarp", problem, client_lr=0.004):
    ...     print(condition.inequality, condition.met, f"{condition.largest_client_lr:.2g}")
    η_c ≤ 1 / (10 L τ) True 0.01
    η_s η_c ≤ M^(3/2) / (8 L τ N) False 0.00056
    η_s η_c ≤ 5 M / (48 τ L) True 0.052
    η_s η_c ≤ 1 / (4 L τ) True 0.025

    Args:
        algorithm: "fedavg", "fedvarp" or "cluster_fedvarp".
        problem: Its constants; for cluster_fedvarp with clusters.
        client_lr: η_c.
        server_lr: η_s.

    Returns:
        Two conditions for FedAvg, four for the others.

    Raises:
        ValueError: If no theorem is about the algorithm, a rate is not above 0, or the problem has
            no clusters where they are needed.
    """
    refuse_algorithm(algorithm)
    N, M = problem.num_clients, problem.clients_per_round
    smoothness, num_steps = problem.smoothness, problem.num_steps

    def local(inequality: str, right: float) -> Condition:
        right /= smoothness * num_steps
        return Condition("local steps", inequality, client_lr, right, right, None)

    def both(name: str, inequality: str, right: float, exact: bool = True) -> Condition:
        right /= smoothness * num_steps
        left = server_lr * client_lr
        return Condition(name, inequality, left, right, right / server_lr, right / client_lr, exact)

    if algorithm == "fedavg":
        return [
            local("η_c ≤ 1 / (8 L τ)", 1 / 8),
            both("server step", "η_s η_c ≤ 1 / (24 τ L)", 1 / 24),
        ]
    if algorithm == "fedvarp":
        return [
            local("η_c ≤ 1 / (10 L τ)", 1 / 10),
            both("staleness", "η_s η_c ≤ M^(3/2) / (8 L τ N)", M**1.5 / (8 * N)),
            both("cohort size", "η_s η_c ≤ 5 M / (48 τ L)", 5 * M / 48),
            both("server step", "η_s η_c ≤ 1 / (4 L τ)", 1 / 4),
        ]
    stale = Staleness.of_clusters(problem.sizes_of_clusters(), M)
    return [
        local("η_c ≤ 1 / (10 L τ)", 1 / 10),
        both(
            "staleness",
            "η_s η_c ≤ √M (1 − p) / (8 L τ)",
            math.sqrt(M) * stale.present / 8,
            stale.exact,
        ),
        both("cohort size", "η_s η_c ≤ M / (16 τ L)", M / 16),
        both("server step", "η_s η_c ≤ 1 / (4 L τ)", 1 / 4),
    ]


@dataclass(frozen=True)
class Orders:
    """What stands inside the corollary's O(·), without L, f and the variances.

    Attributes:
        stochastic_gradient: 1/√(MτT).
        partial_participation: √(τ/(MT)); 0 for FedVARP, times (N − M)/(N − 1) for ClusterFedVARP.
        client_drift: 1/T.
    """

    stochastic_gradient: float
    partial_participation: float
    client_drift: float


@dataclass(frozen=True)
class Corollary:
    """What the corollary says for T rounds.

    Attributes:
        client_lr: η_c = 1 / (√T τ L).
        server_lr: η_s = √(τ M).
        orders: How its three errors fall.
        terms: The theorem's bound at these rates, with constants.
        conditions: Those of the theorem, at these rates.
        smallest_rounds: The smallest T for which these rates meet the conditions; the paper leaves
            it to "T large enough".
    """

    client_lr: float
    server_lr: float
    orders: Orders
    terms: ErrorTerms
    conditions: tuple[Condition, ...]
    smallest_rounds: int


@checked
def corollary(algorithm: str, problem: InstanceOf[Problem], *, rounds: Count) -> Corollary:
    """Computes the rates of an algorithm's corollary and the bound they lead to.

    >>> problem = Problem(
    ...     num_clients=250, clients_per_round=5, num_steps=5, smoothness=1.0, sigma2=1.0,
    ...     sigma_g2=1.0, initial_gap=1.0,
    ... )
    >>> told = corollary("fedvarp", problem, rounds=10_000)
    >>> told.client_lr, told.server_lr, told.smallest_rounds
    (0.002, 5.0, 800000)

    Args:
        algorithm: "fedavg", "fedvarp" or "cluster_fedvarp".
        problem: Its constants, as `error_terms` needs them.
        rounds: T.

    Returns:
        Rates, bound and conditions.

    Raises:
        ValueError: As `error_terms` does.
    """
    N, M, T, tau = problem.num_clients, problem.clients_per_round, rounds, problem.num_steps
    client_lr = 1 / (math.sqrt(T) * tau * problem.smoothness)
    server_lr = math.sqrt(tau * M)
    at_these_rates = conditions(algorithm, problem, client_lr=client_lr, server_lr=server_lr)
    # Every left side falls as 1/√T
    needed = T * max((c.left / c.right) ** 2 for c in at_these_rates)
    participation = {
        "fedavg": 1.0,
        "fedvarp": 0.0,
        "cluster_fedvarp": M * sampling_variance(N, M),  # (N − M) / (N − 1)
    }
    return Corollary(
        client_lr=client_lr,
        server_lr=server_lr,
        orders=Orders(
            stochastic_gradient=1 / math.sqrt(M * tau * T),
            partial_participation=participation[algorithm] * math.sqrt(tau / (M * T)),
            client_drift=1 / T,
        ),
        terms=error_terms(algorithm, problem, rounds=T, client_lr=client_lr, server_lr=server_lr),
        conditions=tuple(at_these_rates),
        smallest_rounds=math.ceil(needed * (1 - _ROUNDING)),
    )
