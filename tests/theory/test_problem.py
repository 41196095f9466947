"""The constants of a problem: what is refused, and how clusters are given."""

from __future__ import annotations

from typing import Any

import pytest

from fedvarp.theory import Problem

SOME: dict[str, Any] = {
    "num_clients": 15, "clients_per_round": 4, "num_steps": 7, "smoothness": 1.3,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"clients_per_round": 16}, "clients_per_round=16 .* at most all"),
        ({"clients_per_round": 0}, "clients_per_round = 0.*at least 1"),
        ({"num_steps": 0}, "num_steps = 0.*at least 1"),
        ({"num_steps": float("nan")}, "num_steps = nan.*finite"),
        ({"smoothness": 0.0}, "smoothness = 0.0.*greater than 0"),
        ({"smoothness": float("inf")}, "smoothness = inf.*finite"),
        ({"sigma2": -1.0}, "sigma2 = -1.0.*at least 0"),
        ({"sigma_g2": float("nan")}, "sigma_g2 = nan"),
        ({"sigma_K2": -1.0}, "sigma_K2 = -1.0"),
        ({"initial_gap": -0.1}, "initial_gap = -0.1"),
        ({"initial_gradient_norm2": -0.1}, "initial_gradient_norm2 = -0.1"),
        ({"num_clusters": 5, "cluster_sizes": [15]}, "not both"),
        ({"num_clusters": 16}, "num_clusters=16"),
        ({"num_clusters": 0}, "num_clusters = 0"),
        ({"cluster_sizes": [15, 0]}, "the smallest is 0"),
        ({"cluster_sizes": [7, 7]}, "add up to 14.*15 clients"),
        ({"cluster_sizes": []}, "add up to 0"),
    ],
)
def test_what_no_problem_has_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Problem(**SOME | changes)


@pytest.mark.parametrize(
    ("clusters", "sizes"),
    [
        ({"num_clusters": 5}, [3, 3, 3, 3, 3]),
        ({"num_clusters": 4}, [4, 4, 4, 3]),  # as equal as 15 allows
        ({"cluster_sizes": [1, 12, 2]}, [1, 12, 2]),
    ],
)
def test_sizes_of_clusters(clusters: dict[str, Any], sizes: list[int]) -> None:
    assert list(Problem(**SOME | clusters).sizes_of_clusters()) == sizes


def test_what_was_left_out_is_asked_for() -> None:
    problem = Problem(**SOME, sigma2=1.5)
    assert problem.required("sigma2") == 1.5
    with pytest.raises(ValueError, match=r"sigma_g2.*heterogeneity over clients"):
        problem.required("sigma_g2")
    with pytest.raises(ValueError, match=r"give num_clusters.*cluster_sizes"):
        problem.sizes_of_clusters()
