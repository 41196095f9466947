"""k-means, seeded: k-means++ starts, Lloyd's steps, the best of some restarts."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from fedvarp.clusters.known_groups import by_metadata
from fedvarp.errors import InvalidError
from fedvarp.randomness import stream
from fedvarp.settings.bounds import Count, Seed
from fedvarp.settings.checked import checked

_RESTARTS: Final = 5
_STEPS: Final = 100
_DISTANCES: Final = 2**24  # held at a time


@checked
def k_means(points: Tensor, num_clusters: Count, seed: Seed = 0) -> Tensor:
    """Groups n points into K clusters around their means.

    >>> points = torch.tensor([[0.0], [5.0], [0.1], [5.1], [9.0]])
    >>> k_means(points, 3).tolist()
    [0, 1, 0, 1, 2]

    Args:
        points: (n, s).
        num_clusters: K, at most n.
        seed: Keys the starts.

    Returns:
        (n,) int64, the cluster of each point, 0 … K-1, every number used. Clusters are numbered in
        the order in which their first points come: the same partition has the same numbers.

    Raises:
        ValueError: Unless 1 ≤ K ≤ n.
    """
    n, K = len(points), num_clusters
    if n < K:
        raise InvalidError(f"{n} clients cannot form {K} clusters: choose from 1 to {n}.")
    if n == K:
        return torch.arange(n)
    points = points.double()
    best, best_spread = torch.zeros(n, dtype=torch.int64), float("inf")
    for restart in range(_RESTARTS if K > 1 else 1):
        draw = stream(seed, "k-means", K, restart)
        labels, spread = _lloyd(points, _plus_plus(points, K, draw))
        if spread < best_spread:
            best, best_spread = labels, spread
    return by_metadata(best)


def _plus_plus(points: Tensor, K: int, draw: torch.Generator) -> Tensor:
    """(K, s) points as starts, each drawn in proportion to its squared distance from the others."""
    first = int(torch.randint(len(points), (), generator=draw))
    starts = [first]
    distance = (points - points[first]).square().sum(1)
    for _ in range(K - 1):
        # Where all points coincide with a start any will do: empty clusters are mended.
        weights = distance if float(distance.sum()) > 0 else torch.ones_like(distance)
        starts.append(int(torch.multinomial(weights, 1, generator=draw)))
        distance = torch.minimum(distance, (points - points[starts[-1]]).square().sum(1))
    return points[starts]


def _lloyd(points: Tensor, centres: Tensor) -> tuple[Tensor, float]:
    labels = torch.full((len(points),), -1)
    distance = torch.zeros(len(points), dtype=points.dtype)
    for _ in range(_STEPS):
        nearest, distance = _nearest(points, centres)
        _fill_empty(nearest, distance, len(centres))
        if torch.equal(nearest, labels):
            break
        labels = nearest
        counts = torch.bincount(labels, minlength=len(centres))
        centres = torch.zeros_like(centres).index_add_(0, labels, points) / counts[:, None]
    return labels, float((points - centres[labels]).square().sum())


def _nearest(points: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest centre of each point, and the squared distance to it."""
    found = [
        torch.cdist(some, centres, compute_mode="donot_use_mm_for_euclid_dist").min(dim=1)
        for some in torch.split(points, max(1, _DISTANCES // len(centres)))
    ]
    labels = torch.cat([part.indices for part in found])
    return labels, torch.cat([part.values for part in found]).square()


def _fill_empty(labels: Tensor, distance: Tensor, num_clusters: int) -> None:
    """An empty cluster takes the point that lies worst, of those not alone in theirs."""
    counts = torch.bincount(labels, minlength=num_clusters)
    for empty in (counts == 0).nonzero().flatten().tolist():
        crowded = counts[labels] > 1
        worst = int(torch.where(crowded, distance, torch.full_like(distance, -1.0)).argmax())
        counts[labels[worst]] -= 1
        counts[empty] += 1
        labels[worst], distance[worst] = empty, 0.0
