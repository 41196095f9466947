"""Splits over clients: every example once, by the distribution asked for."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedvarp.data.partition import (
    Partition,
    clusters_by_labels,
    dirichlet,
    iid,
    shards,
    split,
)

label_lists = st.lists(st.integers(0, 6), min_size=1, max_size=120).map(torch.tensor)
seeds = st.integers(0, 2**40)
relaxed = settings(deadline=None, max_examples=60)


def assert_uses_every_example_once(parts: Partition, labels: Tensor) -> None:
    assert sorted(torch.cat(parts).tolist()) == list(range(len(labels)))
    assert all(len(rows) > 0 for rows in parts)
    assert all(rows.dtype == torch.int64 for rows in parts)


def assert_sizes_differ_by_at_most_one(parts: Partition) -> None:
    sizes = [len(rows) for rows in parts]
    assert max(sizes) - min(sizes) <= 1


@st.composite
def shard_problems(draw: st.DrawFn) -> tuple[Tensor, int, int]:
    num_clients = draw(st.integers(1, 10))
    shards_per_client = draw(st.integers(1, 4))
    size = draw(st.integers(1, 5)) * num_clients * shards_per_client
    labels = draw(st.lists(st.integers(0, 6), min_size=size, max_size=size))
    return torch.tensor(labels), num_clients, shards_per_client


@relaxed
@given(problem=shard_problems(), seed=seeds)
def test_shards_are_equal_runs_of_the_label_order(
    problem: tuple[Tensor, int, int], seed: int
) -> None:
    labels, num_clients, shards_per_client = problem
    parts = shards(labels, num_clients=num_clients, shards_per_client=shards_per_client, seed=seed)
    assert_uses_every_example_once(parts, labels)
    assert len(parts) == num_clients
    shard_size = len(labels) // (num_clients * shards_per_client)
    order = sorted(range(len(labels)), key=lambda i: (int(labels[i]), i))
    runs = {tuple(order[i : i + shard_size]) for i in range(0, len(order), shard_size)}
    for rows in parts:
        assert len(rows) == shard_size * shards_per_client
        assert {tuple(run.tolist()) for run in rows.view(shards_per_client, -1)} <= runs


@relaxed
@given(labels=label_lists, seed=seeds, data=st.data())
def test_iid_and_dirichlet_use_every_example_once(
    labels: Tensor, seed: int, data: st.DataObject
) -> None:
    num_clients = data.draw(st.integers(1, len(labels)))
    alpha = data.draw(st.sampled_from([1e-3, 0.1, 1.0, 100.0]))
    for parts in (
        iid(labels, num_clients=num_clients, seed=seed),
        dirichlet(labels, num_clients=num_clients, alpha=alpha, seed=seed),
    ):
        assert len(parts) == num_clients
        assert_uses_every_example_once(parts, labels)
        assert_sizes_differ_by_at_most_one(parts)


@pytest.mark.parametrize("how", ["shards", "dirichlet", "iid"])
def test_the_seed_decides(how: str) -> None:
    labels = torch.arange(600) % 10

    def rows(seed: int) -> list[list[int]]:
        parts, _ = split(
            labels,
            how,  # type: ignore[arg-type]
            num_clients=30,
            seed=seed,
        )
        return [own.tolist() for own in parts]

    assert rows(1) == rows(1)
    assert rows(1) != rows(2)


def test_pure_shards_give_one_or_two_labels() -> None:
    labels = torch.arange(1000) % 10  # shards of 10 within classes of 100
    parts, clusters = split(labels, "shards", num_clients=50, shards_per_client=2, seed=0)
    for i, rows in enumerate(parts):
        held = tuple(sorted(set(labels[rows].tolist())))
        assert len(held) in (1, 2)
        assert clusters.label_sets[int(clusters.cluster_of[i])] == held


def test_dirichlet_mixes_have_the_moments_of_the_distribution() -> None:
    # Var q_c = a(Ka - a) / ((Ka)²(Ka + 1)) = (K - 1) / (K²(Ka + 1)) for K labels of weight a, and a
    # client of n examples adds q(1 - q)/n of multinomial noise. There are plenty of examples, so
    # running out of a label distorts little.
    K, a, n, N = 4, 0.5, 100, 400
    labels = torch.arange(K).repeat_interleave(n * N // K)
    parts = dirichlet(labels, num_clients=N, alpha=a, seed=3)
    shares = torch.stack([labels[rows].bincount(minlength=K) / n for rows in parts])  # (N, K)
    variance = (K - 1) / (K**2 * (K * a + 1))
    expected = variance + (1 / K - variance - 1 / K**2) / n
    assert shares.var(0).mean().item() == pytest.approx(expected, rel=0.15)


def test_leftovers_fall_on_any_client() -> None:
    # With mixes this even, whoever takes the last turn has the least even share of labels.
    labels = torch.arange(1000) % 10
    last_in_turn = set()
    for seed in range(10):
        parts = dirichlet(labels, num_clients=20, alpha=1e4, seed=seed)
        most_of_one_label = [int(labels[rows].bincount().max()) for rows in parts]
        last_in_turn.add(max(range(20), key=most_of_one_label.__getitem__))
    assert len(last_in_turn) > 4


def test_smaller_alpha_means_fewer_labels() -> None:
    labels = torch.arange(5000) % 10
    held = [
        sum(
            len(set(labels[rows].tolist()))
            for rows in dirichlet(labels, num_clients=50, alpha=alpha, seed=0)
        )
        for alpha in (0.01, 0.1, 1.0, 1000.0)
    ]
    assert held[0] < held[1] < held[2] < held[3]
    assert held[3] > 490  # of 50 clients with 10 labels; the last in turn takes what is left


def test_clusters_by_main_labels() -> None:
    labels = torch.tensor([0, 0, 0, 1, 1, 2, 0, 0, 0, 2, 2, 1, 5])
    parts = [torch.arange(6), torch.arange(6, 12), torch.tensor([12])]
    whole = clusters_by_labels(labels, parts)
    assert whole.label_sets == [(5,), (0, 1, 2)]
    assert whole.cluster_of.tolist() == [1, 1, 0]
    assert whole.cluster_of.dtype == torch.int64
    half = clusters_by_labels(labels, parts, coverage=0.5)  # exactly 3 of 6 suffice
    assert half.label_sets == [(0,), (5,)]
    most = clusters_by_labels(labels, parts, coverage=0.8)  # 5 of 6 are needed
    assert most.label_sets == [(5,), (0, 1), (0, 2)]
    assert most.cluster_of.tolist() == [1, 2, 0]
    with pytest.raises(ValueError, match=r"coverage = 0 .*greater than 0"):
        clusters_by_labels(labels, parts, coverage=0)


def test_iid_clients_form_one_cluster() -> None:
    _, clusters = split(torch.arange(20), "iid", num_clients=4, seed=0)
    assert clusters.cluster_of.tolist() == [0, 0, 0, 0]
    assert clusters.label_sets == [()]


def test_shards_that_do_not_divide_name_the_numbers_that_do() -> None:
    labels = torch.zeros(50_000, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"50000 .* 300 clients x 2 = 600 .*remainder 200") as e:
        shards(labels, num_clients=300)
    assert "work with 2 shards each: 250 and 500." in str(e.value)
    for num_clients in (250, 500):
        assert len(shards(labels, num_clients=num_clients)) == num_clients
    with pytest.raises(ValueError, match=r"No number of clients works with 2 .* Leave out 1 "):
        shards(labels[:7], num_clients=3)
    with pytest.raises(ValueError, match=r"shards_per_client = 0 .*at least 1"):
        shards(labels, num_clients=5, shards_per_client=0)


def test_impossible_requests_are_explained() -> None:
    labels = torch.arange(10)
    for num_clients, why in ((0, "at least 1"), (11, "10 examples .* 11 clients: .* 1 to 10")):
        with pytest.raises(ValueError, match=why):
            iid(labels, num_clients=num_clients)
        with pytest.raises(ValueError, match=why):
            dirichlet(labels, num_clients=num_clients, alpha=1)
    for alpha in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=r"alpha = .*(greater|finite)"):
            dirichlet(labels, num_clients=2, alpha=alpha)
    with pytest.raises(ValueError, match=r"labels holds 0.5.*whole"):
        iid(labels + 0.5, num_clients=2)
    with pytest.raises(ValueError, match="how = 'random'"):
        split(
            labels,
            "random",  # type: ignore[arg-type]
            num_clients=2,
            seed=0,
        )
