"""Who was asked what: strangers, second answers, late replies."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Error, Message

from flower.asking import MIFA, ClusterFedVARP, FedAvg, FedVARP, Scaffold
from flower.handmade_replies import NUM_CLIENTS, Round, good
from flower.in_process import InProcessGrid
from flower.small_federation import a_grid, an_app, ask, numbered_grid, row_of, table, train, w0


def test_errors_duplicates_and_strangers_have_their_reasons_too(
    one_round: Round, caplog: pytest.LogCaptureFixture
) -> None:
    asked = one_round.ask(1)
    stranger = Message(good(), reply_to=asked[5])
    stranger.metadata.__dict__["_src_node_id"] = 99
    elsewhen = Message(good(), reply_to=asked[6])
    elsewhen.metadata.__dict__["_group_id"] = "no round"
    absurd = Message(good(), reply_to=asked[7])
    absurd.metadata.__dict__["_group_id"] = "9" * 5000  # more digits than `int` will read
    one_round.end(
        1,
        [
            Message(Error(2, "ValueError\nout of memory"), reply_to=asked[1]),
            Message(good(0.25), reply_to=asked[2]),
            Message(good(0.75), reply_to=asked[2]),
            stranger,
            elsewhen,
            absurd,
        ],
    )
    said = " ".join(record.getMessage() for record in caplog.records)
    assert "error 2: out of memory" in said
    assert said.count("it has answered already") == 1
    assert said.count("nothing was asked of it") == 3
    assert one_round.rows().eq(-0.25).all(1).sum() == 1, "the first answer counts"
    assert one_round.rows().eq(0).all(1).sum() == NUM_CLIENTS - 1


def test_an_error_of_the_superlink_is_told_of_the_node_it_is_about(
    one_round: Round, caplog: pytest.LogCaptureFixture
) -> None:
    """Flower's SuperLink is node 1 and answers in place of a node that sends no heartbeat."""
    asked = one_round.ask(1)
    gone = Message(Error(3, "Node Unavailable"), reply_to=asked[7])
    lost = Message(Error(1, "Message Unavailable"), reply_to=asked[8])
    for error in (gone, lost):
        error.metadata.__dict__["_src_node_id"] = 1
    lost.metadata.__dict__["_group_id"] = ""
    one_round.end(1, [gone, lost, Message(good(), reply_to=asked[9])])
    said = [record.getMessage() for record in caplog.records if "is not used" in record.message]
    assert len(said) == 2
    for line, node, reason in zip(said, (7, 8), ("Node", "Message"), strict=True):
        assert f"node {node} " in line
        assert f"{reason} Unavailable" in line
    evaluation = one_round.strategy.configure_evaluate(
        1, one_round.arrays, ConfigRecord(), one_round.grid
    )
    one_round.grid.push_messages(evaluation)
    gone = Message(Error(3, "Node Unavailable"), reply_to=evaluation[5])
    gone.metadata.__dict__["_src_node_id"] = 1
    caplog.clear()
    assert one_round.strategy.aggregate_evaluate(1, [gone]) is None
    node = evaluation[5].metadata.dst_node_id
    assert "evaluation" in caplog.text
    assert f"node {node} " in caplog.text
    assert "Node Unavailable" in caplog.text


def delayed(grid: InProcessGrid, client: int, round: int) -> None:
    """The reply of this client to this round comes together with one to the next round."""

    def tamper(reply: Message) -> list[Message]:
        name = grid.nodes[reply.metadata.src_node_id].config["partition-id"]
        if name == client and reply.metadata.group_id == str(round):
            held.append(reply)
            return []
        late = [held.pop()] if held and reply.metadata.group_id == str(round + 1) else []
        return [*late, reply]

    held: list[Message] = []
    grid.tamper = tamper


def replies_by_node(strategy: Any, grid: InProcessGrid, round: int) -> list[Message]:
    replies = grid.send_and_receive(ask(strategy, grid, round))
    return sorted(replies, key=lambda reply: reply.metadata.src_node_id)


@pytest.mark.parametrize("kind", [FedVARP, MIFA])
def test_a_late_reply_refreshes_its_row(kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Client 0 is late in round 1 and not asked again: its row is from round 1 all the same."""
    grid = a_grid(an_app(), 2, seed=0)
    delayed(grid, client=0, round=1)
    strategy = kind(fraction_evaluate=0, weighting="uniform")
    strategy.begin(w0())
    first = ask(strategy, grid, 1)
    strategy.aggregate_train(1, strategy._rounds.ledger.send_and_receive(grid, first, 0.2, 1))
    assert row_of(strategy, "0") == [0, 0], "it was not there in time"
    grid.disconnect(strategy.clients.named("0").node)
    second = ask(strategy, grid, 2)
    replies = strategy._rounds.ledger.send_and_receive(grid, second, 0.2, 2)
    strategy.aggregate_train(2, replies)
    late = [record.getMessage() for record in caplog.records if "late reply" in record.message]
    assert len(late) == 1
    assert "'0', 1 round(s) stale" in late[0]
    assert row_of(strategy, "0") == [-1, -1], "relative to the model of round 1"
    assert table(strategy).mean().tolist() == [-1.5, -1.5]


def test_a_late_reply_is_measured_by_the_rate_of_its_own_round() -> None:
    """Rates 0.5 and 0.25: client 1's move of 2 in round 1 is a row of -4, though it comes later."""
    grid = numbered_grid(an_app(rates={1: 0.5, 2: 0.25}), 2)
    strategy = FedVARP(fraction_evaluate=0)
    strategy.begin(w0())
    in_time, late = replies_by_node(strategy, grid, 1)
    strategy.aggregate_train(1, [in_time])
    grid.disconnect(101)
    replies = list(grid.send_and_receive(ask(strategy, grid, 2)))
    strategy.aggregate_train(2, [*replies, late])
    assert row_of(strategy, "0") == [-4, -4]  # a move of 1 in round 2
    assert row_of(strategy, "1") == [-4, -4]


def test_a_late_reply_to_a_round_without_a_rate_is_measured_by_its_own() -> None:
    """Nobody answers round 2 in time, and what comes late says that its rate was 0.25."""
    grid = numbered_grid(an_app(rates={1: 0.5, 2: 0.25}), 1)
    strategy = FedVARP(fraction_evaluate=0)
    strategy.begin(w0())
    train(strategy, grid, 1)
    late = list(grid.send_and_receive(ask(strategy, grid, 2)))
    strategy.aggregate_train(2, [])
    table(strategy).put(torch.tensor([0]), torch.full((1, 2), 9.0))
    ask(strategy, grid, 3)
    strategy.aggregate_train(3, late)
    assert row_of(strategy, "0") == [-4, -4]


@pytest.mark.parametrize(("kind", "late_replies"), [(FedVARP, 0), (FedAvg, 10), (Scaffold, 10)])
def test_late_replies_can_be_ignored_and_some_algorithms_have_no_use_for_them(
    kind: Any, late_replies: int, caplog: pytest.LogCaptureFixture
) -> None:
    grid = a_grid(an_app(steps=1), 3, seed=0)
    delayed(grid, client=0, round=1)
    strategy = kind(fraction_evaluate=0, late_replies=late_replies)
    strategy.start(grid, w0(), num_rounds=3, timeout=0.2)
    assert "late reply refreshed" not in caplog.text
    assert ("1 round(s) late" in caplog.text) == (late_replies > 0)
    assert strategy.server.round == 3


def test_a_late_reply_is_measured_from_the_model_it_was_trained_from() -> None:
    """Models of rounds reuse memory, but not that of a round still waited for."""
    grid = a_grid(an_app(), 2, seed=0)
    strategy = FedVARP(fraction_evaluate=0, weighting="uniform")
    strategy.begin(w0())
    held: list[Message] = []
    for t in (1, 2, 3):
        sent = ask(strategy, grid, t)
        replies = list(grid.send_and_receive(sent))
        client = strategy.clients.named("1")
        assert client is not None
        slow = client.node
        if t > 1:
            held += [reply for reply in replies if reply.metadata.src_node_id == slow]
            replies = [reply for reply in replies if reply.metadata.src_node_id != slow]
        if t == 3:
            table(strategy).put(torch.tensor([1]), torch.full((1, 2), 9.0))
            replies.append(held[0])  # to round 2
        strategy.aggregate_train(t, replies)
    assert row_of(strategy, "1") == [-2, -2], "client 1 moves the model by 2"


@pytest.mark.parametrize("kind", [FedVARP, Scaffold])
def test_a_late_reply_does_not_bring_its_client_back_to_a_node_it_has_left(kind: Any) -> None:
    grid = numbered_grid(an_app(reports=True, steps=1), 2)
    strategy = kind(seed=0)
    strategy.begin(w0())
    late: list[Message] = []
    for t in (1, 2, 3):
        messages = ask(strategy, grid, t)
        replies = list(grid.send_and_receive(messages))
        if t == 2:
            late = [reply for reply in replies if reply.metadata.src_node_id == 101]
            replies = [reply for reply in replies if reply not in late]
            grid.disconnect(101)
            grid.connect(999, {"partition-id": 1})
        strategy.aggregate_train(t, replies + (late if t == 3 else []))
    assert [client.node for client in strategy.clients] == [100, 999]
    assert sorted(strategy.clients.look(grid.nodes).online) == [100, 999]


def test_a_late_reply_is_no_news_of_a_client_that_is_looked_for() -> None:
    strategy = FedVARP(seed=0)
    strategy.begin(w0())
    clients = strategy.clients
    for name, node in (("A", 1), ("C", 5), ("A", 4), ("C", 4)):  # A is missing, 1 and 5 were left
        clients.meet(name, node)
    late: Any = SimpleNamespace(round=1, node=1)
    assert strategy._rounds.reception._meet(3, late, "A").node is None
    assert sorted(clients.look([1, 4, 5]).online) == [1, 4, 5]  # it may be at any of them


def test_an_old_reply_does_not_undo_a_newer_one(caplog: pytest.LogCaptureFixture) -> None:
    grid = a_grid(an_app(), 2, seed=0)
    strategy = FedVARP(fraction_evaluate=0)
    strategy.begin(w0())
    first = ask(strategy, grid, 1)
    replies = list(grid.send_and_receive(first))
    strategy.aggregate_train(1, replies[:1])
    train(strategy, grid, 2)
    before = table(strategy).get(torch.arange(2))
    third = ask(strategy, grid, 3)
    assert len(third) == 2
    strategy.aggregate_train(3, [replies[1]])
    assert table(strategy).get(torch.arange(2)).equal(before)
    assert "it comes 2 round(s) late, and its row holds a newer update" in caplog.text


@pytest.mark.parametrize("resumed", [False, True])
def test_an_old_reply_does_not_undo_a_newer_one_of_another_client_in_its_cluster(
    resumed: bool, tmp_path: Path
) -> None:
    """Clients 0 and 1 share a row, in which client 0's update of round 2 is newer than client 1's.

    Client 0 moves the model by 1, client 1 by 2; client 1 sees round 1 only, and answers late.
    """
    grid = numbered_grid(an_app(), 2)

    def a_strategy() -> Any:
        strategy = ClusterFedVARP(clusters={0: "a", 1: "a"}, checkpoint=tmp_path)
        strategy.begin(w0())
        return strategy

    strategy = a_strategy()
    in_time, late = replies_by_node(strategy, grid, 1)
    strategy.aggregate_train(1, [in_time])
    grid.disconnect(101)
    train(strategy, grid, 2)
    if resumed:
        strategy._begun.commit({})
        question = strategy._rounds.ledger._questions["1"]
        strategy.close()
        strategy = a_strategy()
        strategy._rounds.ledger._questions["1"] = question  # a restart forgets what was asked
    ask(strategy, grid, 3)
    strategy.aggregate_train(3, [late])
    assert row_of(strategy, "1") == [-1, -1]
    strategy.close()


def test_of_late_replies_that_share_a_row_those_to_the_newest_round_count() -> None:
    """Client i moves the model by i + 1. Of the late ones 1 answers round 1, 2 and 3 round 2."""
    grid = numbered_grid(an_app(), 4)
    strategy = ClusterFedVARP(clusters={0: "in time", 1: "a", 2: "a", 3: "a"}, clip_updates=None)
    strategy.begin(w0())
    late: list[Message] = []
    for t, late_nodes in ((1, {101}), (2, {102, 103})):
        replies = list(grid.send_and_receive(ask(strategy, grid, t)))
        late += [reply for reply in replies if reply.metadata.src_node_id in late_nodes]
        strategy.aggregate_train(t, [r for r in replies if r.metadata.src_node_id == 100])
    ask(strategy, grid, 3)
    strategy.aggregate_train(3, late)
    assert row_of(strategy, "1") == [-3.5, -3.5]  # the mean of -3 and -4
    assert [client.last_round for client in strategy.clients] == [2, 0, 2, 2]


def test_of_late_replies_beyond_max_rows_those_to_the_newest_round_stay() -> None:
    """Four clients, two rows: 3 answers round 1 late, 1 and 2 round 2, all in round 3."""
    grid = numbered_grid(an_app(), 4)
    strategy = FedVARP(max_rows=2, clients_per_round=2, select=lambda t, names: ["0", str(4 - t)])
    strategy.begin(w0())
    late: list[Message] = []
    for t in (1, 2, 3):
        replies = list(grid.send_and_receive(ask(strategy, grid, t)))
        late += [reply for reply in replies if reply.metadata.src_node_id != 100]
        strategy.aggregate_train(t, [r for r in replies if r.metadata.src_node_id == 100])
    ask(strategy, grid, 4)
    strategy.aggregate_train(4, late)
    (rows,) = table(strategy).tables()
    kept = {client.name for client in strategy.clients if client.row in set(rows.rows_written())}
    assert kept == {"1", "2"}, "of rounds 3 and 2"


@pytest.mark.parametrize("together", [False, True])
def test_a_late_reply_does_not_bring_its_client_back_to_a_cluster_it_has_left(
    together: bool,
) -> None:
    """Client 1 is in region 1 in round 1, which it answers late, and in region 9 in round 2."""
    grid = numbered_grid(an_app(reports=True), 2)
    strategy = ClusterFedVARP(clusters="region")
    strategy.begin(w0())
    in_time, late = replies_by_node(strategy, grid, 1)
    strategy.aggregate_train(1, [in_time])
    replies = replies_by_node(strategy, grid, 2)
    replies[1].content.metric_records["metrics"]["region"] = 9
    strategy.aggregate_train(2, [*replies, late] if together else replies)
    if not together:
        ask(strategy, grid, 3)
        strategy.aggregate_train(3, [late])
    client = strategy.clients.named("1")
    assert client is not None
    assert client.cluster == "9"
    assert row_of(strategy, "1") == [-2, -2]
