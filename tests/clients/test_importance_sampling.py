"""Importance sampling: π_i by what was seen last, exact weights, and nothing learned by itself."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from every_cohort import every_cohort, inclusion
from fedvarp.clients import ImportanceSampler, Trace, WeightedSampler

N, M = 6, 2
lengths = st.lists(st.floats(0, 1e6), min_size=1, max_size=N)


def seen(residuals: list[float], **more: object) -> ImportanceSampler:
    """Has heard of the first clients only."""
    sampler = ImportanceSampler(N, M, seed=0, **more)  # type: ignore[arg-type]
    sampler.observe(torch.arange(len(residuals)), torch.tensor(residuals, dtype=torch.float64))
    return sampler


@given(residuals=lengths, uniform_share=st.floats(0.01, 1), round=st.integers(0, 9))
@settings(deadline=None, max_examples=25)
def test_weights_are_those_of_the_exact_probabilities(
    residuals: list[float], uniform_share: float, round: int
) -> None:
    """a_i = p_i/π_i with π_i enumerated, Σ π_i = M, and none of them below uniform_share · M/N."""
    cohorts = every_cohort(seen(residuals, uniform_share=uniform_share), round)
    pi = inclusion(cohorts, N)
    assert sum(pi) == M
    assert min(pi) >= uniform_share * M / N * (1 - 1e-9)
    for _, cohort in cohorts:
        assert cohort.weights is not None
        exact = [float(1 / (N * pi[i])) for i in cohort.clients.tolist()]
        assert cohort.weights.tolist() == pytest.approx(exact, rel=1e-12)
        assert float(cohort.weights.max()) <= 1 / (uniform_share * M) * (1 + 1e-9)


def test_sizes_are_in_proportion_to_what_was_seen() -> None:
    """0.2/6 of each for the uniform share; 0.8 by residuals 1, 2, 3, and 3 if not seen: Σ = 15."""
    found = seen([1.0, 2.0, 3.0]).sizes.tolist()
    expected = [0.2 / 6 + 0.8 * r / 15 for r in (1, 2, 3, 3, 3, 3)]
    assert found == pytest.approx(expected, rel=1e-14)
    weighted = seen([1.0, 2.0, 3.0], objective=[2, 1, 1, 1, 1, 0], uniform_share=0.5).sizes.tolist()
    p = [2 / 6, 1 / 6, 1 / 6, 1 / 6, 1 / 6, 0]
    by_length = [p_i * r for p_i, r in zip(p, (1, 2, 3, 3, 3, 3), strict=True)]
    assert weighted == pytest.approx(
        [0.5 * p_i + 0.5 * b / sum(by_length) for p_i, b in zip(p, by_length, strict=True)]
    )


@pytest.mark.parametrize("residuals", [[], [0.0] * N])
def test_without_news_all_are_drawn_alike(residuals: list[float]) -> None:
    sampler = seen(residuals)
    assert sampler.sizes.tolist() == pytest.approx([1 / N] * N, rel=1e-14)
    alike = WeightedSampler([1.0] * N, M, seed=0)
    for t in range(10):
        assert torch.equal(sampler.cohort(t).clients, alike.cohort(t).clients)


def test_the_latest_residual_counts() -> None:
    sampler = seen([1.0] * N)
    sampler.observe(torch.tensor([4]), torch.tensor([9.0]))
    assert int(sampler.sizes.argmax()) == 4
    sampler.observe(torch.tensor([4]), torch.tensor([0.5]))
    assert int(sampler.sizes.argmin()) == 4


def test_a_cohort_changes_nothing() -> None:
    sampler = seen([1.0, 5.0])
    before = sampler.sizes
    cohorts = [sampler.cohort(t).clients.tolist() for t in (3, 1, 3)]
    assert cohorts[0] == cohorts[2]
    assert torch.equal(sampler.sizes, before)


def test_its_memory_comes_and_goes() -> None:
    sampler, other = seen([1.0, 5.0]), ImportanceSampler(N, M, seed=0)
    other.load_state_dict({name: t.clone() for name, t in sampler.state_dict().items()})
    assert torch.equal(other.sizes, sampler.sizes)
    apart = copy.deepcopy(sampler)
    apart.observe(torch.tensor([0]), torch.tensor([100.0]))
    assert torch.equal(other.sizes, sampler.sizes), "a copy has a memory of its own"
    other.load_state_dict({})
    assert other.sizes.tolist() == pytest.approx([1 / N] * N)


def test_those_online_share_out_the_places() -> None:
    online = Trace({0: [0, 2, 4]})
    cohorts = every_cohort(seen([1.0] * 5 + [50.0], availability=online))
    pi = inclusion(cohorts, N)
    assert [i for i in range(N) if pi[i]] == [0, 2, 4]
    assert sum(pi) == M


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"uniform_share": 0.0}, "uniform_share = 0.0 should be greater than 0"),
        ({"uniform_share": 1.5}, "uniform_share = 1.5"),
        ({"objective": [1, 0, 0, 0, 0, 0]}, "Cannot choose 2 of 1 clients"),
        ({"dropout": 1.0}, "heard at times"),
        ({"objective": [1, 1]}, "objective has shape"),
    ],
)
def test_what_cannot_be_drawn_is_refused(more: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        ImportanceSampler(N, M, seed=0, **more)  # type: ignore[arg-type]
