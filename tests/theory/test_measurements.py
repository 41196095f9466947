"""What follows from the constants measured: the problem of the theorems, and what clusters do."""

from __future__ import annotations

import math

import pytest
import torch

from fedvarp import LocalSGD, stream
from fedvarp.data import from_tensors, quadratics
from fedvarp.models import Quadratic, quadratic_loss
from fedvarp.theory import Problem, cluster_curve, measure
from small_problems import (
    gradients_of_unequal,
    mean_within,
    planted_clusters,
    unequal_clients,
)

SGD = LocalSGD(lr=0.05, batch_size=5, epochs=1)


def test_the_problem_of_the_theorems_has_the_values_measured() -> None:
    data = quadratics(20, 10, num_clusters=5, sigma2=2.0, sigma_g2=3.0, sigma_K2=0.5)
    found = measure(data, Quadratic(10), quadratic_loss, local_sgd=SGD, loss_lower_bound=-1.0)
    assert found.sigma_K2 is not None
    assert found.problem(clients_per_round=4) == Problem(
        num_clients=20,
        clients_per_round=4,
        num_steps=2,  # ten examples in batches of five
        smoothness=found.smoothness.value,
        sigma2=found.sigma2.value,
        sigma_g2=found.sigma_g2.value,
        sigma_K2=found.sigma_K2.value,
        initial_gap=found.loss.value + 1.0,
        initial_gradient_norm2=found.gradient_norm2.value,
        cluster_sizes=[4] * 5,
    )


def test_one_cluster_leaves_all_and_a_cluster_each_leaves_nothing() -> None:
    for sample in (None, 7):
        data = quadratics(20, 10, seed=3)
        found = measure(data, Quadratic(10), quadratic_loss, local_sgd=SGD, sample=sample)
        one = torch.zeros(20, dtype=torch.int64)
        assert found.heterogeneity_within(one) == found.sigma_g2.value
        assert found.heterogeneity_within(torch.arange(20)) == 0.0


def test_sketched_heterogeneity_is_right_on_average() -> None:
    data = unequal_clients(60, 300)
    clusters = torch.arange(60) % 7
    truth = mean_within(gradients_of_unequal(data), clusters)
    found = [
        measure(
            data, Quadratic(300), quadratic_loss, local_sgd=SGD, sketch_size=32,
            seed=seed,
        ).heterogeneity_within(clusters)
        for seed in range(12)
    ]  # fmt: skip
    values = torch.tensor(found, dtype=torch.float64)
    assert float(values.std()) > 0  # it is an estimate
    assert abs(float(values.mean()) - truth) < 4 * float(values.std()) / math.sqrt(12)


def test_the_curve_falls_from_all_to_nothing_and_finds_the_planted_number() -> None:
    data = planted_clusters()
    measured = measure(data, Quadratic(40), quadratic_loss, local_sgd=SGD, sketch_size=32)
    points = cluster_curve(measured)
    assert [p.num_clusters for p in points] == [1, 2, 4, 6, 8, 16, 30]
    assert points[0].sigma_K2 == measured.sigma_g2.value
    assert points[0].share_removed == 0
    assert (points[-1].sigma_K2, points[-1].share_removed) == (0.0, 1.0)
    by_number = {p.num_clusters: p for p in points}
    assert by_number[6].share_removed > 0.99 > 0.9 > by_number[4].share_removed
    assert measured.sigma_K2 is not None
    assert by_number[6].sigma_K2 == pytest.approx(measured.sigma_K2.value, rel=0.5)


def test_clusters_are_not_judged_by_the_sketch_they_were_fitted_to() -> None:
    """Clients without clusters: of 64 random directions 32 pairs leave about half, not less."""
    draw = stream(0, "no clusters")
    data = from_tensors(
        [(x[None], torch.ones(1, 2000)) for x in torch.randn(64, 2000, generator=draw)]
    )
    measured = measure(
        data,
        Quadratic(2000),
        quadratic_loss,
        local_sgd=SGD,
        sketch_size=8,
    )
    (honest,) = cluster_curve(measured, [32])
    # Within one of 32 clusters of 64 independent vectors: (64 − 32) / 64 of the variance.
    assert honest.share_removed == pytest.approx(0.5, abs=0.1)


def test_a_sample_has_no_curve() -> None:
    measured = measure(planted_clusters(), Quadratic(40), quadratic_loss, local_sgd=SGD, sample=10)
    with pytest.raises(ValueError, match=r"10 of 30 clients .*[Mm]easure all"):
        cluster_curve(measured)
