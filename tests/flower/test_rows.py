"""The table has a row for everybody who may be drawn, or one for each cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message

from flower.asking import MIFA, ClusterFedVARP, FedVARP, Scaffold
from flower.small_federation import (
    a_grid,
    an_app,
    ask,
    numbered_grid,
    row_of,
    run,
    table,
    train,
    w0,
)


def test_n_counts_those_who_are_away_too() -> None:
    grid = a_grid(an_app(), 3, seed=0)
    strategy = Scaffold(seed=0)
    strategy.begin(w0())
    ask(strategy, grid, 1)
    grid.nodes.clear()
    grid.connect(7, {"partition-id": 8})
    assert len(ask(strategy, grid, 2)) == 1
    assert table(strategy).num_clients == 4


def test_newcomers_make_n_grow_and_their_rows_are_zero() -> None:
    grid = a_grid(an_app(), 3, seed=0)
    strategy = FedVARP(seed=0)
    strategy.begin(w0())
    for t, newcomer in ((1, 3), (2, 4)):
        train(strategy, grid, t)
        assert table(strategy).num_clients == newcomer
        grid.connect(t, {"partition-id": newcomer})
    ask(strategy, grid, 3)
    assert table(strategy).num_clients == 5
    assert row_of(strategy, "4") == [0, 0]


@pytest.mark.parametrize("answers", [False, True])
def test_no_more_clients_are_let_in_than_there_are(
    answers: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Of three clients two are let in; once one is forgotten there is room for the third."""
    grid = numbered_grid(an_app(answers=answers, reports=True))
    strategy = FedVARP(seed=0, num_clients=2, weighting="uniform")
    strategy.begin(w0())
    train(strategy, grid, 1)
    assert sorted(client.name for client in strategy.clients) == ["0", "1"]
    assert "'2' would be one more than num_clients=2" in caplog.text
    assert table(strategy).num_clients == 2
    assert table(strategy).mean().tolist() == [-1.5, -1.5]
    strategy.forget("0")
    grid.disconnect(100)
    train(strategy, grid, 2)
    assert sorted(client.name for client in strategy.clients) == ["1", "2"]


@pytest.mark.parametrize("kind", [FedVARP, MIFA, ClusterFedVARP, Scaffold])
def test_a_node_that_reports_a_new_name_each_time_has_one_row(kind: Any) -> None:
    """Two honest clients and a liar, in 12 rounds: three rows, of which the liar's is its last."""
    clusters = {"clusters": lambda name: "l" if name.startswith("liar") else name}
    more: Any = clusters if kind is ClusterFedVARP else {}
    grid = numbered_grid(an_app(answers=False, reports=True, steps=1))
    strategy = kind(seed=0, weighting="uniform", clip_updates=None, **more)
    strategy.begin(w0())

    def lie(reply: Message) -> list[Message]:
        if reply.metadata.src_node_id == 102 and reply.has_content():
            name = f"liar {reply.metadata.group_id}"
            del reply.content.metric_records["metrics"]["partition-id"]
            reply.content["who"] = ConfigRecord({"partition-id": name})
        return [reply]

    grid.tamper = lie
    for t in range(1, 13):
        train(strategy, grid, t)
        assert len(strategy.clients) == table(strategy).num_clients == 3
    assert {client.name for client in strategy.clients} == {"0", "1", "liar 12"}
    if kind is not Scaffold:  # whose correction was made for the name before
        assert row_of(strategy, "liar 12") == [-3, -3]
        assert table(strategy).mean().tolist() == [-2, -2]


@pytest.mark.parametrize("kind", [FedVARP, ClusterFedVARP])
def test_a_dead_node_that_is_still_listed_counts_no_longer_than_that(
    kind: Any, tmp_path: Path
) -> None:
    """Names come with replies only, so that nobody can tell the dead node from a newcomer."""
    clusters = {"weighting": "uniform"}
    if kind is ClusterFedVARP:
        clusters["clusters"] = "region"
    grid = numbered_grid(an_app(answers=False, reports=True))
    strategy = kind(seed=0, checkpoint=tmp_path, fraction_evaluate=0, **clusters)
    run(strategy, grid, rounds=1)
    assert table(strategy).num_clients == 3
    grid.connect(999, {"partition-id": 1})  # 101 is dead, but listed
    run(kind(seed=0, checkpoint=tmp_path, fraction_evaluate=0, **clusters), grid, rounds=2)
    grid.disconnect(101)
    strategy = kind(seed=0, checkpoint=tmp_path, fraction_evaluate=0, **clusters)
    run(strategy, grid, rounds=3)
    assert table(strategy).num_clients == 3
    # Client i moves w by i + 1, every one in a row or cluster of its own.
    assert table(strategy).mean().tolist() == [-2, -2]


@pytest.mark.parametrize(
    "clusters",
    [{i: f"region {i % 3}" for i in range(6)}, lambda name: int(name) % 3, "region"],
    ids=["mapping", "function", "reported"],
)
def test_clusters_share_rows_wherever_they_come_from(clusters: Any) -> None:
    grid = a_grid(an_app(reports=True), 6, seed=0)
    strategy = ClusterFedVARP(clusters=clusters, seed=0, weighting="uniform")
    result = run(strategy, grid, rounds=1)
    # Clients i and i + 3 share a row: the mean of -(i + 1) and -(i + 4).
    assert [row_of(strategy, str(i))[0] for i in range(6)] == [-2.5, -3.5, -4.5] * 2
    assert table(strategy).mean().tolist() == [-3.5, -3.5]
    assert "region" not in result.train_metrics_clientapp[1] or clusters != "region"


def test_a_client_without_a_cluster_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    grid = a_grid(an_app(), 6, seed=0)
    strategy = ClusterFedVARP(clusters=dict.fromkeys(range(5), 0), seed=0)
    run(strategy, grid, rounds=1)
    assert "the mapping of clusters does not have '5'" in caplog.text
    assert row_of(strategy, "0") == [-3, -3]  # the mean of -1 ... -5


def test_a_name_that_the_function_of_clusters_cannot_take_costs_that_reply_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Client 2 does not say who it is, and int("node ...") fails."""
    grid = a_grid(an_app(answers=False, reports=True), 3, seed=0)

    def tamper(reply: Message) -> list[Message]:
        metrics = reply.content.metric_records["metrics"] if reply.has_content() else {}
        if metrics.get("partition-id") == 2:
            del metrics["partition-id"]
        return [reply]

    grid.tamper = tamper
    strategy = ClusterFedVARP(
        clusters=lambda name: int(name) % 3, seed=0, fraction_evaluate=0, weighting="uniform"
    )
    run(strategy, grid, rounds=1)
    assert caplog.text.count("fails for 'node ") == 1
    assert strategy.server.w.tolist() == [1.5, 1.5], "the mean move of clients 0 and 1"
