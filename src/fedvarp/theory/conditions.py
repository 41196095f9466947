"""The learning rates for which Theorems 1, 2 and 3 are proved, inequality by inequality."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fedvarp.theory.checks import (
    refuse_algorithm,
    refuse_counts,
    refuse_numbers,
    refuse_steps,
)
from fedvarp.theory.participation import Staleness

_ROUNDING: Final = 1 + 1e-12  # a rate set to the largest one allowed is allowed


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
        return self.left <= self.right * _ROUNDING


def conditions(
    *,
    algorithm: str,
    num_clients: int,
    clients_per_round: int,
    num_steps: float,
    client_lr: float,
    server_lr: float = 1.0,
    smoothness: float,
    num_clusters: int | None = None,
    cluster_sizes: Sequence[int] | None = None,
) -> list[Condition]:
    """The conditions of the algorithm's theorem, in the order of the paper.

    >>> for condition in conditions(
    ...     algorithm="fedvarp", num_clients=250, clients_per_round=5, num_steps=10,
    ...     client_lr=0.004, smoothness=1.0,
    ... ):
    ...     print(condition.inequality, condition.met, f"{condition.largest_client_lr:.2g}")
    η_c ≤ 1 / (10 L τ) True 0.01
    η_s η_c ≤ M^(3/2) / (8 L τ N) False 0.00056
    η_s η_c ≤ 5 M / (48 τ L) True 0.052
    η_s η_c ≤ 1 / (4 L τ) True 0.025

    Args:
        algorithm: "fedavg", "fedvarp" or "cluster_fedvarp".
        num_clients: N.
        clients_per_round: M.
        num_steps: τ.
        client_lr: η_c.
        server_lr: η_s.
        smoothness: L.
        num_clusters: K, for cluster_fedvarp with clusters as equal as N allows.
        cluster_sizes: In place of `num_clusters`, the number of clients of each.
    """
    refuse_algorithm(algorithm)
    refuse_counts(num_clients, clients_per_round)
    refuse_steps(num_steps)
    refuse_numbers(
        above_zero={"client_lr": client_lr, "server_lr": server_lr, "smoothness": smoothness}
    )
    N, M = num_clients, clients_per_round

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
    stale = Staleness.of_clusters(N, M, num_clusters, cluster_sizes)
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
