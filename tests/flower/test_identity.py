"""Rows follow names, whatever the node ids are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message
from hypothesis import given
from hypothesis import strategies as st

from fedvarp.flower.identity import KnownClients
from fedvarp.flower.names import name_order
from flower.asking import FedVARP, Scaffold
from flower.in_process import InProcessGrid
from flower.small_federation import an_app, ask, numbered_grid, row_of, run, table, w0


def entries_of(clients: KnownClients) -> dict[str, dict[str, Any]]:
    return {key: entry for key, entry in clients.changed_entries().items() if entry is not None}


def test_numbers_are_ordered_by_value_and_before_words() -> None:
    assert sorted(["b", "10", "2", "a", "²"], key=name_order) == ["2", "10", "a", "b", "²"]


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 4)), max_size=20))
def test_a_node_has_one_client_and_a_client_is_where_it_was_last_met(
    meetings: list[tuple[str, int]],
) -> None:
    clients, last_at = KnownClients(), dict[int, str]()
    for name, node in meetings:
        clients.meet(name, node)
        last_at = {at: other for at, other in last_at.items() if other != name} | {node: name}
    again = KnownClients()
    again.load_state_dict(clients.state_dict(), entries_of(clients))
    for known in (clients, again):
        assert {c.node: c.name for c in known if c.node is not None} == last_at
        assert {node: c.name for node in range(5) if (c := known.at(node))} == last_at
        everybody_is_found = len(last_at) == len(known)
        seen = {node for _, node in meetings}
        assert sorted(known.look(seen).online) == sorted(last_at if everybody_is_found else seen)


def test_nobody_looks_for_a_client_that_went_by_its_node_id_until_it_told_its_name() -> None:
    clients = KnownClients()
    clients.meet("node 7", 7)
    clients.meet("a", 7)
    clients.meet("a", 8)
    assert [(client.name, client.row, client.node) for client in clients] == [("a", 0, 8)]
    assert sorted(clients.look([7, 8]).online) == [8]


def test_only_what_changed_about_a_client_is_saved() -> None:
    clients = KnownClients()
    clients.meet("a", 1)
    clients.meet("b", 2)
    clients.saved()
    assert clients.changed_entries() == {}
    clients.meet("b", 3)
    assert [entry["node"] for entry in entries_of(clients).values()] == [3]
    again = KnownClients()
    again.load_state_dict(clients.state_dict(), entries_of(clients))
    assert again.changed_entries() == {}
    clients.meet("b", 2)
    assert sorted(clients.look([1, 2, 3]).online) == [1, 2], "it is back where it was"


def test_a_client_that_returns_under_a_new_node_id_finds_its_row() -> None:
    """It says who it is in its replies only; the server meets it again when it is drawn."""
    grid = numbered_grid(an_app(answers=False, reports=True))
    strategy = FedVARP(seed=0, fraction_evaluate=0, weighting="uniform")
    strategy.begin(w0())
    for t in (1, 2):
        messages = ask(strategy, grid, t)
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
    grid = numbered_grid(an_app())
    strategy = Scaffold(seed=0)
    strategy.begin(w0())
    ask(strategy, grid, 1)
    grid.connect(999, {"partition-id": 1})
    messages = ask(strategy, grid, 2)
    assert sorted(m.metadata.dst_node_id for m in messages) == [100, 102, 999]
    messages = list(strategy.configure_evaluate(2, w0(), ConfigRecord(), grid))
    assert sorted(m.metadata.dst_node_id for m in messages) == [100, 102, 999]
    assert table(strategy).num_clients == 3


def test_a_node_that_was_left_is_remembered_until_it_is_not_listed_any_more(
    tmp_path: Path,
) -> None:
    grid = numbered_grid(an_app())
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
    assert (clients.state_dict()["left"], sorted(clients.look([2, 1]).online)) == ([1], [2])
    assert sorted(clients.look([2]).online) == [2]
    assert sorted(clients.look([2, 1]).online) == [1, 2], "it went, and came back as somebody else"


@pytest.mark.parametrize("answers", [True, False])
@pytest.mark.parametrize("kind", [FedVARP, pytest.param(Scaffold, marks=pytest.mark.slow)])
def test_clients_that_exchanged_their_nodes_are_found_again(
    kind: Any, answers: bool, tmp_path: Path
) -> None:
    """SuperNodes with keys keep their ids when they are started with other partition-ids."""
    grid = numbered_grid(an_app(answers, reports=True, steps=1))
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


def test_with_keys_nobody_takes_the_row_of_another_by_claiming_its_name() -> None:
    grid = InProcessGrid(an_app(answers=False))
    for node in range(3):
        grid.connect(50 + node, {"partition-id": node}, public_key=bytes([node]))
    strategy = FedVARP(identity="supernode-key", seed=0)
    strategy.begin(w0())
    messages = ask(strategy, grid, 1)
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


def test_a_list_of_nodes_is_compared_once_a_round() -> None:
    """It may have a million entries, and is looked at several times in a round."""
    compared = 0

    class Counted(int):
        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return isinstance(other, int) and int(self) == int(other)

        __hash__ = int.__hash__

    def listed() -> list[int]:
        return [Counted(node) for node in range(1000)]

    clients = KnownClients()
    first = clients.look(listed())
    compared, now = 0, listed()
    assert all(clients.look(now) is first for _ in range(3))
    assert compared <= 1000
    assert clients.look(listed()[1:]) is not first
