"""Who is drawn into a round: the two quantities of the theorems that depend on the draw alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fedvarp.theory.checks import refuse_clusters, refuse_counts


def sampling_variance(num_clients: int, clients_per_round: int) -> float:
    """(N − M) / (M (N − 1)): the variance of a mean of M out of N over that of one draw.

    Lemma 4, draws without replacement. Zero with everybody in the round.

    >>> sampling_variance(num_clients=250, clients_per_round=5)
    0.19678714859437751
    """
    refuse_counts(num_clients, clients_per_round)
    if clients_per_round == num_clients:
        return 0.0  # a single client has no variance, though its formula is 0/0
    return (num_clients - clients_per_round) / (clients_per_round * (num_clients - 1))


def chance_of_absence(num_clients: int, clients_per_round: int, cluster_size: int = 1) -> float:
    """p = C(N − r, M) / C(N, M): that none of a cluster's r clients is among the M of a round.

    Theorem 3. The binomials themselves are never formed, so N may be a million.

    >>> chance_of_absence(num_clients=250, clients_per_round=5)  # 1 - 5/250
    0.98
    """
    return math.exp(_log_chance_of_absence(num_clients, clients_per_round, cluster_size))


@dataclass(frozen=True)
class Staleness:
    """How often the state that stands in for a client is left as it was.

    Attributes:
        absent: p of Theorem 3; 1 − M/N in Theorem 2. Clusters of unequal sizes are beyond the
            theorem; p is then the chance for a client drawn at random,
            Σ_k |C_k|/N · C(N − |C_k|, M)/C(N, M), and the bound is approximate.
        present: 1 − p, kept apart because it is small when N is large.
        exact: Whether all clusters are of one size, as the theorem asks.
    """

    absent: float
    present: float
    exact: bool

    @classmethod
    def of_clients(cls, num_clients: int, clients_per_round: int) -> Staleness:
        """Each client has a state of its own."""
        refuse_counts(num_clients, clients_per_round)
        return cls(
            absent=(num_clients - clients_per_round) / num_clients,
            present=clients_per_round / num_clients,
            exact=True,
        )

    @classmethod
    def of_clusters(
        cls,
        num_clients: int,
        clients_per_round: int,
        num_clusters: int | None = None,
        cluster_sizes: Sequence[int] | None = None,
    ) -> Staleness:
        """The clients of a cluster share a state.

        Args:
            num_clients: N.
            clients_per_round: M.
            num_clusters: K, for clusters as equal as N allows; or
            cluster_sizes: the number of clients of each.
        """
        refuse_clusters(num_clients, num_clusters, cluster_sizes)
        counts = _counts_of_sizes(num_clients, num_clusters, cluster_sizes)
        weighed = [
            (
                size * count / num_clients,
                _log_chance_of_absence(num_clients, clients_per_round, size),
            )
            for size, count in counts.items()
        ]
        return cls(
            absent=math.fsum(share * math.exp(log) for share, log in weighed),
            present=math.fsum(-share * math.expm1(log) for share, log in weighed),
            exact=len(counts) == 1,
        )


def _counts_of_sizes(
    num_clients: int, num_clusters: int | None, cluster_sizes: Sequence[int] | None
) -> dict[int, int]:
    """How many clusters there are of each size."""
    if num_clusters is None:
        return dict(Counter(cluster_sizes))
    smaller, larger_ones = divmod(num_clients, num_clusters)
    counts = {smaller + 1: larger_ones, smaller: num_clusters - larger_ones}
    return {size: count for size, count in counts.items() if count}


def _log_chance_of_absence(num_clients: int, clients_per_round: int, cluster_size: int) -> float:
    """C(N − r, M) / C(N, M) = Π_{m < M} (N − r − m) / (N − m); r and M may change places."""
    refuse_counts(num_clients, clients_per_round)
    if not 1 <= cluster_size <= num_clients:
        raise ValueError(
            f"cluster_size={cluster_size}: a cluster has at least 1 and at most all "
            f"{num_clients} clients."
        )
    if cluster_size + clients_per_round > num_clients:
        return -math.inf  # too few clients outside the cluster to fill a round
    fewer, more = sorted((cluster_size, clients_per_round))
    factors = ((num_clients - m - more, num_clients - m) for m in range(fewer))
    return math.fsum(
        # each form keeps its digits where the other loses them
        math.log(above / below) if 2 * above < below else math.log1p(-more / below)
        for above, below in factors
    )
