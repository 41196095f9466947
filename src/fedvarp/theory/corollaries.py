"""The learning rates that the corollaries of Theorems 1, 2 and 3 prescribe, and what follows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fedvarp.theory.checks import refuse_numbers, refuse_steps
from fedvarp.theory.conditions import Condition, conditions
from fedvarp.theory.error_terms import ErrorTerms, error_terms
from fedvarp.theory.participation import sampling_variance

_ROUNDING: Final = 1 - 1e-12  # 64 rounds are 64, not 65, if a square comes out a bit larger


@dataclass(frozen=True)
class Orders:
    """What stands inside the corollary's O(·), without L, f and the variances."""

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


def corollary(
    *,
    algorithm: str,
    num_clients: int,
    clients_per_round: int,
    rounds: int,
    num_steps: float,
    smoothness: float,
    sigma2: float,
    sigma_g2: float,
    sigma_K2: float | None = None,
    initial_gap: float,
    num_clusters: int | None = None,
    cluster_sizes: Sequence[int] | None = None,
    initial_gradient_norm2: float | None = None,
) -> Corollary:
    """The rates of the algorithm's corollary and the bound they lead to; see `error_terms`.

    >>> told = corollary(
    ...     algorithm="fedvarp", num_clients=250, clients_per_round=5, rounds=10_000, num_steps=5,
    ...     smoothness=1.0, sigma2=1.0, sigma_g2=1.0, initial_gap=1.0,
    ... )
    >>> told.client_lr, told.server_lr, told.smallest_rounds
    (0.002, 5.0, 800000)
    """
    refuse_steps(num_steps)
    refuse_numbers(above_zero={"rounds": rounds, "smoothness": smoothness})
    N, M, T, tau = num_clients, clients_per_round, rounds, num_steps
    sampling = sampling_variance(N, M)
    client_lr = 1 / (math.sqrt(T) * tau * smoothness)
    server_lr = math.sqrt(tau * M)
    at_these_rates = conditions(
        algorithm=algorithm,
        num_clients=N,
        clients_per_round=M,
        num_steps=tau,
        client_lr=client_lr,
        server_lr=server_lr,
        smoothness=smoothness,
        num_clusters=num_clusters,
        cluster_sizes=cluster_sizes,
    )
    terms = error_terms(
        algorithm=algorithm,
        num_clients=N,
        clients_per_round=M,
        rounds=T,
        num_steps=tau,
        client_lr=client_lr,
        server_lr=server_lr,
        smoothness=smoothness,
        sigma2=sigma2,
        sigma_g2=sigma_g2,
        sigma_K2=sigma_K2,
        initial_gap=initial_gap,
        num_clusters=num_clusters,
        cluster_sizes=cluster_sizes,
        initial_gradient_norm2=initial_gradient_norm2,
    )
    # Every left side falls as 1/√T
    needed = T * max((c.left / c.right) ** 2 for c in at_these_rates)
    participation = {
        "fedavg": 1.0,
        "fedvarp": 0.0,
        "cluster_fedvarp": M * sampling,  # (N − M) / (N − 1)
    }
    return Corollary(
        client_lr=client_lr,
        server_lr=server_lr,
        orders=Orders(
            stochastic_gradient=1 / math.sqrt(M * tau * T),
            partial_participation=participation[algorithm] * math.sqrt(tau / (M * T)),
            client_drift=1 / T,
        ),
        terms=terms,
        conditions=tuple(at_these_rates),
        smallest_rounds=math.ceil(needed * _ROUNDING),
    )
