"""Rows that are believed as far as they have proved right."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedvarp import (
    ClusteredTable,
    FedAvg,
    FedVARP,
    MeasuredTable,
    MemoryTable,
    RoundUpdates,
    stream,
)
from fedvarp.algorithms.registry import TableSettings, make_algorithm
from fedvarp.tables.measured import trust

N, M, D = 6, 3, 8
CLUSTERS = torch.tensor([0, 0, 0, 1, 1, 2])
LAYERS = [slice(0, 3), slice(3, D)]
EQUAL = torch.full((M,), 1 / M, dtype=torch.float64)


def table(parts: list[slice] | None = None, memory: float = 0.9) -> MeasuredTable:
    own = MemoryTable(N, D, "float64")
    shared = ClusteredTable(CLUSTERS, MemoryTable(3, D, "float64", name="clusters"))
    return MeasuredTable([own, shared], parts, memory)


def updates_of(clients: Tensor, deltas: Tensor) -> RoundUpdates:
    ones = torch.ones(len(clients), dtype=torch.int64)
    return RoundUpdates(clients, deltas[clients], ones, ones, scale=1.0)


def rounds(count: int) -> list[tuple[Tensor, Tensor]]:
    """Cohorts, and what all clients would send: near their own mean, their cluster's and ours."""
    draws = stream(3, "rounds")
    of_cluster = torch.randn(3, D, generator=draws, dtype=torch.float64)[CLUSTERS]
    of_client = torch.randn(N, D, generator=draws, dtype=torch.float64)
    made = []
    for _ in range(count):
        noise = torch.randn(N, D, generator=draws, dtype=torch.float64)
        S = torch.randperm(N, generator=draws)[:M].sort().values
        made.append((S, 1.0 + of_cluster + 0.5 * of_client + 0.5 * noise))
    return made


# The least squares


def best_on_a_grid(gram: Tensor, cross: Tensor, steps: int) -> float:
    """The least of b'Gb − 2b'c over a grid on {b ≥ 0, Σ b ≤ 1}."""
    axis = torch.linspace(0, 1, steps + 1, dtype=torch.float64)
    points = [p for p in itertools.product(axis.tolist(), repeat=len(cross)) if sum(p) <= 1 + 1e-9]
    b = torch.tensor(points, dtype=torch.float64)
    return float(((b @ gram) * b).sum(1).sub(2 * b @ cross).min())


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), K=st.integers(1, 3), size=st.sampled_from([1e-12, 1.0, 1e9]))
def test_the_fit_is_the_best_of_all_that_are_allowed(seed: int, K: int, size: float) -> None:
    """No point of a grid is better, whichever constraints bind."""
    x = torch.randn(K + 1, 5, generator=stream(seed, "x"), dtype=torch.float64)
    x[K] += x[:K].sum(0) * float(torch.randn((), generator=stream(seed, "pull")))
    products = size * x @ x.T
    b = trust(products)
    assert bool((b >= 0).all())
    assert float(b.sum()) <= 1 + 1e-9
    gram, cross = products[:K, :K] / size, products[:K, K] / size
    reached = float(b @ gram @ b - 2 * b @ cross)
    assert reached <= best_on_a_grid(gram, cross, {1: 400, 2: 60, 3: 20}[K]) + 1e-9


def test_two_tables_that_say_the_same_share_what_is_believed() -> None:
    x = torch.randn(1, 5, generator=stream(0, "x"), dtype=torch.float64)
    rows = torch.cat([x, x, 0.8 * x])
    assert float(trust(rows @ rows.T).sum()) == pytest.approx(0.8)


def test_nothing_measured_is_fedvarp() -> None:
    assert table().b.tolist() == [[1.0, 0.0]]


# v


@pytest.mark.parametrize("parts", [None, LAYERS])
def test_a_run_is_the_formula_written_out(parts: list[slice] | None) -> None:
    """Plain dictionaries, and b by the normal equations wherever they need no constraint."""
    memory, y, shared = 0.9, torch.zeros(N, D).double(), torch.zeros(3, D).double()
    measured = table(parts, memory)
    products = torch.zeros(1 if parts is None else len(parts), 3, 3).double()
    b, v_before = torch.tensor([1.0, 0.0]).double().repeat(len(products), 1), None
    for S, deltas in rounds(25):
        found = measured.exchange(S, deltas[S], EQUAL, 1.0)
        v = torch.zeros(D).double()
        for p, part in enumerate(parts or [slice(0, D)]):
            guess = b[p, 0] * y[:, part] + b[p, 1] * shared[CLUSTERS][:, part]
            v[part] = guess.mean(0) + sum(deltas[i, part] - guess[i] for i in S.tolist()) / M
            if v_before is None:
                continue
            products[p] *= memory
            for i in S.tolist():
                mean = shared[CLUSTERS].mean(0)
                x = [y[i] - y.mean(0), shared[CLUSTERS[i]] - mean, deltas[i] - v_before]
                here = torch.stack([one[part] for one in x])
                products[p] += here @ here.T / M
            b[p] = trust(products[p])
        torch.testing.assert_close(found, v, rtol=0, atol=1e-12)
        v_before = v
        y[S] = deltas[S]
        for k in set(CLUSTERS[S].tolist()):
            shared[k] = deltas[[i for i in S.tolist() if int(CLUSTERS[i]) == k]].mean(0)
    torch.testing.assert_close(measured.b, b, rtol=0, atol=1e-9)
    assert float(b.min()) > 0.02, "the test is of no use where one of the tables is not believed"


@pytest.mark.parametrize("parts", [None, LAYERS])
def test_the_direction_is_unbiased_once_b_was_measured(parts: list[slice] | None) -> None:
    """b is fixed before the cohort is drawn; enumerated over all cohorts of a later round."""
    algorithm = FedVARP(table(parts))
    for S, deltas in rounds(12):
        algorithm.aggregate(updates_of(S, deltas))
    assert isinstance(algorithm.y, MeasuredTable)
    assert 0.05 < float(algorithm.y.b.sum(1).mean()) < 0.95
    deltas = torch.randn(N, D, generator=stream(9, "deltas"), dtype=torch.float64)
    directions = [
        copy.deepcopy(algorithm).aggregate(updates_of(torch.tensor(S), deltas))
        for S in itertools.combinations(range(N), M)
    ]
    torch.testing.assert_close(torch.stack(directions).mean(0), deltas.mean(0), rtol=0, atol=1e-13)


def test_b_leaves_less_variance_than_fedavg_and_fedvarp() -> None:
    """Over all cohorts of a later round, at the rows that forty rounds have left."""
    algorithms = {
        "measured": FedVARP(table(memory=0.98)),
        "fedvarp": FedVARP(MemoryTable(N, D, "float64")),
        "fedavg": FedAvg(),
    }
    *history, (_, deltas) = rounds(41)
    spread = {}
    for name, algorithm in algorithms.items():
        for S, sent in history:
            algorithm.aggregate(updates_of(S, sent))
        found = [
            copy.deepcopy(algorithm).aggregate(updates_of(torch.tensor(S), deltas))
            for S in itertools.combinations(range(N), M)
        ]
        spread[name] = float((torch.stack(found) - deltas.mean(0)).square().sum(1).mean())
    assert spread["measured"] < 0.9 * min(spread["fedvarp"], spread["fedavg"])


def test_rows_that_hold_are_believed_and_those_that_are_worth_nothing_are_not() -> None:
    """Clients that always send the same: b → 1. That send nothing but noise: b → 0, FedAvg."""
    of_client = torch.randn(N, D, generator=stream(0, "same"), dtype=torch.float64)
    believed = {}
    for name, same in (("same", 1.0), ("noise", 0.0)):
        own = MeasuredTable([MemoryTable(N, D, "float64")], memory=0.98)
        for t, (S, _) in enumerate(rounds(200)):
            fresh = torch.randn(N, D, generator=stream(t, "noise"), dtype=torch.float64)
            deltas = same * of_client + (1 - same) * fresh
            own.exchange(S, deltas[S], EQUAL, 1.0)
        believed[name] = float(own.b)
    assert believed["same"] > 0.99
    assert believed["noise"] < 0.2


def test_layers_are_believed_each_by_itself() -> None:
    """Half of the numbers of a client are always the same, the others are noise."""
    of_client = torch.randn(N, D, generator=stream(0, "same"), dtype=torch.float64)
    measured = MeasuredTable([MemoryTable(N, D, "float64")], LAYERS, memory=0.98)
    for t, (S, _) in enumerate(rounds(200)):
        deltas = torch.randn(N, D, generator=stream(t, "noise"), dtype=torch.float64)
        deltas[:, LAYERS[0]] = of_client[:, LAYERS[0]]
        measured.exchange(S, deltas[S], EQUAL, 1.0)
    first, second = measured.b[:, 0].tolist()
    assert first > 0.99
    assert second < 0.2


def test_an_unseen_client_has_its_clusters_row() -> None:
    measured = table()
    for S, deltas in rounds(20):
        among = S[S != 1]
        equal = torch.full((len(among),), 1 / len(among), dtype=torch.float64)
        measured.exchange(among, deltas[among], equal, 1.0)
    own, shared = (t.get(torch.tensor([1]))[0] for t in measured.below)
    assert not own.any()
    believed = float(measured.b[0, 1])
    assert believed > 0.05
    torch.testing.assert_close(measured.get(torch.tensor([1]))[0], believed * shared)


def test_what_it_remembers_is_counted_and_given_back() -> None:
    one, other = table(), table()
    history = rounds(10)
    for S, deltas in history[:6]:
        one.exchange(S, deltas[S], EQUAL, 1.0)
    for mine, theirs in zip(other.tables(), one.tables(), strict=True):
        written = torch.tensor(sorted(theirs.rows_written()))
        mine.put(written, theirs.get(written))
    other.load_state_dict({name: tensor.clone() for name, tensor in one.state_dict().items()})
    for S, deltas in history[6:]:
        torch.testing.assert_close(
            one.exchange(S, deltas[S], EQUAL, 1.0), other.exchange(S, deltas[S], EQUAL, 1.0)
        )
    rows = sum(t.num_bytes for t in one.below)
    assert one.num_bytes == rows + 8 * D + 8 * 3 * 3


def test_the_record_of_a_round_says_how_far_rows_are_believed() -> None:
    measured = table()
    for S, deltas in rounds(10):
        measured.exchange(S, deltas[S], EQUAL, 1.0)
    told = measured.metrics()
    assert list(told) == ["trust_in_rows", "trust_in_clusters"]
    assert list(told.values()) == pytest.approx(measured.b[0].tolist())


@pytest.mark.parametrize(
    ("parts", "said"),
    [([slice(0, 3)], "from 0 to 8"), ([slice(3, D), slice(0, 3)], "follow each other")],
)
def test_parts_that_are_no_row_are_refused(parts: list[slice], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        table(parts)


def test_tables_of_other_clients_are_refused() -> None:
    with pytest.raises(ValueError, match="same clients"):
        MeasuredTable([MemoryTable(3, D), MemoryTable(4, D)])
    with pytest.raises(ValueError, match="one at least"):
        MeasuredTable([])


def test_a_model_without_names_has_one_layer() -> None:
    made = make_algorithm("fedvarp_adaptive", TableSettings(N, D)).table
    assert isinstance(made, MeasuredTable)
    assert made.parts == (slice(0, D),)


@pytest.mark.parametrize("name", ["fedvarp_adaptive", "fedvarp_mixed"])
def test_layers_are_measured_one_by_one_unless_told_otherwise(name: str) -> None:
    layers = {"weight": slice(0, 3), "bias": slice(3, D)}
    settings = TableSettings(N, D, parameters=layers, cluster_of=torch.zeros(N).long())
    by_layer, as_one = (
        make_algorithm(f"{name}{how}", settings).table for how in ("", "(beta=one)")
    )
    assert isinstance(by_layer, MeasuredTable)
    assert isinstance(as_one, MeasuredTable)
    assert by_layer.parts == tuple(layers.values())
    assert as_one.parts == (slice(0, D),)
