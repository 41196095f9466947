"""What the theorems cannot be asked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from types import MappingProxyType
from typing import Final

THEOREM_OF: Final = {"fedavg": 1, "fedvarp": 2, "cluster_fedvarp": 3}
_WITHOUT_THEOREM: Final = {"mifa": "MIFA", "scaffold": "SCAFFOLD"}


def refuse_algorithm(algorithm: str) -> None:
    """Raises ValueError unless the paper has a theorem about the algorithm."""
    if algorithm in THEOREM_OF:
        return
    known = ", ".join(THEOREM_OF)
    if algorithm in _WITHOUT_THEOREM:
        raise ValueError(
            f"The paper proves no bound for {_WITHOUT_THEOREM[algorithm]}; it compares with it in "
            f"experiments only. Bounds are known for {known}."
        )
    near = get_close_matches(
        algorithm.lower().replace("-", "_"), [*THEOREM_OF, *_WITHOUT_THEOREM], n=1
    )
    suggestion = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"No theorem is about {algorithm!r}; there are {known}.{suggestion}")


def refuse_counts(num_clients: int, clients_per_round: int) -> None:
    """Raises ValueError unless 1 ≤ M ≤ N."""
    if not 1 <= clients_per_round <= num_clients:
        raise ValueError(
            f"clients_per_round={clients_per_round} of num_clients={num_clients}: at least one "
            "client takes part in a round, and at most all of them do."
        )


def refuse_numbers(
    *, above_zero: Mapping[str, float], not_negative: Mapping[str, float] = MappingProxyType({})
) -> None:
    """Raises ValueError for a number out of range, infinite or NaN."""
    for name, value in above_zero.items():
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name}={value} must be a finite number above 0.")
    for name, value in not_negative.items():
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name}={value} must be a finite number, 0 or more.")


def refuse_steps(num_steps: float) -> None:
    """Raises ValueError unless τ ≥ 1. A mean of the clients' τ_i need not be whole."""
    if not (math.isfinite(num_steps) and num_steps >= 1):
        raise ValueError(f"num_steps={num_steps}: a client takes at least one local step.")


def refuse_clusters(
    num_clients: int, num_clusters: int | None, cluster_sizes: Sequence[int] | None
) -> None:
    """Raises ValueError unless either argument says how all clients fall into clusters."""
    if (num_clusters is None) == (cluster_sizes is None):
        raise ValueError(
            "The bound for cluster_fedvarp depends on the clusters: give num_clusters for clusters "
            "of one size, or cluster_sizes, the number of clients of each; not both."
        )
    if num_clusters is not None and not 1 <= num_clusters <= num_clients:
        raise ValueError(
            f"num_clusters={num_clusters}: {num_clients} clients form at least 1 and at most "
            f"{num_clients} clusters."
        )
    if cluster_sizes is None:
        return
    if min(cluster_sizes, default=0) < 1 or sum(cluster_sizes) != num_clients:
        raise ValueError(
            f"cluster_sizes add up to {sum(cluster_sizes)}, the smallest is "
            f"{min(cluster_sizes, default=0)}: together they are the {num_clients} clients, and no "
            "cluster is empty. Leave clusters without a client out."
        )
