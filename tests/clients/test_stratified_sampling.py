"""Stratified cohorts: from each cluster its share, and every client with probability M/N."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from every_cohort import every_cohort, inclusion
from fedvarp.clients import StratifiedSampler, Trace, UniformSampler

labels_and_m = st.lists(st.integers(0, 4), min_size=1, max_size=14).flatmap(
    lambda labels: st.tuples(st.just(labels), st.integers(1, len(labels)))
)


@given(labels_and_m=labels_and_m, seed=st.integers(0, 2**32), round=st.integers(0, 10**6))
@settings(deadline=None, max_examples=40)
def test_every_client_has_the_same_chance_and_every_cluster_its_share(
    labels_and_m: tuple[list[int], int], seed: int, round: int
) -> None:
    """Exactly M/N, also where cluster sizes are no multiples; M n/N clients but for rounding."""
    labels, m = labels_and_m
    N, sizes = len(labels), Counter(labels)
    cohorts = every_cohort(StratifiedSampler(labels, m, seed), round)
    assert inclusion(cohorts, N) == [Fraction(m, N)] * N
    for _, cohort in cohorts:
        clients = cohort.clients.tolist()
        assert clients == sorted(set(clients))
        assert len(clients) == m
        assert cohort.weights is None
        found = Counter(labels[i] for i in clients)
        for label, size in sizes.items():
            assert m * size // N <= found[label] <= -(-m * size // N)


def test_what_clusters_are_called_does_not_matter() -> None:
    """Flower numbers them as they turn up; cohorts are to be those of the simulation."""
    labels = torch.tensor([3, 3, 0, 7, 0, 7, 3, 7, 0, 0])
    renamed = {3: 1, 0: 5, 7: 0}
    others = [renamed[label] for label in labels.tolist()]
    for t in range(20):
        one = StratifiedSampler(labels, 4, seed=1).cohort(t)
        other = StratifiedSampler(others, 4, seed=1).cohort(t)
        assert torch.equal(one.clients, other.clients)


def test_any_two_clients_of_different_clusters_meet() -> None:
    """Clusters come in random order: no pair of clients excludes each other for good."""
    sampler = StratifiedSampler([0, 0, 1, 1, 2, 2], 2, seed=0)
    pairs = {tuple(sampler.cohort(t).clients.tolist()) for t in range(300)}
    assert {(i // 2, j // 2) for i, j in pairs} == {(0, 1), (0, 2), (1, 2)}
    assert len(pairs) == 12


def test_the_error_of_the_mean_is_smaller_by_what_sets_clusters_apart() -> None:
    """Numbers that clusters have in common: the mean over one client of each is exact."""
    x = torch.tensor([1.0, 1, 1, 5, 5, 5, -2, -2, -2])
    sampler = StratifiedSampler([0] * 3 + [1] * 3 + [2] * 3, 3, seed=0)
    uniform = UniformSampler(9, 3, seed=0)
    assert all(x[sampler.cohort(t).clients].mean() == x.mean() for t in range(50))
    assert any(x[uniform.cohort(t).clients].mean() != x.mean() for t in range(50))


def test_who_is_online_shares_out_the_places() -> None:
    online = [0, 1, 2, 5, 6]
    trace = Trace({0: online, 1: [4], 2: []})
    sampler = StratifiedSampler([0, 0, 0, 0, 1, 1, 1], 3, seed=0, availability=trace)
    cohorts = every_cohort(sampler)
    expected = [Fraction(3, 5) if i in online else Fraction(0) for i in range(7)]
    assert inclusion(cohorts, 7) == expected
    assert sampler.cohort(1).clients.tolist() == [4]
    assert sampler.cohort(2).clients.tolist() == []


def test_cohorts_stay_the_same_for_ever() -> None:
    sampler = StratifiedSampler(torch.arange(1000) // 10, 5, seed=0, dropout=0.5)
    cohort = sampler.cohort(7)
    assert cohort.clients.tolist() == [250, 267, 375, 800, 941]
    assert cohort.answering.clients.tolist() == [267, 375]


@pytest.mark.parametrize(
    ("clusters", "more", "sentence"),
    [
        ([0, 1], {}, "Cannot choose 3 of 2 clients"),
        ([0.5, 1.0, 2.0], {}, "clusters holds 0.5 for client 0"),
        ([[0, 1, 2]], {}, "one whole number for each client"),
        ([0, 1, 1], {"dropout": 1.5}, "dropout must lie between 0 and 1"),
        ([0, 1, 1], {"objective": [1.0, 2.0]}, "objective has shape"),
        ([0, 1, 1], {"objective": [1.0, -2.0, 1.0]}, "not negative"),
        ([0, 1, 1], {"objective": [1.0, 2.0, 1.0], "dropout": 1.0}, "heard at times"),
    ],
)
def test_what_cannot_be_drawn_is_refused(
    clusters: list[int], more: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        StratifiedSampler(clusters, 3, seed=0, **more)  # type: ignore[arg-type]
