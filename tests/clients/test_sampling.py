"""Cohorts: exactly the promised probabilities, the same for every algorithm, and O(M)."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, pairwise, permutations, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedvarp.clients.availability import Bernoulli, Trace
from fedvarp.clients.cohorts import ClientSampler
from fedvarp.clients.draws import inclusion_lengths, random_subset, systematic, uniform_integers
from fedvarp.clients.sampling import UniformSampler, WeightedSampler
from fedvarp.randomness import stream

seeds = st.integers(0, 2**32)
rounds = st.integers(0, 10**6)
positive = st.floats(1e-3, 1e3)


def chi_squared(counts: Counter[tuple[int, ...]], cells: int) -> float:
    expected = counts.total() / cells
    missed = cells - len(counts)
    return sum((n - expected) ** 2 / expected for n in counts.values()) + missed * expected


def counted_cohorts(sampler: ClientSampler, num_rounds: int) -> Counter[tuple[int, ...]]:
    return Counter(tuple(sampler.cohort(t).clients.tolist()) for t in range(num_rounds))


def two_of_a_kind(num_clients: int, clients_per_round: int, seed: int) -> list[ClientSampler]:
    return [
        UniformSampler(num_clients, clients_per_round, seed),
        WeightedSampler([1.0 + i % 7 for i in range(num_clients)], clients_per_round, seed),
    ]


# Every sampler


@given(N=st.integers(1, 60), data=st.data(), seed=seeds, round=rounds)
@settings(deadline=None)
def test_a_cohort_is_m_distinct_clients_in_order(
    N: int, data: st.DataObject, seed: int, round: int
) -> None:
    M = data.draw(st.integers(1, N))
    for sampler in two_of_a_kind(N, M, seed):
        cohort = sampler.cohort(round)
        assert cohort.clients.dtype == torch.int64
        assert cohort.clients.tolist() == sorted(set(cohort.clients.tolist()) & set(range(N)))
        assert len(cohort.clients) == M
        assert cohort.answers.tolist() == [True] * M


@pytest.mark.parametrize("kind", [0, 1])
def test_a_round_needs_no_other_round(kind: int) -> None:
    """Asked in any order, again, and whatever the global generator holds: the same cohort."""
    in_order = [two_of_a_kind(40, 6, 5)[kind].cohort(t).clients for t in range(20)]
    sampler = two_of_a_kind(40, 6, 5)[kind]
    torch.manual_seed(1)
    before = torch.get_rng_state()
    for t in random.Random(0).sample(range(20), 20):
        assert torch.equal(sampler.cohort(t).clients, in_order[t])
    assert torch.equal(torch.get_rng_state(), before)


def test_cohorts_stay_the_same_for_ever() -> None:
    """A change here means old runs can no longer be repeated."""
    uniform, weighted = two_of_a_kind(1000, 5, seed=0)
    assert uniform.cohort(7).clients.tolist() == [77, 101, 163, 306, 758]
    assert weighted.cohort(7).clients.tolist() == [188, 208, 327, 664, 882]
    most = UniformSampler(8, 6, seed=0, dropout=0.5).cohort(7)
    assert most.clients.tolist() == [0, 1, 3, 4, 6, 7]
    assert most.answering.clients.tolist() == [4, 7]


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("neighbour", ["round", "seed"])
def test_neighbouring_cohorts_are_independent(kind: int, neighbour: str) -> None:
    """Common clients of neighbours, uniform sampling or π_i = 5 s_i / Σ s otherwise.

    The overlap has mean Σ π_i² and, as it lies between 0 and M = 5, deviation at most 2.5 (far
    less in fact); over 400 disjoint pairs the mean is within 4 · 2.5 / √400 = 0.5. The same cohort
    twice would overlap by 5, expected are 1.25 and 1.51.
    """

    def cohort(k: int) -> set[int]:
        round, seed = (k, 0) if neighbour == "round" else (0, k)
        return set(two_of_a_kind(20, 5, seed)[kind].cohort(round).clients.tolist())

    sizes = torch.tensor([1.0 if kind == 0 else 1.0 + i % 7 for i in range(20)])
    expected = (5 * sizes / sizes.sum()).square().sum()
    overlap = sum(len(cohort(k) & cohort(k + 1)) for k in range(0, 800, 2)) / 400
    assert abs(overlap - expected) < 0.5


def test_impossible_cohorts_are_refused() -> None:
    with pytest.raises(ValueError, match="Cannot choose 6 of 5 clients"):
        UniformSampler(5, 6, seed=0)
    for M, N in ((0, 5), (-1, 5), (1, 0)):
        with pytest.raises(ValueError, match="at least 1"):
            UniformSampler(N, M, seed=0)
    with pytest.raises(ValueError, match="Cannot choose 3 of 2 clients"):
        WeightedSampler([1, 0, 1], 3, seed=0, objective=[1, 0, 1])
    for sampler in two_of_a_kind(5, 2, seed=0):
        with pytest.raises(ValueError, match="got round -1"):
            sampler.cohort(-1)


# Uniform sampling


@pytest.mark.parametrize("M", [1, 2, 3, 4, 6])
def test_every_subset_is_equally_likely(M: int) -> None:
    """χ² over the c = C(7, M) subsets: mean c - 1, deviation √(2c - 2); four above the mean.

    M = 4 and 6 are drawn by choosing whom to leave out.
    """
    cells = math.comb(7, M)
    counts = counted_cohorts(UniformSampler(7, M, seed=1), 3500)
    assert chi_squared(counts, cells) < cells - 1 + 4 * math.sqrt(2 * cells - 2)


def test_integers_below_n_are_exactly_uniform() -> None:
    """n = 3 · 2⁶⁰ makes a quarter of the 62-bit words too many.

    Taken modulo n they would make the lowest third of the range as likely as the rest together:
    1/2 instead of 1/3. Deviation of the frequency over 10,000: √(2/9 / 10⁴) = 0.0047; four of them.
    """
    n = 3 * 2**60
    drawn = uniform_integers(n, 10_000, stream(0, "test"))
    assert 0 <= int(drawn.min()) < int(drawn.max()) < n
    assert abs((drawn < n // 3).double().mean() - 1 / 3) < 4 * 0.0047
    assert abs((drawn % 2).double().mean() - 0.5) < 4 * 0.005


def test_the_cost_depends_on_the_cohort_alone() -> None:
    """10¹⁵ clients: a single array over them would need a petabyte."""
    sampler = UniformSampler(10**15, 1000, seed=0, dropout=0.1)
    clients = sampler.cohort(3).clients
    assert len(clients) == 1000
    assert int(clients.max()) < 10**15
    # The mean of uniform numbers on [0, 1): deviation √(1/12 / 1000) = 0.0091; four of them.
    assert abs(clients.double().mean() / 10**15 - 0.5) < 4 * 0.0091


def test_a_large_share_costs_no_more_than_a_small_one() -> None:
    """Collecting all of 1000 clients would take about 1000 ln 1000 draws: none are needed."""
    for size in (0, 1, 500, 501, 999, 1000):
        generator = stream(0, "test", size)
        subset = random_subset(1000, size, generator)
        assert subset.tolist() == sorted(set(subset.tolist()))
        assert len(subset) == size
        untouched = torch.equal(generator.get_state(), stream(0, "test", size).get_state())
        assert untouched == (size in (0, 1000))


# Weighted sampling, by enumeration


def every_sample(lengths: Tensor, step: int, m: int) -> Iterator[tuple[Fraction, list[int]]]:
    """All samples over start = 0 ... step - 1, with their probabilities.

    The sample changes only where a start meets the end of a length, modulo the step; between two
    such cuts it is constant (the first and the last start are compared to make sure).
    """
    ends = [sum(lengths.tolist()[: i + 1]) for i in range(len(lengths))]
    for first, beyond in pairwise(sorted({0, step} | {end % step for end in ends})):
        sample = systematic(lengths, step, first, m).tolist()
        assert sample == systematic(lengths, step, beyond - 1, m).tolist()
        yield Fraction(beyond - first, step), sample


def clip_and_redistribute(sizes: list[float], m: int) -> list[Fraction]:
    """The prescribed inclusion probabilities in exact arithmetic, one certain client at a time."""
    exact = [Fraction(size) for size in sizes]
    pi = [Fraction(0)] * len(sizes)
    others = set(range(len(sizes)))
    while others:
        left = m - (len(sizes) - len(others))
        scale = left / sum((exact[i] for i in others), Fraction(0))
        largest = max(others, key=lambda i: exact[i])
        if scale * exact[largest] < 1:
            for i in others:
                pi[i] = scale * exact[i]
            break
        pi[largest] = Fraction(1)
        others.remove(largest)
    return pi


sizes_and_m = st.lists(positive | st.integers(1, 9).map(float), min_size=1, max_size=8).flatmap(
    lambda sizes: st.tuples(st.just(sizes), st.integers(1, len(sizes)))
)


@given(sizes_and_m, st.randoms(use_true_random=False))
@settings(deadline=None)
def test_inclusion_probabilities_are_exact(
    sizes_and_m: tuple[list[float], int], shuffler: random.Random
) -> None:
    """In any order of the clients: no rounding at all against ℓ_i / step.

    Against the prescribed ones, rounding the sizes to units of 2⁻⁵³ moves each by half a unit and
    their sum by n halves, hence π by at most m(n + 2) / 2⁵³ (and once more for those set apart).
    """
    sizes, m = sizes_and_m
    shuffler.shuffle(sizes)
    lengths, step = inclusion_lengths(torch.tensor(sizes, dtype=torch.float64), m)
    included = [Fraction(0)] * len(sizes)
    for probability, sample in every_sample(lengths, step, m):
        assert len(set(sample)) == m
        for i in sample:
            included[i] += probability
    assert included == [Fraction(length, step) for length in lengths.tolist()]
    for pi, prescribed in zip(included, clip_and_redistribute(sizes, m), strict=True):
        assert abs(pi - prescribed) <= Fraction(2 * m * (len(sizes) + 2), 2**53)


@pytest.mark.parametrize(
    ("sizes", "m"),
    [
        ([1e300, 1e-300, 1.0, 2.0], 3),  # two certain, one of the other two nearly so
        ([1e9] * 4095 + [1.0, 2.0, 3.0], 4096),  # 4095 certain: m * step has to fit into an int64
        ([2.0**i for i in range(60)], 50),  # clients become certain one after another
        ([1 / 3] * 7, 3),
    ],
)
def test_extreme_sizes_leave_the_lengths_consistent(sizes: list[float], m: int) -> None:
    lengths, step = inclusion_lengths(torch.tensor(sizes, dtype=torch.float64), m)
    assert sum(lengths.tolist()) == m * step
    assert all(1 <= length <= step for length in lengths.tolist())
    for start in (0, step // 3, step - 1):
        assert len(set(systematic(lengths, step, start, m).tolist())) == m
    if m == 4096:
        small = [Fraction(length, step) for length in lengths.tolist()[-3:]]
        assert [float(pi) for pi in small] == pytest.approx([1 / 6, 2 / 6, 3 / 6], abs=1e-12)


@pytest.mark.parametrize("m", [1, 2, 3])
def test_equal_sizes_in_random_order_make_every_subset_equally_likely(m: int) -> None:
    """Over all 120 orders and all starts, exactly; and the sampler does shuffle (χ² as above)."""
    lengths, step = inclusion_lengths(torch.ones(5, dtype=torch.float64), m)
    chance = dict.fromkeys(combinations(range(5), m), Fraction(0))
    for order in permutations(range(5)):
        for probability, sample in every_sample(lengths, step, m):
            chance[tuple(sorted(order[k] for k in sample))] += probability / 120
    assert set(chance.values()) == {Fraction(1, math.comb(5, m))}
    cells = math.comb(5, m)
    counts = counted_cohorts(WeightedSampler([1.0] * 5, m, seed=2), 2000)
    assert chi_squared(counts, cells) < cells - 1 + 4 * math.sqrt(2 * cells - 2)


CASES = {
    "plain": WeightedSampler([1, 2, 3, 4, 5], 2, seed=0),
    "one certain": WeightedSampler([1, 1, 2, 9, 1], 3, seed=0),
    "everyone": WeightedSampler([1, 2, 3, 4, 5], 5, seed=0),
    "objective": WeightedSampler([1, 1, 1, 1, 2], 2, seed=0, objective=[5, 4, 3, 2, 1]),
    "in proportion": WeightedSampler([1, 2, 3, 4, 5], 2, seed=0, objective=[1, 2, 3, 4, 5]),
    "not all count": WeightedSampler([1, 0, 2, 3, 0], 2, seed=0, objective=[1, 0, 1, 1, 0]),
    "dropout": WeightedSampler([1, 2, 3, 4, 5], 2, seed=0, dropout=0.25),
    "dropouts": WeightedSampler([1, 2, 3, 4, 5], 3, seed=0, dropout=[0, 0.9, 0.5, 0.1, 0.3]),
    "some online": WeightedSampler(
        [1, 0, 3, 4, 5],
        2,
        seed=0,
        objective=[3, 0, 4, 1, 5],
        availability=Trace({0: [0, 1, 2, 3]}, after_end="repeat"),
        dropout=0.5,
    ),
    "few online": WeightedSampler(
        [1, 0, 3, 4, 5],
        3,
        seed=0,
        objective=[1, 0, 1, 1, 1],
        availability=Trace({0: [1, 2, 4]}, after_end="repeat"),
    ),
}


POOL = {"not all count": [0, 2, 3], "some online": [0, 2, 3], "few online": [2, 4]}


@pytest.mark.parametrize("case", CASES)
def test_the_weighted_sum_is_unbiased(case: str) -> None:
    """E Σ_m weights_m Δ_m = Σ_i p_i Δ_i to 1e-12, over every sample and every set of dropouts.

    Weights are those the sampler hands out (each client's is the same in all rounds it is in);
    samples and their probabilities are enumerated. With an availability, the clients online are
    all there is.
    """
    sampler = CASES[case]
    weight: dict[int, float] = {}
    for t in range(100):
        cohort = sampler.cohort(t)
        for clients, weights in (
            (cohort.clients, cohort.weights),
            (cohort.answering.clients, cohort.answering.weights),
        ):
            assert weights is not None
            for i, w in zip(clients.tolist(), weights.tolist(), strict=True):
                assert weight.setdefault(i, w) == w

    pool = POOL.get(case, list(range(5)))
    assert sorted(weight) == pool
    p = torch.as_tensor(sampler.objective or [1.0] * 5, dtype=torch.float64)
    p = p / p[pool].sum()
    q = torch.as_tensor(sampler.dropout, dtype=torch.float64).expand(5)
    delta = torch.randn(5, 3, generator=stream(0, "test"), dtype=torch.float64)

    m = min(sampler.clients_per_round, len(pool))
    sizes = torch.tensor([sampler.sizes[i] for i in pool], dtype=torch.float64)
    lengths, step = inclusion_lengths(sizes, m)
    expectation = torch.zeros(3, dtype=torch.float64)
    for probability, sample in every_sample(lengths, step, m):
        for answers in product([True, False], repeat=m):
            chance, total = float(probability), torch.zeros(3, dtype=torch.float64)
            for i, answered in zip((pool[k] for k in sample), answers, strict=True):
                chance *= float(1 - q[i] if answered else q[i])
                total += weight[i] * delta[i] * answered
            expectation += chance * total
    assert torch.allclose(expectation, p[pool] @ delta[pool], rtol=0, atol=1e-12)


@pytest.mark.parametrize("case", ["one certain", "objective", "not all count", "some online"])
def test_the_sampler_draws_with_these_probabilities(case: str) -> None:
    """Frequencies over 1500 rounds: deviation √(π(1-π)/1500), four of them (0 where π is 0 or 1).

    This is what ties the sampler's own order and start to the enumeration above.
    """
    sampler = CASES[case]
    pool = POOL.get(case, list(range(5)))
    pi = torch.zeros(5, dtype=torch.float64)
    exact = clip_and_redistribute(
        [float(sampler.sizes[i]) for i in pool], sampler.clients_per_round
    )
    pi[pool] = torch.tensor([float(x) for x in exact], dtype=torch.float64)
    chosen = torch.zeros(5, dtype=torch.float64)
    for t in range(1500):
        chosen[sampler.cohort(t).clients] += 1
    tolerance = 4 * (pi * (1 - pi) / 1500).sqrt()
    assert ((chosen / 1500 - pi).abs() <= tolerance).all()


def test_what_cannot_be_unbiased_is_refused() -> None:
    refused = {
        "client 1 size 0, objective weight 1 and dropout 0": {"sizes": [1, 0, 2]},
        "client 2 size 2, objective weight 0": {"sizes": [1, 1, 2], "objective": [1, 1, 0]},
        "client 0 size 1, objective weight 1 and dropout 1": {
            "sizes": [1, 1, 2],
            "dropout": [1, 0, 0],
        },
        "client 1 size 0, objective weight 1 and dropout 1": {
            "sizes": [1, 0, 2],
            "dropout": [0, 1, 0],
        },
        "sizes must be finite and not negative": {"sizes": [1, -1, 2]},
        "sizes must be finite": {"sizes": [1, math.nan, 2]},
        "sizes must be": {"sizes": [1e308, 1e308, 1e308]},
        "objective must be finite": {"sizes": [1, 1, 2], "objective": [1, math.inf, 1]},
        r"objective has shape \(2,\)": {"sizes": [1, 1, 2], "objective": [1, 1]},
        r"dropout has shape \(2,\)": {"sizes": [1, 1, 2], "dropout": [0.1, 0.1]},
    }
    for message, arguments in refused.items():
        with pytest.raises(ValueError, match=message):
            WeightedSampler(clients_per_round=1, seed=0, **arguments)  # type: ignore[arg-type]


# Availability


@given(
    online=st.frozensets(st.integers(0, 19), max_size=20),
    M=st.integers(1, 20),
    seed=seeds,
    round=st.integers(0, 9),
)
@settings(deadline=None)
def test_only_those_online_take_part_and_all_of_them_if_few(
    online: frozenset[int], M: int, seed: int, round: int
) -> None:
    trace = Trace({round: sorted(online)})
    for sampler in (
        UniformSampler(20, M, seed, availability=trace),
        WeightedSampler([1.0 + i for i in range(20)], M, seed, availability=trace),
    ):
        clients = sampler.cohort(round).clients.tolist()
        assert set(clients) <= online
        assert len(clients) == min(M, len(online))
        assert clients == sorted(set(clients))


def test_an_empty_cohort_is_a_cohort() -> None:
    nobody = Bernoulli(0.0)
    for sampler in (
        UniformSampler(20, 3, 0, availability=nobody, dropout=0.5),
        WeightedSampler([1.0] * 20, 3, 0, availability=nobody, dropout=0.5),
    ):
        cohort = sampler.cohort(0).answering
        assert (cohort.clients.shape, cohort.answers.shape) == ((0,), (0,))
        assert cohort.weights is None or cohort.weights.shape == (0,)


def test_those_online_are_equally_likely() -> None:
    """χ² over the 10 pairs of 5 clients online: mean 9, deviation √18; four above the mean."""
    trace = Trace({0: [2, 3, 11, 17, 19]}, after_end="repeat")
    counts = counted_cohorts(UniformSampler(20, 2, seed=0, availability=trace), 2000)
    assert chi_squared(counts, 10) < 9 + 4 * math.sqrt(18)


def test_an_availability_that_answers_something_else_is_refused() -> None:
    class Ids:
        def online(self, seed: int, round: int, num_clients: int) -> Tensor:
            return torch.arange(num_clients)

    class TooFew:
        def online(self, seed: int, round: int, num_clients: int) -> Tensor:
            return torch.ones(num_clients - 1, dtype=torch.bool)

    for wrong in (Ids(), TooFew()):
        with pytest.raises(ValueError, match=rf"{type(wrong).__name__}.online returned"):
            UniformSampler(5, 2, 0, availability=wrong).cohort(0)


# Dropouts


@given(
    dropout=st.floats(0.1, 0.9) | st.lists(st.floats(0, 0.9), min_size=30, max_size=30),
    seed=seeds,
    round=rounds,
    M=st.integers(1, 30),
)
@settings(deadline=None)
def test_a_client_drops_out_whoever_else_was_selected(
    dropout: float | list[float], seed: int, round: int, M: int
) -> None:
    """All 30 clients, M of them, some of those online, another sampler: the same fates."""
    everyone = UniformSampler(30, 30, seed, dropout=dropout)
    fate = everyone.cohort(round).answers
    for sampler in (
        replace(everyone, clients_per_round=M),
        replace(everyone, availability=Bernoulli(0.5)),
        WeightedSampler([1.0 + i for i in range(30)], M, seed, dropout=dropout),
    ):
        cohort = sampler.cohort(round)
        assert torch.equal(cohort.answers, fate[cohort.clients])


@given(seed=seeds, round=rounds, p=st.floats(0, 1), q=st.floats(0, 1))
@settings(deadline=None)
def test_dropouts_change_nobody_else_and_grow_with_their_probability(
    seed: int, round: int, p: float, q: float
) -> None:
    sampler = UniformSampler(100, 10, seed)
    none, few, many, all_ = (
        replace(sampler, dropout=x).cohort(round) for x in (0.0, min(p, q), max(p, q), 1.0)
    )
    assert torch.equal(none.clients, sampler.cohort(round).clients)
    for cohort in (few, many, all_):
        assert torch.equal(cohort.clients, none.clients)
    assert none.answers.all()
    assert not all_.answers.any()
    assert (many.answers <= few.answers).all()
    assert few.answering.clients.tolist() == few.clients[few.answers].tolist()


def test_dropouts_have_their_frequencies_and_no_memory() -> None:
    """p = 0.5 for 1500 clients, 0.1 for 1500: counts of binomial deviation, four of them.

    Two rounds, or two seeds, of the first 1500 agree half of the time.
    """
    p = [0.5] * 1500 + [0.1] * 1500
    answers = [
        UniformSampler(3000, 3000, seed, dropout=p).cohort(t).answers
        for seed, t in ((0, 0), (0, 1), (1, 0))
    ]
    for answer in answers:
        assert abs(int(answer[:1500].sum()) - 750) < 4 * math.sqrt(1500 * 0.25)
        assert abs(int(answer[1500:].sum()) - 1350) < 4 * math.sqrt(1500 * 0.09)
    for other in answers[1:]:
        agree = int((answers[0] == other)[:1500].sum())
        assert abs(agree - 750) < 4 * math.sqrt(1500 * 0.25)


def test_no_draw_serves_two_purposes() -> None:
    """Online, selected and dropping out are independent: each frequency is as if alone.

    Were u shared, those online (u < 0.5) would drop out (u < 0.5) always and the selected be the
    smallest u. n clients remain at each stage; counts within four deviations √(n/4).
    """
    sampler = UniformSampler(4000, 1000, seed=0, availability=Bernoulli(0.5), dropout=0.5)
    cohort = sampler.cohort(0)
    assert abs(int(cohort.answers.sum()) - 500) < 4 * math.sqrt(1000 / 4)
    kept = int(Bernoulli(0.25).online(0, 0, 4000)[cohort.clients].sum())  # half of those online
    assert abs(kept - 500) < 4 * math.sqrt(1000 / 4)
    lower_half = Bernoulli(0.25).online(0, 0, 4000)[cohort.clients]
    assert abs(int(cohort.answers[lower_half].sum()) - kept / 2) < 4 * math.sqrt(kept / 4)


def test_dropout_must_be_a_probability_for_all_or_for_each() -> None:
    for wrong in (-0.1, 1.5, math.nan):
        with pytest.raises(ValueError, match="dropout must lie between 0 and 1"):
            UniformSampler(5, 2, seed=0, dropout=wrong)
    with pytest.raises(ValueError, match=r"dropout has shape \(4,\).*5 clients"):
        UniformSampler(5, 2, seed=0, dropout=[0.1] * 4)
