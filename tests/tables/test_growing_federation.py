"""What only a federation asks of the core: late replies, clusters that grow."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedvarp import (
    MIFA,
    Aggregator,
    Checkpoint,
    ClusteredTable,
    FedAvg,
    FedVARP,
    MemoryTable,
    RoundUpdates,
    Scaffold,
    Server,
    ServerSGD,
)


def updates(clients: list[int], values: list[float]) -> RoundUpdates:
    ones = torch.ones(len(clients), dtype=torch.int64)
    deltas = torch.tensor(values)[:, None].repeat(1, 2)
    return RoundUpdates(torch.tensor(clients), deltas, ones, ones, scale=1.0)


@pytest.mark.parametrize("kind", [FedVARP, MIFA])
def test_late_replies_refresh_rows_and_move_nothing_else(
    kind: type[FedVARP] | type[MIFA],
) -> None:
    server = Server(torch.zeros(2), kind(MemoryTable(4, 2)), ServerSGD())
    server.receive(updates([0], [1.0]))
    w, round_ = server.w.clone(), server.round
    report = server.receive_late(updates([0, 1, 2], [3.0, float("nan"), 5.0]))
    assert report.accepted == (0, 2)
    assert list(report.refused) == [1]
    assert server.w.equal(w)
    assert server.round == round_ == report.round
    states = server.aggregator.table
    assert states is not None
    assert states.get(torch.arange(4))[:, 0].tolist() == [3, 0, 5, 0]
    assert states.mean().tolist() == [2, 2]


@pytest.mark.parametrize("aggregator", [FedAvg(), Scaffold(MemoryTable(4, 2))])
def test_some_algorithms_have_no_use_for_late_replies(aggregator: Aggregator) -> None:
    server = Server(torch.zeros(2), aggregator, ServerSGD())
    assert server.receive_late(updates([0], [1.0])).accepted == ()
    assert aggregator.table is None or not aggregator.table.mean().any()


def test_clients_move_between_clusters_and_new_clusters_appear() -> None:
    states = ClusteredTable(torch.tensor([0, 0, 0]), MemoryTable(1, 1))
    states.put(torch.tensor([0]), torch.tensor([[3.0]]))
    states.move(torch.tensor([1, 2]), torch.tensor([2, 1]))
    assert states.rows.num_clients == 3
    assert states.get(torch.arange(3)).flatten().tolist() == [3, 0, 0]
    assert states.mean().tolist() == [1]
    states.put(torch.tensor([1]), torch.tensor([[6.0]]))
    states.move(torch.tensor([2]), torch.tensor([2]))
    assert states.mean().tolist() == [5]
    with pytest.raises(IndexError, match="Client 3"):
        states.move(torch.tensor([3]), torch.tensor([0]))


def test_entries_accumulate_and_are_of_one_transaction_with_the_round(tmp_path: Path) -> None:
    with Checkpoint(tmp_path) as checkpoint:
        server = Server(torch.zeros(2), FedAvg(), ServerSGD())
        assert checkpoint.entries() == {}
        checkpoint.commit(server, entries={"a": {"x": 1}, "b": {"x": 2}})
        checkpoint.commit(server, entries={"b": {"x": 3}, "c": {"x": [4.5]}})
    with Checkpoint(tmp_path) as checkpoint:
        assert checkpoint.entries() == {"a": {"x": 1}, "b": {"x": 3}, "c": {"x": [4.5]}}


def test_clients_who_never_wrote_a_row_may_go_again() -> None:
    """Rows 3 and 5 over four clients, then over two: the mean is 2, then 4."""
    table = MemoryTable(num_clients=4, dim=1)
    table.put(torch.tensor([0, 1]), torch.tensor([[3.0], [5.0]]))
    assert table.mean().tolist() == [2]
    table.drop_clients(2)
    assert (table.num_clients, table.mean().tolist()) == (2, [4])
    with pytest.raises(ValueError, match="has written a row"):
        table.drop_clients(1)
    with pytest.raises(ValueError, match="one stay"):
        table.drop_clients(2)
    with pytest.raises(IndexError):
        table.get(torch.tensor([2]))


def test_clients_that_share_a_row_may_go_and_it_weighs_less() -> None:
    """Rows 2 and 8 for clusters of two and three: 28 / 5; then of two and one: 12 / 3."""
    shared = ClusteredTable(torch.tensor([0, 0, 1, 1, 1]), MemoryTable(num_clients=2, dim=1))
    shared.put(torch.tensor([0, 2]), torch.tensor([[2.0], [8.0]]))
    assert shared.mean().tolist() == pytest.approx([28 / 5])
    shared.drop_clients(2)
    assert (shared.num_clients, shared.mean().tolist()) == (3, [4])
    with pytest.raises(ValueError, match="one stay"):
        shared.drop_clients(3)
