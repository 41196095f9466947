"""k-means: every cluster filled, a partition that Lloyd's steps leave as it is, keyed starts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedvarp import stream
from fedvarp.clusters.k_means import k_means


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 25), seed=st.integers(0, 99), distinct=st.integers(1, 25), data=st.data())
def test_every_cluster_is_filled_even_of_points_that_coincide(
    n: int, seed: int, distinct: int, data: st.DataObject
) -> None:
    clusters = data.draw(st.integers(1, n))
    points = torch.randn(distinct, 3, generator=stream(seed, "points"))
    points = points[torch.arange(n) % distinct]
    labels = k_means(points, clusters, seed)
    assert sorted(set(labels.tolist())) == list(range(clusters))
    assert torch.equal(labels, k_means(points, clusters, seed))
    assert labels[0] == 0


def test_it_ends_where_every_point_is_nearest_to_its_own_mean() -> None:
    points = torch.randn(60, 4, generator=stream(0, "points"), dtype=torch.float64)
    labels = k_means(points, 7)
    means = torch.stack([points[labels == k].mean(0) for k in range(7)])
    assert torch.equal(torch.cdist(points, means).argmin(1), labels)
    starts = [k_means(points, 7, seed) for seed in range(4)]
    assert len({tuple(one.tolist()) for one in starts}) > 1  # the seed matters


@pytest.mark.parametrize("num_clusters", [0, 4])
def test_numbers_of_clusters_that_points_cannot_form_are_refused(num_clusters: int) -> None:
    with pytest.raises(ValueError, match=r"num_clusters = 0|3 .* 4 clusters: choose from 1 to 3"):
        k_means(torch.zeros(3, 1), num_clusters)
