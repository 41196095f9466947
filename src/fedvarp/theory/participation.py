"""Who is drawn into a round: the quantities of the theory that depend on the draw alone."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fedvarp.errors import InvalidError
from fedvarp.settings.bounds import Count
from fedvarp.settings.checked import checked


@checked
def sampling_variance(num_clients: Count, clients_per_round: Count) -> float:
    """(N − M) / (M (N − 1)): the variance of a mean of M out of N over that of one draw.

    Lemma 4, draws without replacement. Zero with everybody in the round.

    >>> sampling_variance(num_clients=250, clients_per_round=5)
    0.19678714859437751

    Args:
        num_clients: N.
        clients_per_round: M.

    Returns:
        A factor between 0 (M = N) and 1 (M = 1).

    Raises:
        ValueError: Unless 1 ≤ M ≤ N.
    """
    refuse_counts(num_clients, clients_per_round)
    if clients_per_round == num_clients:
        return 0.0  # a single client has no variance, though its formula is 0/0
    return (num_clients - clients_per_round) / (clients_per_round * (num_clients - 1))


@checked
def chance_of_absence(
    num_clients: Count, clients_per_round: Count, cluster_size: Count = 1
) -> float:
    """p = C(N − r, M) / C(N, M): that none of a cluster's r clients is among the M of a round.

    Theorem 3. The binomials themselves are never formed, so N may be a million.

    >>> chance_of_absence(num_clients=250, clients_per_round=5)  # 1 - 5/250
    0.98

    Args:
        num_clients: N.
        clients_per_round: M.
        cluster_size: r.

    Returns:
        p.

    Raises:
        ValueError: Unless 1 ≤ M ≤ N and 1 ≤ r ≤ N.
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
        """Computes it for clients that have a state each.

        Args:
            num_clients: N.
            clients_per_round: M.

        Returns:
            p = 1 − M/N.

        Raises:
            ValueError: Unless 1 ≤ M ≤ N.
        """
        refuse_counts(num_clients, clients_per_round)
        return cls(
            absent=(num_clients - clients_per_round) / num_clients,
            present=clients_per_round / num_clients,
            exact=True,
        )

    @classmethod
    def of_clusters(cls, sizes: Sequence[int], clients_per_round: int) -> Staleness:
        """Computes it for clusters whose clients share a state.

        Args:
            sizes: How many clients each cluster has.
            clients_per_round: M.

        Returns:
            p of Theorem 3.

        Raises:
            ValueError: If a cluster is empty, or unless 1 ≤ M ≤ N.
        """
        N, counts = sum(sizes), Counter(sizes)
        weighed = [
            (size * count / N, _log_chance_of_absence(N, clients_per_round, size))
            for size, count in counts.items()
        ]
        return cls(
            absent=math.fsum(share * math.exp(log) for share, log in weighed),
            present=math.fsum(-share * math.expm1(log) for share, log in weighed),
            exact=len(counts) == 1,
        )


@dataclass(frozen=True)
class SharedRows:
    """How far h_i − y_{c_i} spreads over the clients, for rows as the last rounds left them.

    The row of cluster k is the mean of m_k updates, m_k ≥ 1 of its N_k clients: of the few that a
    round drew, not of all. Its error e_k is the same for all its clients, so the spread over all N
    clients is that within the clusters plus Σ q_k (1 − q_k) E‖e_k‖² with q_k = N_k / N: nothing for
    one cluster, which is FedAvg.

    Attributes:
        heterogeneity: The spread over σ_K²: 1 for one cluster, nearly 2 for many large ones. Exact
            for clusters of one size; others are taken to be equally wide.
        noise: The spread over ν that the noise of the rows adds.
    """

    heterogeneity: float
    noise: float

    @classmethod
    @functools.lru_cache(maxsize=64)  # intervals ask for the same clusters hundreds of times
    def of_clusters(cls, sizes: tuple[int, ...], clients_per_round: int) -> SharedRows:
        """Computes it for clusters of these sizes.

        Args:
            sizes: How many clients each cluster has.
            clients_per_round: M.

        Returns:
            Both factors.
        """
        N = sum(sizes)
        widths = spreads = noise = 0.0
        for size, count in Counter(sizes).items():
            chances = chances_of_presence(N, clients_per_round, size)
            others = 1 - size / N
            missed = sum(chance * sampling_variance(size, m) for m, chance in chances.items())
            width = count * (size - 1)  # Σ ‖h_i − mean‖² of equally wide clusters
            widths += width
            spreads += width * (1 + others * missed)
            noise += count * size / N * others * sum(chance / m for m, chance in chances.items())
        return cls(heterogeneity=spreads / widths if widths else 1.0, noise=noise)


def chances_of_presence(
    num_clients: int, clients_per_round: int, cluster_size: int
) -> dict[int, float]:
    """The chances that a round has m clients of a cluster, given that it has any.

    >>> {m: round(chance, 3) for m, chance in chances_of_presence(6, 2, 3).items()}  # 9 : 3 of 15
    {1: 0.75, 2: 0.25}

    Args:
        num_clients: N.
        clients_per_round: M.
        cluster_size: r.

    Returns:
        {m: chance}, for every m ≥ 1 that is possible.
    """
    N, M, r = num_clients, clients_per_round, cluster_size
    possible = range(max(1, M + r - N), min(M, r) + 1)
    logs = [_log_choose(r, m) + _log_choose(N - r, M - m) for m in possible]
    weights = [math.exp(log - max(logs)) for log in logs]
    return {m: weight / sum(weights) for m, weight in zip(possible, weights, strict=True)}


def refuse_counts(num_clients: int, clients_per_round: int) -> None:
    """Refuses rounds that cannot be drawn.

    Args:
        num_clients: N.
        clients_per_round: M.

    Raises:
        ValueError: Unless 1 ≤ M ≤ N.
    """
    if not 1 <= clients_per_round <= num_clients:
        raise InvalidError(
            f"clients_per_round={clients_per_round} of num_clients={num_clients}: at least one "
            "client takes part in a round, and at most all of them do."
        )


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def _log_chance_of_absence(num_clients: int, clients_per_round: int, cluster_size: int) -> float:
    """C(N − r, M) / C(N, M) = Π_{m < M} (N − r − m) / (N − m); r and M may change places."""
    refuse_counts(num_clients, clients_per_round)
    if not 1 <= cluster_size <= num_clients:
        raise InvalidError(
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
