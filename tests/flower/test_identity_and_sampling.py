"""Rows follow names; the same seed gives the same cohorts whatever the node ids are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from fedvarp.clients.sampling import UniformSampler
from fedvarp.flower import ClusterFedVARP, FedAvg, FedVARP, Scaffold
from fedvarp.flower.identity import KnownClients, name_order
from fedvarp.flower.cohort import Candidate, candidates, training_cohort
from fedvarp.flower.replies import text_in
from flower.in_process import InProcessGrid, be_the_server_app
from flower.small_federation import a_grid, an_app, row_of, run, table, w0


@pytest.fixture(autouse=True)
def server_app() -> None:
    be_the_server_app()


def cohorts(grid: InProcessGrid) -> list[tuple[int, int]]:
    """(round, partition-id) of everybody who was asked to train."""
    return sorted((t, int(grid.nodes[n].config["partition-id"])) for t, n in grid.sent_to("train"))


def test_the_same_seed_gives_the_same_cohorts_as_the_simulation() -> None:
    found = []
    for seed in (1, 2):
        grid = a_grid(an_app(), 20, seed)
        run(FedVARP(clients_per_round=4, seed=5, fraction_evaluate=0), grid, rounds=6)
        found.append(cohorts(grid))
    assert found[0] == found[1]
    sampler = UniformSampler(20, 4, seed=5)
    expected = [(t + 1, c) for t in range(6) for c in sampler.cohort(t).clients.tolist()]
    assert found[0] == sorted(expected)


def test_numbers_are_ordered_by_value_and_before_words() -> None:
    assert sorted(["b", "10", "2", "a", "²"], key=name_order) == ["2", "10", "a", "b", "²"]


@given(
    num_known=st.integers(1, 12),
    size=st.integers(1, 14),
    online=st.sets(st.integers(0, 15)),
    round=st.integers(0, 5),
)
def test_cohorts_are_online_distinct_and_as_large_as_can_be(
    num_known: int, size: int, online: set[int], round: int
) -> None:
    clients = KnownClients()
    for number in range(num_known):
        clients.meet(str(number), node=number)
    among = candidates(clients, sorted(online))
    arguments: dict[str, Any] = {"seed": 0, "round": round}
    full = training_cohort(among, size, when_offline="replace", **arguments)
    fewer = training_cohort(among, size, when_offline="fewer", **arguments)
    assert all(c.node in online for c in full)
    assert len({c.node for c in full}) == len(full) == min(size, len(online), len(among))
    assert [c for c in full if c in fewer] == fewer, "replacing adds to those who are online"


def test_the_absent_are_replaced_by_anybody_else_equally_often() -> None:
    """2 of 5, client 0 offline: each of the other four is asked in half of the rounds."""
    among = [Candidate(i, None if i == 0 else i, str(i)) for i in range(5)]
    count = torch.zeros(5)
    for t in range(1500):
        for c in training_cohort(among, 2, seed=0, round=t, when_offline="replace"):
            count[int(c.name)] += 1
    assert count[0] == 0
    # Standard deviation of a share: (0.25 / 1500) ** 0.5 = 0.013; five of them.
    assert (count[1:] / 1500 - 0.5).abs().max() < 0.065


def test_stock_clients_go_by_their_node_id_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    grid = a_grid(an_app(answers=False), 5, seed=0)
    strategy = FedVARP(clients_per_round=2, seed=0)
    run(strategy, grid, rounds=4)
    assert caplog.text.count("so that they go by their node id") == 1
    assert caplog.text.count("equally many local") == 1
    assert len(grid.sent_to("query.identity")) == 1, "one client that cannot answer is enough"
    assert table(strategy).num_clients == 5, "N is those who may be drawn"


def test_nobody_is_asked_for_a_name_if_told_not_to() -> None:
    grid = a_grid(an_app(), 5, seed=0)
    run(FedVARP(clients_per_round=2, ask_names=False), grid, rounds=2)
    assert grid.sent_to("query.identity") == []


def test_a_client_that_returns_under_a_new_node_id_finds_its_row() -> None:
    """It says who it is in its replies only; the server meets it again when it is drawn."""
    app = an_app(answers=False, reports=True)
    grid = InProcessGrid(app)
    for client in range(3):
        grid.connect(100 + client, {"partition-id": client})
    strategy = FedVARP(seed=0, fraction_evaluate=0)
    strategy.begin(w0())
    for t in (1, 2):
        model = strategy.arrays
        messages = list(strategy.configure_train(t, model, ConfigRecord(), grid))
        assert len(messages) == 3
        strategy.aggregate_train(t, grid.send_and_receive(messages))
        if t == 1:
            before = strategy.clients.named("1")
            assert before is not None
            row = before.row
            grid.disconnect(101)
            grid.connect(999, {"partition-id": 1})
    returned = strategy.clients.named("1")
    assert returned is not None
    assert (returned.row, returned.node) == (row, 999)
    assert table(strategy).num_clients == 3, "no ghost was counted"
    # Client i moves w by i + 1, so that its raw update is -(i + 1).
    assert [row_of(strategy, str(i)) for i in range(3)] == [[-1, -1], [-2, -2], [-3, -3]]


def test_a_node_whose_client_is_elsewhere_is_neither_asked_nor_counted() -> None:
    """Flower lists a SuperNode that died for a while beside the one started in its place."""
    grid = InProcessGrid(an_app())
    for client in range(3):
        grid.connect(100 + client, {"partition-id": client})
    strategy = Scaffold(seed=0)
    strategy.begin(w0())
    list(strategy.configure_train(1, w0(), ConfigRecord(), grid))
    grid.connect(999, {"partition-id": 1})
    messages = strategy.configure_train(2, w0(), ConfigRecord(), grid)
    assert sorted(m.metadata.dst_node_id for m in messages) == [100, 102, 999]
    messages = strategy.configure_evaluate(2, w0(), ConfigRecord(), grid)
    assert sorted(m.metadata.dst_node_id for m in messages) == [100, 102, 999]
    assert table(strategy).num_clients == 3


@pytest.mark.parametrize("kind", [FedVARP, ClusterFedVARP])
def test_a_dead_node_that_is_still_listed_counts_no_longer_than_that(
    kind: Any, tmp_path: Path
) -> None:
    """Names come with replies only, so that nobody can tell the dead node from a newcomer."""
    clusters = {"clusters": "region"} if kind is ClusterFedVARP else {}
    grid = InProcessGrid(an_app(answers=False, reports=True))
    for client in range(3):
        grid.connect(100 + client, {"partition-id": client})
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


def test_a_node_that_was_left_is_remembered_until_it_is_not_listed_any_more(
    tmp_path: Path,
) -> None:
    grid = InProcessGrid(an_app())
    for client in range(3):
        grid.connect(100 + client, {"partition-id": client})
    run(FedVARP(checkpoint=tmp_path, fraction_evaluate=0), grid, rounds=1)
    grid.connect(999, {"partition-id": 1})
    run(FedVARP(checkpoint=tmp_path, fraction_evaluate=0), grid, rounds=2)
    grid.pushed.clear()
    run(FedVARP(checkpoint=tmp_path, fraction_evaluate=0), grid, rounds=3)
    asked = [message.metadata.dst_node_id for message in grid.pushed]
    assert sorted(asked) == [100, 102, 999], "neither the name nor the update of node 101"
    clients = KnownClients()
    clients.meet("a", 1)
    clients.meet("a", 2)
    assert clients.at(1) is None
    assert (clients.state_dict()["left"], clients.still_at([2, 1])) == ([1], [2])
    assert clients.still_at([2]) == [2]
    assert clients.still_at([2, 1]) == [1, 2], "it went, and came back as somebody else"


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 4)), max_size=20))
def test_a_node_has_one_client_and_a_client_is_where_it_was_last_met(
    meetings: list[tuple[str, int]],
) -> None:
    clients, last_at = KnownClients(), dict[int, str]()
    for name, node in meetings:
        clients.meet(name, node)
        last_at = {at: other for at, other in last_at.items() if other != name} | {node: name}
    again = KnownClients()
    again.load_state_dict(clients.state_dict(), clients.changed_entries())
    for known in (clients, again):
        assert {c.node: c.name for c in known if c.node is not None} == last_at
        assert {node: c.name for node in range(5) if (c := known.at(node))} == last_at
        everybody_is_found = len(last_at) == len(known)
        seen = {node for _, node in meetings}
        assert known.still_at(seen) == sorted(last_at if everybody_is_found else seen)


def test_nobody_looks_for_a_client_that_went_by_its_node_id_until_it_told_its_name() -> None:
    clients = KnownClients()
    clients.meet("node 7", 7)
    clients.meet("a", 7)
    clients.meet("a", 8)
    assert [client.node for client in clients] == [None, 8]
    assert clients.still_at([7, 8]) == [8]


@pytest.mark.parametrize("answers", [True, False])
@pytest.mark.parametrize("kind", [FedVARP, Scaffold])
def test_clients_that_exchanged_their_nodes_are_found_again(
    kind: Any, answers: bool, tmp_path: Path
) -> None:
    """SuperNodes with keys keep their ids when they are started with other partition-ids."""
    grid = InProcessGrid(an_app(answers, reports=True, steps=1))
    for client in range(3):
        grid.connect(100 + client, {"partition-id": client})
    settings = {"clients_per_round": 1, "fraction_evaluate": 0, "checkpoint": tmp_path}
    run(kind(**settings), grid, rounds=12)
    for client in range(3):
        grid.connect(100 + (client + 1) % 3, {"partition-id": client})
    for rounds in range(13, 30):  # the ServerApp is started again in each
        strategy = kind(**settings)
        run(strategy, grid, rounds)
    found = {client.name: client.node for client in strategy.clients}
    assert found == {"0": 101, "1": 102, "2": 100}
    grid.pushed.clear()
    run(kind(seed=0, fraction_evaluate=0, checkpoint=tmp_path), grid, rounds=30)
    assert sorted(node for _, node in grid.sent_to("train")) == [100, 101, 102]


def test_a_node_that_comes_back_after_its_client_went_elsewhere_is_asked_again() -> None:
    grid = InProcessGrid(an_app())
    grid.connect(100, {"partition-id": 0})
    strategy = FedVARP(seed=0)
    strategy.begin(w0())
    list(strategy.configure_train(1, w0(), ConfigRecord(), grid))
    grid.disconnect(100)
    grid.connect(999, {"partition-id": 0})
    list(strategy.configure_train(2, w0(), ConfigRecord(), grid))
    grid.connect(100, {"partition-id": 1})
    list(strategy.configure_train(3, w0(), ConfigRecord(), grid))
    found = {client.name: client.node for client in strategy.clients}
    assert found == {"0": 999, "1": 100}


def test_only_what_changed_about_a_client_is_saved() -> None:
    clients = KnownClients()
    clients.meet("a", 1)
    clients.meet("b", 2)
    clients.saved()
    assert clients.changed_entries() == {}
    clients.meet("b", 3)
    assert [entry["node"] for entry in clients.changed_entries().values()] == [3]
    again = KnownClients()
    again.load_state_dict(clients.state_dict(), clients.changed_entries())
    assert again.changed_entries() == {}
    clients.meet("b", 2)
    assert clients.still_at([1, 2, 3]) == [1, 2], "it is back where it was"


def test_names_are_short_and_whole_numbers_have_no_point() -> None:
    told = ConfigRecord({"a": 2.0, "b": "x" * 201, "c": "x" * 200})
    content = RecordDict({"told": told})
    assert [text_in(content, key) for key in "abc"] == ["2", None, "x" * 200]


def test_n_counts_those_who_are_away_too() -> None:
    grid = a_grid(an_app(), 3, seed=0)
    strategy = Scaffold(seed=0)
    strategy.begin(w0())
    list(strategy.configure_train(1, w0(), ConfigRecord(), grid))
    grid.nodes.clear()
    grid.connect(7, {"partition-id": 8})
    assert len(list(strategy.configure_train(2, w0(), ConfigRecord(), grid))) == 1
    assert table(strategy).num_clients == 4


def test_scaffold_refuses_an_update_made_with_the_correction_of_another_row(
    caplog: pytest.LogCaptureFixture,
) -> None:
    grid = InProcessGrid(an_app(answers=False, reports=True, steps=1))
    for client in range(3):
        grid.connect(100 + client, {"partition-id": client})
    strategy = Scaffold(seed=0)
    strategy.begin(w0())
    first = list(strategy.configure_train(1, w0(), ConfigRecord(), grid))
    strategy.aggregate_train(1, grid.send_and_receive(first))
    before = row_of(strategy, "1")
    grid.disconnect(101)
    grid.connect(999, {"partition-id": 1})
    second = list(strategy.configure_train(2, strategy.arrays, ConfigRecord(), grid))
    strategy.aggregate_train(2, grid.send_and_receive(second))
    assert caplog.text.count("was sent another client's correction") == 1
    assert row_of(strategy, "1") == before
    third = list(strategy.configure_train(3, strategy.arrays, ConfigRecord(), grid))
    strategy.aggregate_train(3, grid.send_and_receive(third))
    assert caplog.text.count("was sent another client's correction") == 1, "it is known by now"


def test_names_by_supernode_key_are_known_at_once() -> None:
    grid = InProcessGrid(an_app(answers=False))
    for node in range(4):
        grid.connect(50 + node, {"partition-id": node}, public_key=bytes([node]))
    strategy = FedVARP(identity="supernode-key", clients_per_round=2, seed=0)
    run(strategy, grid, rounds=2)
    assert len(strategy.clients) == 4
    assert all(client.name.startswith("key ") for client in strategy.clients)
    assert grid.sent_to("query.identity") == []


def test_with_keys_nobody_takes_the_row_of_another_by_claiming_its_name() -> None:
    grid = InProcessGrid(an_app(answers=False))
    for node in range(3):
        grid.connect(50 + node, {"partition-id": node}, public_key=bytes([node]))
    strategy = FedVARP(identity="supernode-key", seed=0)
    strategy.begin(w0())
    messages = list(strategy.configure_train(1, w0(), ConfigRecord(), grid))
    clients = strategy.clients
    owner = clients.at(50)
    assert owner is not None

    def lie(reply: Message) -> list[Message]:
        if reply.metadata.src_node_id == 52:
            reply.content["claim"] = ConfigRecord({"supernode-key": owner.name})
        return [reply]

    grid.tamper = lie
    strategy.aggregate_train(1, grid.send_and_receive(messages))
    evaluations = list(strategy.configure_evaluate(1, w0(), ConfigRecord(), grid))
    strategy.aggregate_evaluate(1, grid.send_and_receive(evaluations))
    assert clients.at(50) is owner
    assert len(clients) == 3
    # Client i moves w by i + 1.
    for node in range(3):
        client = clients.at(50 + node)
        assert client is not None
        assert row_of(strategy, client.name) == [-(node + 1)] * 2


def test_newcomers_make_n_grow_and_their_rows_are_zero() -> None:
    grid = a_grid(an_app(), 3, seed=0)
    strategy = FedVARP(seed=0, num_clients=2)
    strategy.begin(w0())
    for t, newcomer in ((1, 3), (2, 4)):
        messages = list(strategy.configure_train(t, w0(), ConfigRecord(), grid))
        strategy.aggregate_train(t, grid.send_and_receive(messages))
        assert table(strategy).num_clients == newcomer
        grid.connect(t, {"partition-id": newcomer})
    list(strategy.configure_train(3, w0(), ConfigRecord(), grid))
    assert table(strategy).num_clients == 5
    assert row_of(strategy, "4") == [0, 0]


def test_an_offline_client_is_replaced_or_the_round_has_fewer() -> None:
    cases: list[tuple[Any, int]] = [("replace", 3), ("fewer", 2)]
    for when, asked in cases:
        grid = a_grid(an_app(), 6, seed=0)
        strategy = FedVARP(clients_per_round=3, seed=0, when_offline=when)
        strategy.begin(w0())
        list(strategy.configure_train(1, w0(), ConfigRecord(), grid))
        drawn = UniformSampler(6, 3, seed=0).cohort(1).clients.tolist()
        gone = strategy.clients.named(str(drawn[0]))
        assert gone is not None
        assert gone.node is not None
        grid.disconnect(gone.node)
        assert len(list(strategy.configure_train(2, w0(), ConfigRecord(), grid))) == asked


@pytest.mark.parametrize(
    "clusters",
    [{i: f"region {i % 3}" for i in range(6)}, lambda name: int(name) % 3, "region"],
    ids=["mapping", "function", "reported"],
)
def test_clusters_share_rows_wherever_they_come_from(clusters: Any) -> None:
    grid = a_grid(an_app(reports=True), 6, seed=0)
    strategy = ClusterFedVARP(clusters=clusters, seed=0)
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
    strategy = ClusterFedVARP(clusters=lambda name: int(name) % 3, seed=0, fraction_evaluate=0)
    run(strategy, grid, rounds=1)
    assert caplog.text.count("fails for 'node ") == 1
    assert strategy.server.w.tolist() == [1.5, 1.5], "the mean move of clients 0 and 1"


def test_weighting_by_examples_is_flowers_and_the_default_is_the_papers() -> None:
    """Client i moves by i + 1 and has i + 1 examples; i = 0, 1, 2."""
    moved = {}
    for weighting in ("uniform", "examples"):
        strategy = FedAvg(weighting=weighting)
        run(strategy, a_grid(an_app(), 3, seed=0), rounds=1)
        moved[weighting] = float(strategy.server.w[0])
    assert moved["uniform"] == pytest.approx(2.0)
    assert moved["examples"] == pytest.approx((1 + 4 + 9) / 6)


def test_evaluation_is_weighted_by_examples() -> None:
    result = run(FedVARP(clients_per_round=1), a_grid(an_app(), 3, seed=0), rounds=1)
    # Losses 0, 1, 2 with 1, 2, 3 examples.
    assert result.evaluate_metrics_clientapp[1] == {"loss": pytest.approx(8 / 6)}


def test_evaluations_tell_names_too() -> None:
    grid = a_grid(an_app(answers=False, reports=True), 8, seed=0)
    strategy = FedVARP(clients_per_round=1)
    run(strategy, grid, rounds=1)
    assert sorted(client.name for client in strategy.clients) == [str(i) for i in range(8)]


def test_reported_steps_make_rows_comparable() -> None:
    grid = a_grid(an_app(steps=4), 2, seed=0)
    strategy = FedVARP(client_lr=0.5)
    run(strategy, grid, rounds=1)
    assert row_of(strategy, "1") == [-1.0, -1.0]  # a move of 2 in 4 steps at rate 0.5
    assert strategy.server.w.tolist() == [1.5, 1.5], "the mean move, whatever the units"
