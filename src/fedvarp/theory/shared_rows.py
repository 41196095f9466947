"""What it costs that a cluster's row is the mean of the few clients that a round drew."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fedvarp.theory.participation import sampling_variance


@dataclass(frozen=True)
class SharedRows:
    """How far h_i − y_{c_i} spreads over the clients, for rows as the last rounds left them.

    The row of cluster k is the mean of m_k updates, m_k ≥ 1 of its N_k clients. Its error e_k is
    the same for all its clients, so the spread over all N clients is that within the clusters plus
    Σ q_k (1 − q_k) E‖e_k‖² with q_k = N_k / N: nothing for one cluster, which is FedAvg.

    Attributes:
        heterogeneity: The spread over σ_K²: 1 for one cluster, nearly 2 for many large ones. Exact
            for clusters of one size; others are taken to be equally wide.
        noise: The spread over ν that the noise of the rows adds.
    """

    heterogeneity: float
    noise: float

    @classmethod
    def of(cls, sizes: Sequence[int], clients_per_round: int) -> SharedRows:
        """For clusters of these sizes and M clients a round."""
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


def chances_of_presence(num_clients: int, clients_per_round: int, size: int) -> dict[int, float]:
    """{m: chance that a round has m clients of a cluster, if it has any}.

    >>> {m: round(chance, 3) for m, chance in chances_of_presence(6, 2, 3).items()}  # 9 : 3 of 15
    {1: 0.75, 2: 0.25}
    """
    N, M = num_clients, clients_per_round
    possible = range(max(1, M + size - N), min(M, size) + 1)
    logs = [_log_choose(size, m) + _log_choose(N - size, M - m) for m in possible]
    weights = [math.exp(log - max(logs)) for log in logs]
    return {m: weight / sum(weights) for m, weight in zip(possible, weights, strict=True)}


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
