"""Storage against variance: σ_K², what clusters leave of σ_g², for any number of rows K."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedvarp.clusters.k_means import k_means
from fedvarp.theory.measurements import Measurements


@dataclass(frozen=True)
class CurvePoint:
    """What K rows buy.

    Attributes:
        num_clusters: K.
        sigma_K2: The variance within the clusters that k-means finds.
        share_removed: 1 − σ_K² / σ_g², of the variance between clients.
    """

    num_clusters: int
    sigma_K2: float
    share_removed: float


def curve(
    measured: Measurements,
    numbers: Sequence[int] | None = None,
    *,
    extra: Sequence[int] = (),
    seed: int = 0,
) -> list[CurvePoint]:
    """σ_K² of k-means clusters for several K, from the sketches of a measurement of all clients.

    Clusters are found in one sketch and judged by another: judged by the sketch they were fitted to
    they would look better than they are.

    Args:
        measured: What `measure` found, over all clients.
        numbers: The K to try; powers of two, N, and the K of the measured clusters unless given.
        extra: More K to try.
        seed: Keys the starts of k-means.
    """
    if not measured.of_all_clients:
        raise ValueError(
            f"Only {len(measured.clients)} of {measured.num_clients} clients were measured; the "
            f"others have no cluster. Measure all of them for this curve."
        )
    N = measured.num_clients
    if numbers is None:
        own = [] if measured.cluster_sizes is None else [len(measured.cluster_sizes)]
        numbers = [*(2**power for power in range(N.bit_length()) if 2**power < N), N, *own]
    points = []
    for K in sorted({*numbers, *extra}):
        sigma_K2 = measured.heterogeneity_within(k_means(measured.sketches, K, seed))
        removed = 1 - sigma_K2 / measured.sigma_g2.value if measured.sigma_g2.value > 0 else 0.0
        points.append(CurvePoint(K, sigma_K2, removed))
    return points
