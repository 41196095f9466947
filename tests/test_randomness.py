"""Streams: repeatable, independent, and really the generator they claim to be."""

from __future__ import annotations

import hashlib
import json
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedvarp.randomness import shuffles, stream


def test_the_same_key_gives_the_same_draws_for_ever() -> None:
    """Pinned on 2026-11-15: a change here means old runs can no longer be repeated."""
    generator = stream(0, "cohort", 7)
    assert torch.randperm(10, generator=generator).tolist() == [9, 6, 8, 2, 4, 0, 1, 5, 7, 3]
    assert torch.randint(1000, (4,), generator=generator).tolist() == [211, 677, 86, 702]


def test_a_stream_is_the_mersenne_twister_over_the_hashed_words() -> None:
    """NumPy's implementation, given the same 624 words, is the independent oracle."""
    words = np.frombuffer(
        hashlib.shake_256(json.dumps([3, "batches", 1, 2]).encode()).digest(4 * 624), dtype="<u4"
    )
    oracle = np.random.MT19937()
    oracle.state = {"bit_generator": "MT19937", "state": {"key": words, "pos": 624}}
    # torch draws from a range this small as one word of the twister modulo the range; 2000 draws
    # cross three refills of the state.
    drawn = torch.randint(0, 2**20, (2000,), generator=stream(3, "batches", 1, 2))
    assert drawn.tolist() == (oracle.random_raw(2000) % 2**20).tolist()


@given(st.integers(), st.text(max_size=8), st.lists(st.integers(), max_size=3))
def test_any_integers_and_names_will_do(seed: int, purpose: str, key: list[int]) -> None:
    first = torch.rand(4, generator=stream(seed, purpose, *key))
    assert torch.equal(first, torch.rand(4, generator=stream(seed, purpose, *key)))


def test_seeds_that_differ_above_32_bits_differ() -> None:
    low, high = stream(5, "x"), stream(5 + 2**32, "x")
    assert not torch.equal(torch.rand(4, generator=low), torch.rand(4, generator=high))


def test_keys_do_not_run_together() -> None:
    variants: list[tuple[int, str, list[int]]] = [
        (1, "a", [2, 3]),
        (1, "a", [23]),
        (12, "a", [3]),
        (1, "a", []),
        (1, "a", [2]),
        (1, "a,2", [3]),
    ]
    draws = {
        tuple(torch.rand(2, generator=stream(seed, purpose, *key)).tolist())
        for seed, purpose, key in variants
    }
    assert len(draws) == len(variants)


@pytest.mark.parametrize("neighbour", ["seed", "round", "client"])
def test_neighbouring_keys_are_uncorrelated(neighbour: str) -> None:
    """400 neighbouring streams of 1000 normals: no pair correlates more than chance allows.

    A sample correlation of n = 1000 independent pairs is normal with deviation 1/√n. Among the
    79,800 pairs the largest stays below 5.5 deviations with probability 0.997; their mean square
    is 1/n within 4·√(2/79,800)/n. Seeds are fixed, so this passes always or never.
    """

    def draw(k: int) -> torch.Tensor:
        key = {"seed": (k, 0, 0), "round": (0, k, 0), "client": (0, 0, k)}[neighbour]
        generator = stream(key[0], "batches", *key[1:])
        return torch.randn(1000, generator=generator, dtype=torch.float64)

    correlations = torch.corrcoef(torch.stack([draw(k) for k in range(400)]))
    pairs = correlations[torch.triu(torch.ones(400, 400, dtype=torch.bool), diagonal=1)]
    assert pairs.abs().max() < 5.5 / 1000**0.5
    assert abs(1000 * pairs.square().mean() - 1) < 4 * (2 / 79_800) ** 0.5


def test_first_draws_of_neighbouring_streams_are_uniform() -> None:
    """The first draw over 20,000 neighbouring rounds: χ² of 100 cells, 99 degrees of freedom.

    χ² has mean 99 and deviation √198 = 14.1; four deviations on either side.
    """
    first = [torch.rand(1, generator=stream(0, "cohort", t)).item() for t in range(20_000)]
    counts = torch.histc(torch.tensor(first), bins=100, min=0, max=1)
    assert 99 - 56 < ((counts - 200).square() / 200).sum() < 99 + 56


def test_shuffles_are_the_same_for_ever() -> None:
    """Pinned on 2026-11-17: a change here means another `fedvarp.runs.versions.DRAWS`."""
    drawn = shuffles(0, "batches", 7, [3, 1], size=6, count=2)
    assert drawn[0].tolist() == [[4, 5, 0, 2, 3, 1], [5, 2, 1, 3, 4, 0]]
    assert drawn[1].tolist() == [[3, 2, 4, 5, 0, 1], [0, 2, 3, 1, 5, 4]]


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=6, unique=True),
    st.integers(1, 70),
    st.integers(1, 3),
    st.integers(0, 3),
)
def test_a_client_shuffles_as_if_it_were_alone(
    clients: list[int], size: int, count: int, more: int
) -> None:
    """Neither who else is asked for nor how many shuffles there are changes what a client draws."""
    together = shuffles(1, "batches", 4, clients, size, count + more)
    assert torch.equal(together.sort(dim=2).values, torch.arange(size).expand_as(together))
    for client, own in zip(clients, together, strict=True):
        assert torch.equal(own[:count], shuffles(1, "batches", 4, [client], size, count)[0])


def test_all_shuffles_are_as_likely_as_each_other() -> None:
    """24 orders of 4 numbers in 24,000 draws: χ² of 24 cells, 23 degrees of freedom.

    χ² has mean 23 and deviation √46 = 6.8; four deviations above.
    """
    drawn = shuffles(0, "batches", 0, range(2000), size=4, count=12).reshape(-1, 4)
    counts = Counter(map(tuple, drawn.tolist()))
    assert len(counts) == 24
    assert sum((count - 1000) ** 2 / 1000 for count in counts.values()) < 23 + 4 * 6.8


def test_shuffles_go_by_the_order_of_hashed_words() -> None:
    """A plain sort of (word without its last bits, number) is the oracle."""
    size, count = 5, 3
    drawn = shuffles(2, "batches", 1, [8], size, count)[0].tolist()
    words = np.frombuffer(
        hashlib.shake_256(json.dumps([2, "batches", 1, 8]).encode()).digest(8 * size * count), "<u8"
    )
    for k in range(count):
        own = [int(word) >> 3 for word in words[k * size : (k + 1) * size]]
        assert drawn[k] == sorted(range(size), key=lambda j: (own[j], j))
