"""A table never turns against its clients: after restarts, departures and erasure it still leads
to the optimum of those who are there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord
from hypothesis import given, settings
from hypothesis import strategies as st

from fedvarp import CheckpointError
from fedvarp.flower import MIFA, ClusterFedVARP, FedVARP, FedVARPMixed, Scaffold
from fedvarp.flower.forgetting import forget_client
from flower.centres import centres_grid, optimum, train, zeros
from flower.in_process import InProcessGrid
from flower.small_federation import table

QUIET: dict[str, Any] = {"fraction_evaluate": 0.0, "clip_updates": None}
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["killed", "gone", "back"]), st.integers(0, 3)),
        st.tuples(st.sampled_from(["server", "round"]), st.just(0)),
    ),
    max_size=8,
)


class Nodes:
    """Four SuperNodes without keys: each has a new id whenever it is started."""

    def __init__(self, grid: InProcessGrid) -> None:
        self.grid, self.next_id = grid, 1000
        self.at = {number: 100 + number for number in range(4)}

    def stop(self, number: int) -> None:
        if number in self.at and len(self.at) > 2:
            self.grid.disconnect(self.at.pop(number))

    def start(self, number: int) -> None:
        if number not in self.at:
            self.next_id += 1
            self.at[number] = self.next_id
            self.grid.connect(self.next_id, {"partition-id": number})


@pytest.mark.parametrize(("kind", "weighting"), [(FedVARP, "examples"), (MIFA, "uniform")])
@given(events=EVENTS)
@settings(max_examples=10, deadline=None)
def test_after_any_restarts_the_run_reaches_the_fixed_point_of_fedavg(
    kind: Any, weighting: str, events: list[tuple[str, int]], tmp_path_factory: Any
) -> None:
    """Clients say nothing of who they are; from the last event on all of them take part."""
    folder = tmp_path_factory.mktemp("state")
    nodes, round = Nodes(centres_grid()), 0

    def a_strategy() -> Any:
        made = kind(checkpoint=folder, weighting=weighting, **QUIET)
        made.begin(zeros())
        return made

    strategy = a_strategy()

    def one_round() -> None:
        nonlocal round
        round += 1
        messages = strategy.configure_train(round, strategy.arrays, ConfigRecord(), nodes.grid)
        strategy.aggregate_train(round, nodes.grid.send_and_receive(messages))

    for what, number in events:
        if what == "killed":
            nodes.stop(number)
            nodes.start(number)
        elif what == "gone":
            nodes.stop(number)
        elif what == "back":
            nodes.start(number)
        elif what == "server":
            strategy._begun.commit({})
            strategy.close()
            strategy = a_strategy()
        one_round()
    for number in range(4):
        nodes.start(number)
    for _ in range(20):  # each takes half of the way that is left
        one_round()
    strategy.close()
    assert strategy.arrays["w"].numpy() == pytest.approx(optimum([0, 1, 2, 3], weighting), abs=1e-4)
    assert strategy._rounds.rows.num_clients == 4


def test_a_row_leaves_with_its_node_and_comes_back_with_it() -> None:
    grid = centres_grid()
    strategy = FedVARP(weighting="uniform", **QUIET)
    train(strategy, grid, 3)
    rows = table(strategy).get(torch.arange(4))
    node = grid.nodes.pop(102)
    strategy.configure_train(4, strategy.arrays, ConfigRecord(), grid)
    assert strategy._rounds.rows.num_clients == 3
    others = [client.row for client in strategy.clients if client.node != 102]
    torch.testing.assert_close(table(strategy).mean(), rows[others].mean(0))
    grid.nodes[102] = node
    strategy.configure_train(4, strategy.arrays, ConfigRecord(), grid)
    torch.testing.assert_close(table(strategy).mean(), rows.mean(0))
    assert strategy._rounds.rows.num_clients == 4


@pytest.mark.parametrize("kind", [FedVARP, MIFA])
def test_a_run_that_goes_on_under_new_node_ids_begins_with_an_empty_table(
    kind: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(kind(checkpoint=tmp_path, **QUIET), centres_grid(), 3)
    again = InProcessGrid(centres_grid().app)
    for number in range(4):
        again.connect(900 + number, {"partition-id": number})
    strategy = kind(checkpoint=tmp_path, **QUIET)
    strategy.begin(zeros())
    strategy.configure_train(4, strategy.arrays, ConfigRecord(), again)
    assert not table(strategy).get(torch.arange(table(strategy).num_clients)).any()
    assert not table(strategy).mean().any()
    assert "4 clients that do not say who they are" in caplog.text
    assert "with a table of 0 rows" in caplog.text
    strategy.close()
    end = train(kind(checkpoint=tmp_path, **QUIET), again, 25)
    assert end == pytest.approx(optimum([0, 1, 2, 3], "examples"), abs=1e-4)


def test_rows_of_nodes_that_are_still_there_survive_a_restart_of_the_server(tmp_path: Path) -> None:
    grid = centres_grid()
    settings = {"checkpoint": tmp_path, "clients_per_round": 2, **QUIET}
    whole = FedVARP(clients_per_round=2, **QUIET)
    train(whole, grid, 8)
    train(FedVARP(**settings), grid, 5)
    pieces = FedVARP(**settings)
    train(pieces, grid, 8)
    assert pieces.server.w.equal(whole.server.w)


@pytest.mark.parametrize("kind", [FedVARP, MIFA, Scaffold, ClusterFedVARP, FedVARPMixed])
def test_a_client_that_left_for_good_stops_pushing_once_it_is_forgotten(kind: Any) -> None:
    """Client 3 leaves after round 3; the others' optimum is another than that of all four."""
    clusters = {"clusters": lambda name: name} if kind in (ClusterFedVARP, FedVARPMixed) else {}
    grid = centres_grid(named=True, reported={"num-steps": 1.0, "client-lr": 0.5})

    def leave(round: int, arrays: object) -> None:
        if round == 3:
            grid.disconnect(103)
            strategy.forget("3")

    strategy = kind(min_available_nodes=3, **clusters, **QUIET)
    end = train(strategy, grid, 30, evaluate_fn=leave)
    assert end == pytest.approx(optimum([0, 1, 2], "examples"), abs=1e-3)
    assert strategy._rounds.rows.num_clients == 3
    with pytest.raises(ValueError, match=r"no client '3'.*3 are known: '0', '1', '2'"):
        strategy.forget("3")


def test_rows_that_are_too_old_no_longer_count(tmp_path: Path) -> None:
    """Client 3 leaves after round 3 and nobody says so: in round 8 its row is 5 rounds old."""
    grid = centres_grid(named=True)

    def leave(round: int, arrays: object) -> None:
        if round == 3:
            grid.disconnect(103)
        if round > 0:
            client = strategy.clients.named("3")
            assert client is not None
            row = table(strategy).get(torch.tensor([client.row]))
            assert bool(row.any()) == (round <= 7)

    strategy = FedVARP(max_row_age=4, checkpoint=tmp_path, min_available_nodes=3, **QUIET)
    end = train(strategy, grid, 42, evaluate_fn=leave)
    assert end == pytest.approx(optimum([0, 1, 2], "examples"), abs=1e-3)
    grid.connect(999, {"partition-id": 3})
    back = FedVARP(max_row_age=4, checkpoint=tmp_path, min_available_nodes=3, **QUIET)
    assert train(back, grid, 62) == pytest.approx(optimum([0, 1, 2, 3], "examples"), abs=1e-3)


@pytest.mark.parametrize("kind", [FedVARP, ClusterFedVARP, FedVARPMixed])
def test_a_client_is_erased_from_a_folder_and_its_file(kind: Any, tmp_path: Path) -> None:
    """Its name and the bytes of its row are nowhere on disk; the others' rows are as they were."""
    clusters = {"clusters": lambda name: f"c{name}"} if kind is not FedVARP else {}
    grid = centres_grid(named=True)
    grid.connect(103, {"partition-id": 7})
    settings = {"checkpoint": tmp_path, "min_available_nodes": 3, **clusters, **QUIET}
    before = kind(**settings)
    train(before, grid, 2)
    rows = table(before).get(torch.arange(4))
    client = before.clients.named("7")
    assert client is not None
    mark = rows[client.row].numpy().tobytes()
    file = tmp_path / "data.mdb"
    assert mark in file.read_bytes()
    with pytest.raises(CheckpointError, match=r"no client 'nobody'.*4 are known"):
        forget_client(tmp_path, "nobody")
    forget_client(tmp_path, "7")
    left = file.read_bytes()
    assert mark not in left
    assert b'"7"' not in left
    grid.disconnect(103)
    after = kind(**settings)
    after.begin(zeros())
    after._begun.look_around(after.clients.look(grid.nodes))
    assert sorted(c.name for c in after.clients) == ["0", "1", "2"]
    after._rounds.rows.count(after.clients.look(grid.nodes))
    found = torch.stack([table(after).get(torch.tensor([c.row]))[0] for c in after.clients])
    expected = torch.stack([rows[c.row] for c in before.clients if c.name != "7"])
    assert torch.equal(found, expected)
    sizes = torch.tensor([1.0, 2.0, 3.0])
    torch.testing.assert_close(table(after).mean(), sizes @ expected / sizes.sum())
    after.close()
    end = train(kind(**settings), grid, 25)
    assert end == pytest.approx(optimum([0, 1, 2], "examples"), abs=1e-3)


def test_a_running_strategy_erases_a_client_from_its_file_at_once(tmp_path: Path) -> None:
    grid = centres_grid(named=True)
    strategy = FedVARP(checkpoint=tmp_path, **QUIET)
    strategy.begin(zeros())
    for t in (1, 2):
        messages = strategy.configure_train(t, strategy.arrays, ConfigRecord(), grid)
        strategy.aggregate_train(t, grid.send_and_receive(messages))
    strategy._begun.commit({})
    client = strategy.clients.named("2")
    assert client is not None
    mark = table(strategy).get(torch.tensor([client.row])).numpy().tobytes()
    assert mark in (tmp_path / "data.mdb").read_bytes()
    strategy.forget("2")
    assert mark not in (tmp_path / "data.mdb").read_bytes()
    assert not table(strategy).get(torch.tensor([client.row])).any()
    messages = strategy.configure_train(3, strategy.arrays, ConfigRecord(), grid)
    strategy.aggregate_train(3, grid.send_and_receive(messages))
    again = strategy.clients.named("2")
    assert again is not None, "it was still running, and is a new client"
    assert again.last_round == 3
    strategy.close()
    with pytest.raises(CheckpointError, match=r"run is over.*fedvarp flower forget .* 2$"):
        strategy.forget("2")
    assert strategy.clients.named("2") is not None, "nothing was changed"
