"""Clusters that are found: k-means, label sets, the curve, and rows that move with the clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import registry
from fedvarp import ClusteredTable, FlatModel, LocalSGD, SimulationResult, stream
from fedvarp.clusters import by_gradients, by_label_sets
from fedvarp.clusters.k_means import in_order_of_appearance, k_means
from fedvarp.clusters.named import clusters_by_name
from fedvarp.data import FederatedDataset, from_tensors, quadratics
from fedvarp.experiments.build import build
from fedvarp.experiments.files import load_settings
from fedvarp.models import Quadratic, quadratic_loss
from fedvarp.settings.problems import SettingsError
from fedvarp.tables import RowTable
from fedvarp.theory import curve, measure
from simulating import simulate

SGD = LocalSGD(lr=0.05, batch_size=5, epochs=1)
N, K, D = 9, 4, 300


def same_partition(a: Tensor, b: Tensor) -> bool:
    return torch.equal(in_order_of_appearance(a), in_order_of_appearance(b))


def clustered(dim: int = 40) -> FederatedDataset:
    """30 clients in 6 planted clusters, in no order, far apart compared with what is within."""
    draw = stream(0, "planted")
    cluster_of = torch.randperm(30, generator=draw) % 6
    centres = 5 * torch.randn(6, dim, generator=draw)
    x = centres[cluster_of] + 0.2 * torch.randn(30, dim, generator=draw)
    return from_tensors(
        [(row.expand(5, -1), torch.ones(5, dim)) for row in x],
        cluster_of=in_order_of_appearance(cluster_of),
    )


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 25), seed=st.integers(0, 99), distinct=st.integers(1, 25), data=st.data())
def test_k_means_fills_every_cluster_even_of_points_that_coincide(
    n: int, seed: int, distinct: int, data: st.DataObject
) -> None:
    clusters = data.draw(st.integers(1, n))
    points = torch.randn(distinct, 3, generator=stream(seed, "points"))
    points = points[torch.arange(n) % distinct]
    labels = k_means(points, clusters, seed)
    assert sorted(set(labels.tolist())) == list(range(clusters))
    assert torch.equal(labels, k_means(points, clusters, seed))
    assert labels[0] == 0


def test_k_means_ends_where_every_point_is_nearest_to_its_own_mean() -> None:
    points = torch.randn(60, 4, generator=stream(0, "points"), dtype=torch.float64)
    labels = k_means(points, 7)
    means = torch.stack([points[labels == k].mean(0) for k in range(7)])
    assert torch.equal(torch.cdist(points, means).argmin(1), labels)
    starts = [k_means(points, 7, seed) for seed in range(4)]
    assert len({tuple(one.tolist()) for one in starts}) > 1  # the seed matters


def test_too_many_clusters_are_refused() -> None:
    with pytest.raises(ValueError, match="3 clients cannot form 4 clusters"):
        k_means(torch.zeros(3, 1), 4)
    with pytest.raises(ValueError, match="30 clients cannot form 31"):
        clusters_by_name("auto:31", None, clustered())


@pytest.mark.parametrize("of", ["gradients", "updates"])
@pytest.mark.parametrize("sketch_size", [16, 1024])
def test_planted_clusters_are_found_in_sketches(of: Any, sketch_size: int) -> None:
    data = clustered()
    model = FlatModel(Quadratic(40))
    found = by_gradients(
        data, model, quadratic_loss, local_sgd=SGD, w=torch.ones(40), num_clusters=6, of=of,
        sketch_size=sketch_size,
    )  # fmt: skip
    assert data.cluster_of is not None
    assert same_partition(found, data.cluster_of)


def test_the_curve_falls_from_all_to_nothing_and_finds_the_planted_number() -> None:
    data = clustered()
    measured = measure(data, Quadratic(40), quadratic_loss, local_sgd=SGD, sketch_size=32)
    points = curve(measured)
    assert [p.num_clusters for p in points] == [1, 2, 4, 6, 8, 16, 30]
    assert points[0].sigma_K2 == measured.sigma_g2.value
    assert points[0].share_removed == 0
    assert (points[-1].sigma_K2, points[-1].share_removed) == (0.0, 1.0)
    by_number = {p.num_clusters: p for p in points}
    assert by_number[6].share_removed > 0.99 > 0.9 > by_number[4].share_removed
    assert measured.sigma_K2 is not None
    assert by_number[6].sigma_K2 == pytest.approx(measured.sigma_K2.value, rel=0.5)


def test_clusters_are_not_judged_by_the_sketch_they_were_fitted_to() -> None:
    """Clients without clusters: of 64 random directions 32 pairs leave about half, not less."""
    draw = stream(0, "no clusters")
    data = from_tensors(
        [(x[None], torch.ones(1, 2000)) for x in torch.randn(64, 2000, generator=draw)]
    )
    measured = measure(
        data,
        Quadratic(2000),
        quadratic_loss,
        local_sgd=SGD,
        sketch_size=8,
        smoothness_clients=1,
    )
    (honest,) = curve(measured, [32])
    # Within one of 32 clusters of 64 independent vectors: (64 − 32) / 64 of the variance.
    assert honest.share_removed == pytest.approx(0.5, abs=0.1)


def test_a_sample_has_no_curve() -> None:
    measured = measure(clustered(), Quadratic(40), quadratic_loss, local_sgd=SGD, sample=10)
    with pytest.raises(ValueError, match="Only 10 of 30 clients were measured"):
        curve(measured)


def test_label_sets_are_the_papers_clusters() -> None:
    experiment = build(load_settings("digits"))
    own = experiment.dataset.cluster_of
    assert own is not None
    assert same_partition(by_label_sets(experiment.dataset), own)
    assert same_partition(clusters_by_name("labels", None, experiment.dataset).at_first, own)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no classes"):
        by_label_sets(quadratics())


clusterings = st.lists(st.integers(0, K - 1), min_size=N, max_size=N)
weights = st.none() | st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0]), min_size=N, max_size=N).filter(any)  # fmt: skip # noqa: E501


@pytest.mark.parametrize("place", registry.PLACES)
@pytest.mark.parametrize("codec", registry.CODEC_NAMES)
@settings(max_examples=15, deadline=None)
@given(first=clusterings, then=clusterings, given_weights=weights, puts=st.integers(0, 2))
def test_rows_move_with_the_clients(
    tmp_path_factory: pytest.TempPathFactory,
    place: str,
    codec: str,
    first: list[int],
    then: list[int],
    given_weights: list[float] | None,
    puts: int,
) -> None:
    """Each new row is the mean of its clients' states; the mean over clients is unchanged."""
    rows: RowTable = registry.rows_in(place, tmp_path_factory.mktemp("rows"), K, D, codec)
    p = torch.ones(N) if given_weights is None else torch.tensor(given_weights)
    table = ClusteredTable(
        torch.tensor(first), rows, None if given_weights is None else p, clustering="auto"
    )
    for seed in range(puts):
        values = torch.randn(N, D, generator=stream(seed, "put"), dtype=table.dtype)
        table.put(torch.arange(N), values)
    before, mean = table.get(torch.arange(N)).double(), table.mean().double()
    table.recluster(torch.tensor(then))
    after = table.get(torch.arange(N)).double()
    largest = float(before.abs().max())
    # What a codec may change in a number of size 1: int8 has steps of 1/127 of a block's largest.
    exact = {"float64": 1e-12, "float32": 1e-6, "bfloat16": 2**-7, "float16": 2**-10, "int8": 1e-2}
    tolerance = exact[codec] * max(largest, 1.0)
    for k in set(then):
        members = torch.tensor([i for i in range(N) if then[i] == k])
        share = p[members].double() if p[members].sum() > 0 else torch.ones(len(members)).double()
        expected = (share[:, None] * before[members]).sum(0) / share.sum()
        for member in members:
            torch.testing.assert_close(after[member], expected, rtol=0, atol=tolerance)
    torch.testing.assert_close(table.mean().double(), mean, rtol=0, atol=tolerance)
    # The law of the table, which makes E[v] unbiased whatever the rows are.
    law = (p.double()[:, None] * after).sum(0) / p.double().sum()
    torch.testing.assert_close(table.mean().double(), law, rtol=0, atol=2e-6 * max(largest, 1.0))
    registry.close(table)


def test_clusters_that_do_not_fit_are_refused_and_nothing_changes() -> None:
    table = ClusteredTable(torch.tensor([0, 1, 0]), registry.rows_in("memory", Path(), 2, 3, "float32"))  # fmt: skip # noqa: E501
    table.put(torch.arange(3), torch.ones(3, 3))
    for wrong, what in (([0, 1], "2 clusters for 3 clients"), ([0, 1, 2], "the table has 2 rows")):
        with pytest.raises(ValueError, match=what):
            table.recluster(torch.tensor(wrong))
    assert table.cluster_of.tolist() == [0, 1, 0]
    assert torch.equal(table.get(torch.arange(3)), torch.ones(3, 3))


def run(rounds: int, out: Path | None = None, **changes: Any) -> SimulationResult:
    given: dict[str, Any] = {
        "local_sgd": SGD, "clients_per_round": 4, "algorithm": "cluster_fedvarp", "seed": 3,
        "clusters": "auto:5", "recluster_every": 3, "out": out, "resume": True, "fsync": False,
        "evaluate_every": 100, "num_train_clients": 0,
    }  # fmt: skip
    return simulate(quadratics(20, 10), Quadratic(10), quadratic_loss, rounds=rounds, **(given | changes))  # fmt: skip # noqa: E501


@pytest.mark.parametrize(("stop_at", "states"), [(1, "memory"), (3, "disk"), (4, "memory")])
def test_a_resumed_run_with_changing_clusters_is_the_same_to_the_last_bit(
    tmp_path: Path, stop_at: int, states: str
) -> None:
    whole = run(8, tmp_path / "whole", where=states)
    run(stop_at, tmp_path / "parts", where=states)
    resumed = run(8, tmp_path / "parts", where=states)
    assert torch.equal(whole.server.w, resumed.server.w)
    lines = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("whole", "parts")]
    assert lines[0] == lines[1]


def test_quadratics_fall_into_their_planted_clusters_at_once_and_stay_there() -> None:
    """Their gradients differ by constants, so the clusters found are right in every round."""
    own, auto = run(8, clusters=None, recluster_every=None), run(8)
    torch.testing.assert_close(auto.server.w, own.server.w)
    table = auto.server.aggregator.table
    assert isinstance(table, ClusteredTable)
    assert same_partition(table.cluster_of, torch.arange(20) // 4)
    never = run(8, recluster_every=None)
    torch.testing.assert_close(never.server.w, own.server.w)


def test_clusters_are_made_before_round_0_and_every_r_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rounds: list[int] = []
    import fedvarp.clusters.reclustering as module

    def watched(*args: Any, **kwargs: Any) -> Tensor:
        rounds.append(kwargs["round"])
        assert kwargs["of"] == "updates"
        return torch.arange(20) % 5

    monkeypatch.setattr(module, "by_gradients", watched)
    run(8, clusters="auto:5:updates")
    assert rounds == [0, 3, 6]
    rounds.clear()
    run(8, clusters="auto:5:updates", recluster_every=None)
    assert rounds == [0]
    run(2, clusters="auto:5:updates", algorithm="fedavg")
    assert rounds == [0]  # who shares no rows needs no clusters


def test_clusters_in_settings() -> None:
    told = [
        "algorithm=cluster_fedvarp",
        "table.clusters=auto:7",
        "table.recluster_every=10",
        "rounds=2",
    ]
    experiment = build(load_settings("digits", told))
    table = experiment.run().server.aggregator.table
    assert isinstance(table, ClusteredTable)
    assert table.rows.num_clients == 7
    assert len(set(table.cluster_of.tolist())) == 7
    assert "clusters" not in load_settings("digits").as_toml()  # runs made before can go on
    for wrong, what in (
        (["table.clusters=auto"], "clusters"),
        (["table.clusters=auto:0"], "clusters"),
        (["table.recluster_every=5"], "goes with clusters"),
        (["table.clusters=labels", "table.recluster_every=5"], "goes with clusters"),
    ):
        with pytest.raises(SettingsError, match=what):
            load_settings("digits", wrong)
    with pytest.raises(ValueError, match="No clusters are called 'kmeans'"):
        clusters_by_name("kmeans", None, quadratics())
    with pytest.raises(ValueError, match="never change"):
        clusters_by_name(range(20), 3, quadratics())
