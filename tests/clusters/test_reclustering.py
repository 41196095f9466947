"""Clusters that are found anew as training goes on, and rows that move with the clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import registry
from fedvarp import ClusteredTable, LocalSGD, SimulationResult, stream
from fedvarp.clusters import reclustering
from fedvarp.data import quadratics
from fedvarp.models import Quadratic, quadratic_loss
from fedvarp.tables import RowTable
from simulating import simulate
from small_problems import same_partition

SGD = LocalSGD(lr=0.05, batch_size=5, epochs=1)
N, K, D = 9, 4, 300


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
    for wrong, what in (([0, 1], r"shape \(2,\).*\(3,\)"), ([0, 1, 2], "the table has 2 rows")):
        with pytest.raises(ValueError, match=what):
            table.recluster(torch.tensor(wrong))
    assert table.cluster_of.tolist() == [0, 1, 0]
    assert torch.equal(table.get(torch.arange(3)), torch.ones(3, 3))


def run(rounds: int, out: Path | None = None, **changes: Any) -> SimulationResult:
    given: dict[str, Any] = {
        "local_sgd": SGD, "clients_per_round": 4, "algorithm": "cluster_fedvarp", "seed": 3,
        "clusters": "auto:5", "recluster_every": 3, "out": out, "resume": out is not None,
        "fsync": False, "evaluate_every": 100, "num_train_clients": 0,
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

    def watched(*args: Any, **kwargs: Any) -> Tensor:
        rounds.append(kwargs["round"])
        assert kwargs["of"] == "updates"
        return torch.arange(20) % 5

    monkeypatch.setattr(reclustering, "by_gradients", watched)
    run(8, clusters="auto:5:updates")
    assert rounds == [0, 3, 6]
    rounds.clear()
    run(8, clusters="auto:5:updates", recluster_every=None)
    assert rounds == [0]
    run(2, clusters="auto:5:updates", algorithm="fedavg")
    assert rounds == [0]  # who shares no rows needs no clusters
