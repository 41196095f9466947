"""Clients in turn: each once in an epoch, in an order drawn anew."""

from __future__ import annotations

from fractions import Fraction
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from every_cohort import every_cohort, inclusion
from fedvarp.clients import RoundRobinSampler, Trace

n_and_m = st.integers(1, 30).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n)))


@given(n_and_m=n_and_m, seed=st.integers(0, 2**32), epoch=st.integers(0, 1000))
@settings(deadline=None, max_examples=40)
def test_an_epoch_has_every_client_once_in_cohorts_as_even_as_can_be(
    n_and_m: tuple[int, int], seed: int, epoch: int
) -> None:
    N, M = n_and_m
    K = -(-N // M)
    sampler = RoundRobinSampler(N, M, seed)
    cohorts = [sampler.cohort(epoch * K + turn).clients.tolist() for turn in range(K)]
    assert sorted(chain.from_iterable(cohorts)) == list(range(N))
    assert {len(cohort) for cohort in cohorts} <= {N // K, -(-N // K)}
    assert max(map(len, cohorts)) <= M
    if N % M == 0:
        assert {len(cohort) for cohort in cohorts} == {M}
    assert all(cohort == sorted(cohort) for cohort in cohorts)


@given(n_and_m=n_and_m, round=st.integers(0, 1000))
@settings(deadline=None, max_examples=40)
def test_every_client_has_the_same_chance_in_a_round(n_and_m: tuple[int, int], round: int) -> None:
    """Over the start, whatever the order it turns: exactly the cohort's size over N."""
    N, M = n_and_m
    cohorts = every_cohort(RoundRobinSampler(N, M, seed=0), round)
    size = len(cohorts[0][1].clients)
    assert inclusion(cohorts, N) == [Fraction(size, N)] * N


def test_epochs_have_orders_of_their_own() -> None:
    sampler = RoundRobinSampler(12, 3, seed=0)
    epochs = {
        tuple(tuple(sampler.cohort(4 * e + t).clients.tolist()) for t in range(4))
        for e in range(20)
    }
    assert len(epochs) == 20
    other = RoundRobinSampler(12, 3, seed=1)
    assert sampler.cohort(0).clients.tolist() != other.cohort(0).clients.tolist()


def test_who_is_offline_waits_for_the_next_epoch() -> None:
    always = RoundRobinSampler(6, 2, seed=0)
    online = [0, 1, 2, 3]
    trace = Trace({0: online}, after_end="repeat")
    sampler = RoundRobinSampler(6, 2, seed=0, availability=trace)
    for t in range(12):
        expected = [i for i in always.cohort(t).clients.tolist() if i in online]
        assert sampler.cohort(t).clients.tolist() == expected
    cohorts = every_cohort(sampler)
    assert inclusion(cohorts, 6) == [Fraction(1, 3)] * 4 + [Fraction(0)] * 2


def test_dropouts_leave_the_turns_as_they_are() -> None:
    sampler = RoundRobinSampler(10, 5, seed=0, dropout=0.5)
    cohort = sampler.cohort(3)
    assert cohort.clients.tolist() == RoundRobinSampler(10, 5, seed=0).cohort(3).clients.tolist()
    assert 0 < len(cohort.answering.clients) < 5


def test_cohorts_stay_the_same_for_ever() -> None:
    sampler = RoundRobinSampler(1000, 5, seed=0)
    assert sampler.cohort(207).clients.tolist() == [8, 96, 239, 374, 660]


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match="Cannot choose 6 of 5 clients"):
        RoundRobinSampler(5, 6, seed=0)
    with pytest.raises(ValueError, match="at least 1"):
        RoundRobinSampler(5, 0, seed=0)
    with pytest.raises(ValueError, match="got round -1"):
        RoundRobinSampler(5, 2, seed=0).cohort(-1)
