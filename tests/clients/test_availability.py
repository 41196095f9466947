"""Availability: the promised distributions, and no memory but (seed, round)."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import fedvarp.clients.availability
from fedvarp.clients.availability import Availability, Bernoulli, Cyclic, Markov, Trace
from fedvarp.randomness import stream

seeds = st.integers(0, 2**32)
unit = st.floats(0, 1)

PROCESSES: list[Availability] = [
    Bernoulli(0.4),
    Markov(0.2, 0.3),
    Markov(0.9, 0.7),
    Cyclic([1, 0.5, 0.2, 0]),
    Cyclic([1, 0, 0]),
    Trace({0: [0, 1], 2: [2]}, after_end="repeat"),
]


def history(process: Availability, num_clients: int, num_rounds: int, seed: int = 0) -> Tensor:
    """Who was online, (rounds, clients), float64."""
    rounds = [process.online(seed, t, num_clients) for t in range(num_rounds)]
    return torch.stack(rounds).double()


@pytest.mark.parametrize("process", PROCESSES, ids=str)
def test_a_round_needs_no_other_round(process: Availability) -> None:
    """Asked in any order, again, and whatever the global generator holds: the same answer."""
    in_order = [process.online(3, t, 10) for t in range(12)]
    torch.manual_seed(1)
    before = torch.get_rng_state()
    for t in random.Random(0).sample(range(12), 12):
        again = process.online(3, t, 10)
        assert again.dtype == torch.bool
        assert again.shape == (10,)
        assert torch.equal(again, in_order[t])
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("process", PROCESSES, ids=str)
@given(seed=seeds, round=st.integers(0, 20), few=st.integers(3, 20), joined=st.integers(0, 40))
@settings(max_examples=20, deadline=None)
def test_clients_who_join_change_nothing_for_the_others(
    process: Availability, seed: int, round: int, few: int, joined: int
) -> None:
    many = process.online(seed, round, few + joined)
    assert torch.equal(many[:few], process.online(seed, round, few))


@pytest.mark.parametrize("process", PROCESSES[:-1], ids=str)
def test_the_seed_matters(process: Availability) -> None:
    """Two seeds agree on all of 20 rounds of 50 clients with a probability below 1e-100."""
    assert not torch.equal(history(process, 50, 20, seed=0), history(process, 50, 20, seed=1))


@pytest.mark.parametrize("process", PROCESSES, ids=str)
def test_rounds_before_the_first_are_refused(process: Availability) -> None:
    with pytest.raises(ValueError, match="count from 0, got round -1"):
        process.online(0, -1, 5)


def test_bernoulli_has_its_frequencies_and_no_memory() -> None:
    """1000 clients of each p over 200 rounds, so n = 200,000 draws of each.

    The frequency has deviation √(p(1-p)/n); that of two successive rounds online is p² with a
    variance below 3p²(1-p²)/n, as neighbouring pairs share a draw. Four deviations each.
    """
    p = torch.tensor([0.05, 0.3, 0.8], dtype=torch.float64)
    online = history(Bernoulli(p.repeat(1000)), 3000, 200).reshape(200, 1000, 3)
    n = 200_000
    assert ((online.mean((0, 1)) - p).abs() < 4 * (p * (1 - p) / n).sqrt()).all()
    twice = (online[1:] * online[:-1]).mean((0, 1))
    assert ((twice - p**2).abs() < 4 * (3 * p**2 * (1 - p**2) / n).sqrt()).all()
    neighbours = (online[:, 1:] * online[:, :-1]).mean((0, 1))
    assert ((neighbours - p**2).abs() < 4 * (3 * p**2 * (1 - p**2) / n).sqrt()).all()


@given(seed=seeds, round=st.integers(0, 50), p=unit, q=unit)
@settings(deadline=None)
def test_raising_a_probability_only_adds_clients(seed: int, round: int, p: float, q: float) -> None:
    fewer = Bernoulli(min(p, q)).online(seed, round, 30)
    more = Bernoulli(max(p, q)).online(seed, round, 30)
    assert (fewer <= more).all()
    assert not Bernoulli(0.0).online(seed, round, 30).any()
    assert Bernoulli(1.0).online(seed, round, 30).all()


def walk_forward(leave: Tensor, come: Tensor, seed: int, round: int) -> Tensor:
    """The chain as a textbook has it: a state, changed from round to round."""
    on = torch.tensor([False])
    for t in range(round + 1):
        u = torch.rand(len(leave), generator=stream(seed, "availability", t), dtype=torch.float64)
        on = u < (come / (leave + come) if t == 0 else torch.where(on, 1 - leave, come))
    return on


rates = st.lists(st.tuples(unit, unit).filter(lambda r: sum(r) > 1e-9), min_size=1, max_size=6)


@given(rates=rates, seed=seeds, round=st.integers(0, 25))
@settings(deadline=None)
def test_looking_back_finds_the_state_that_walking_forward_reaches(
    rates: list[tuple[float, float]], seed: int, round: int
) -> None:
    """Also for chains that swap (rates adding up to more than 1), alone or mixed with others."""
    leave, come = torch.tensor(rates, dtype=torch.float64).T
    online = Markov(leave, come).online(seed, round, len(rates))
    assert torch.equal(online, walk_forward(leave, come, seed, round))


@pytest.mark.parametrize(("leave", "come"), [(0.1, 0.3), (0.02, 0.02), (0.8, 0.6)])
def test_markov_moves_at_its_rates_and_is_stationary_from_the_start(
    leave: float, come: float
) -> None:
    """20,000 independent clients, so every frequency has its binomial deviation; four of them."""
    N = 20_000
    share = come / (leave + come)
    for t in (0, 1, 30):
        now = Markov(leave, come).online(7, t, N)
        after = Markov(leave, come).online(7, t + 1, N)
        assert abs(now.double().mean() - share) < 4 * math.sqrt(share * (1 - share) / N)
        for state, rate in ((now, leave), (~now, come)):
            moved = (now != after)[state].double().mean()
            assert abs(moved - rate) < 4 * math.sqrt(rate * (1 - rate) / int(state.sum()))


def test_markov_looks_no_further_back_than_it_must(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client is undecided after k draws with probability (1-r)^k, here r = 0.5 and N = 1000.

    So more than 30 draws are needed with a probability below 1000 / 2³⁰ = 1e-6, however many
    rounds went before.
    """
    looked_at = []

    def counting_stream(seed: int, purpose: str, *key: int) -> torch.Generator:
        looked_at.append(key)
        return stream(seed, purpose, *key)

    monkeypatch.setattr(fedvarp.clients.availability, "stream", counting_stream)
    Markov(0.2, 0.3).online(0, 10**4, 1000)
    assert looked_at == [(10**4 - k,) for k in range(len(looked_at))]
    assert 5 <= len(looked_at) <= 30


@given(
    profile=st.lists(st.sampled_from([0, 1]), min_size=1, max_size=7),
    phases=st.lists(st.integers(-10, 10), min_size=1, max_size=5),
    round=st.integers(0, 30),
)
@settings(deadline=None)
def test_a_window_is_kept_to_the_round(profile: list[int], phases: list[int], round: int) -> None:
    online = Cyclic(profile, phases).online(0, round, len(phases))
    period = len(profile)
    assert online.int().tolist() == [profile[(round + phase) % period] for phase in phases]


def test_phases_are_drawn_once_and_evenly() -> None:
    """12,000 clients over 6 phases: a χ² of 5 degrees has mean 5, deviation √10; four of them."""
    N, period = 12_000, 6
    online = history(Cyclic([1, 0, 0, 0, 0, 0]), N, 3 * period)
    assert torch.equal(online[:period], online[period : 2 * period])
    assert torch.equal(online[:period], online[2 * period :])
    assert (online[:period].sum(0) == 1).all()
    counts = online[:period].sum(1)
    assert ((counts - N / period).square() / (N / period)).sum() < 5 + 4 * 10**0.5


def test_cyclic_probabilities_are_met() -> None:
    """30,000 clients in one phase: binomial frequencies, four deviations."""
    profile = torch.tensor([0.9, 0.2, 0.5], dtype=torch.float64)
    frequency = history(Cyclic(profile, phases=[1] * 30_000), 30_000, 3).mean(1)
    expected = profile[[1, 2, 0]]
    assert ((frequency - expected).abs() < 4 * (expected * (1 - expected) / 30_000).sqrt()).all()


@given(
    entries=st.dictionaries(
        st.integers(0, 12), st.frozensets(st.integers(0, 9), max_size=5), min_size=1, max_size=6
    ),
    order=st.randoms(use_true_random=False),
)
@settings(deadline=None)
def test_a_trace_is_replayed_as_written(
    tmp_path_factory: pytest.TempPathFactory,
    entries: dict[int, frozenset[int]],
    order: random.Random,
) -> None:
    lines = [f"{t},{i}" for t, clients in entries.items() for i in clients]
    lines += [f"{t}," for t, clients in entries.items() if not clients]
    order.shuffle(lines)
    path = tmp_path_factory.mktemp("trace") / "trace.csv"
    path.write_text("\n".join(["round,client", *lines]) + "\n")

    length = max(entries) + 1
    trace = Trace.from_csv(path, after_end="repeat")
    for t in range(2 * length):
        online = trace.online(0, t, 10).nonzero().squeeze(1).tolist()
        assert online == sorted(entries.get(t % length, ()))
    with pytest.raises(ValueError, match=rf"Round {length} lies beyond .* has {length} rounds"):
        Trace.from_csv(path).online(0, length, 10)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", 1),
        ("round,client\n", 2),
        ("client,round\n0,1\n", 1),
        ("0,1\n0,2\n", 1),
        ("round,client\n0,1\n0;2\n", 3),
        ("round,client\n0,1\n\n0,2\n", 3),
        ("round,client\n0,one\n", 2),
        ("round,client\n0,-1\n", 2),
        ("round,client\n0,1.5\n", 2),
        ("round,client\n1 2,3\n", 2),
        ("round,client\n0,1,2\n", 2),
        ("round,client\n" + "9" * 5000 + ",0\n", 2),
    ],
)
def test_a_trace_that_makes_no_sense_is_refused_by_file_and_line(
    tmp_path: Path, text: str, line: int
) -> None:
    path = tmp_path / "phones.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"line {line} of .*phones\.csv.*for example `0,17`"):
        Trace.from_csv(path)


def test_a_trace_saved_by_a_spreadsheet_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(b"\xef\xbb\xbfround,client\r\n0, 1\r\n1,\r\n")
    assert Trace.from_csv(path).clients == {0: [1], 1: []}


def test_a_file_that_cannot_be_opened_or_decoded_is_named(tmp_path: Path) -> None:
    (tmp_path / "image.csv").write_bytes(b"\x89PNG\xff\xfe")
    for name in ("image.csv", "missing.csv", "."):
        with pytest.raises(ValueError, match="Cannot read the availability trace") as caught:
            Trace.from_csv(tmp_path / name)
        assert str(tmp_path / name) in str(caught.value)


def test_a_trace_of_another_federation_is_refused() -> None:
    for clients in ([0, 7], [-1, 0]):
        with pytest.raises(ValueError, match="this federation has 0 to 6"):
            Trace({0: clients}).online(0, 0, 7)
    assert Trace({0: [0, 7]}).online(0, 0, 8)[7]


def test_settings_out_of_range_are_refused() -> None:
    for wrong in (-0.1, 1.1, math.nan, [0.5, 2.0]):
        with pytest.raises(ValueError, match="probability must lie between 0 and 1"):
            Bernoulli(wrong)
        with pytest.raises(ValueError, match="on_to_off must lie between 0 and 1"):
            Markov(wrong, 0.5)
        with pytest.raises(ValueError, match="off_to_on must lie between 0 and 1"):
            Markov(0.5, wrong)
        with pytest.raises(ValueError, match="profile must lie between 0 and 1"):
            Cyclic([0.5, 1.5])
    with pytest.raises(ValueError, match="never change"):
        Markov([0.5, 0.0], [0.5, 0.0])
    with pytest.raises(ValueError, match="a probability per round"):
        Cyclic([])
    with pytest.raises(ValueError, match="after_end must be"):
        Trace({0: [0]}, after_end="loop")  # type: ignore[arg-type]
    for clients in ({}, {-1: [0]}):
        with pytest.raises(ValueError, match="A trace needs rounds"):
            Trace(clients)


def test_one_number_per_client_means_neither_more_nor_fewer() -> None:
    with pytest.raises(ValueError, match="off_to_on has shape"):
        Markov([0.1, 0.2], [0.1, 0.2, 0.3])
    for process in (Bernoulli([0.1] * 3), Markov([0.1] * 3, 0.2), Cyclic([0, 1], [0] * 3)):
        assert process.online(0, 0, 3).shape == (3,)
        with pytest.raises(ValueError, match=r"has shape \(3,\).*4 clients"):
            process.online(0, 0, 4)
