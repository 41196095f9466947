"""The chance that a cluster is absent from a round, against binomials and against counting."""

from __future__ import annotations

import itertools
from fractions import Fraction
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedvarp.theory import chance_of_absence, sampling_variance
from fedvarp.theory.participation import Staleness

small = st.integers(1, 60).flatmap(
    lambda n: st.tuples(st.just(n), st.integers(1, n), st.integers(1, n))
)


@given(small)
def test_the_ratio_of_binomials(sizes: tuple[int, int, int]) -> None:
    N, M, r = sizes
    exact = Fraction(comb(N - r, M), comb(N, M))
    assert chance_of_absence(N, M, r) == pytest.approx(float(exact), rel=1e-13)


def test_counting_cohorts() -> None:
    """All C(6, 2) = 15 cohorts; clients 0, 1, 2 are the cluster: C(3, 2) = 3 miss it."""
    cohorts = list(itertools.combinations(range(6), 2))
    missing = [S for S in cohorts if not {0, 1, 2} & set(S)]
    assert chance_of_absence(6, 2, 3) == pytest.approx(len(missing) / len(cohorts))
    assert len(missing) / len(cohorts) == 3 / 15
    # The appendix once prints C(N, r) for C(N, M): 3/20 is no chance over 15 cohorts
    assert chance_of_absence(6, 2, 3) != pytest.approx(comb(3, 2) / comb(6, 3))


@pytest.mark.parametrize(
    ("M", "r"), [(5, 1), (5, 1000), (1000, 40), (2000, 700), (10**6 - 5, 5), (999_999, 2)]
)
def test_a_million_clients(M: int, r: int) -> None:
    """By exact integers, in the form whose binomials are the smaller ones: C(N−M, r)/C(N, r)."""
    N, fewer, more = 10**6, min(M, r), max(M, r)
    exact = Fraction(comb(N - more, fewer), comb(N, fewer))
    assert chance_of_absence(N, M, r) == pytest.approx(float(exact), rel=1e-12, abs=1e-300)


def test_half_a_million_of_a_million() -> None:
    assert chance_of_absence(10**6, 500_000, 300_000) == 0.0  # e^-400,000
    assert chance_of_absence(10**6, 500_000, 10) == pytest.approx(2**-10, rel=1e-4)


def test_the_chance_of_presence_keeps_its_digits() -> None:
    """1 − p = M/N for single clients: 1 − 0.999999 in floating point has lost six digits."""
    stale = Staleness.of_clusters([1] * 10**6, 1)
    assert stale.present == pytest.approx(1e-6, rel=1e-15)
    single = Staleness.of_clients(10**6, 1)
    assert (single.present, single.absent, single.exact) == (1e-6, 0.999999, True)


def test_unequal_clusters_average_over_clients() -> None:
    """N = 6 in clusters of 1, 2 and 3, M = 2: p_k = 10/15, 6/15 and 3/15."""
    stale = Staleness.of_clusters([3, 1, 2], 2)
    assert stale.absent == pytest.approx((1 * 10 + 2 * 6 + 3 * 3) / 6 / 15)
    assert stale.present == pytest.approx(1 - stale.absent)
    assert not stale.exact


def test_clusters_of_one_size_are_those_of_the_theorem() -> None:
    """N = 6 in three pairs, M = 2: of 15 cohorts 6 miss a given pair."""
    stale = Staleness.of_clusters([2, 2, 2], 2)
    assert stale.absent == pytest.approx(6 / 15)
    assert stale.exact


@given(small)
def test_sampling_variance_is_that_of_cohorts(sizes: tuple[int, int, int]) -> None:
    """Between a draw with everybody (0) and of a single client (1), falling in M."""
    N, M, _ = sizes
    factor = sampling_variance(N, M)
    assert (factor == 0) == (M == N)
    if N > 1:
        assert sampling_variance(N, 1) == 1
    if M < N:
        assert sampling_variance(N, M + 1) < factor


def test_sampling_variance_by_counting() -> None:
    """x = 0, 1, 5, 9 and all pairs: variance of the pair's mean over that of one draw."""
    x = [0, 1, 5, 9]
    mean = Fraction(sum(x), 4)
    pairs = [Fraction(a + b, 2) for a, b in itertools.combinations(x, 2)]
    of_pairs = sum((y - mean) ** 2 for y in pairs) / 6
    of_one = sum((y - mean) ** 2 for y in x) / 4
    assert sampling_variance(4, 2) == pytest.approx(float(of_pairs / of_one))


@pytest.mark.parametrize("size", [0, 7])
def test_a_cluster_has_some_clients(size: int) -> None:
    with pytest.raises(ValueError, match=f"cluster_size ?= ?{size}.* at (least 1|most all 6)"):
        chance_of_absence(6, 2, size)


@pytest.mark.parametrize("cohort", [0, 7])
def test_a_cohort_has_some_clients(cohort: int) -> None:
    with pytest.raises(ValueError, match=f"clients_per_round ?= ?{cohort}"):
        chance_of_absence(6, cohort)
    with pytest.raises(ValueError, match=f"clients_per_round ?= ?{cohort}.* at least"):
        sampling_variance(6, cohort)
    with pytest.raises(ValueError, match=f"clients_per_round ?= ?{cohort}.* at least"):
        Staleness.of_clients(6, cohort)
    with pytest.raises(ValueError, match=f"clients_per_round ?= ?{cohort}.* at least"):
        Staleness.of_clusters([3, 3], cohort)


def test_a_client_alone_unless_a_size_is_given() -> None:
    assert chance_of_absence(10, 3) == pytest.approx(1 - 3 / 10)
