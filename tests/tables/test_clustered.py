"""Clients that share a row: who shares which, and how that changes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import registry
from fedvarp import ClusteredTable, MemoryTable
from rows import assert_law, everyone, rows_like

N, D = 7, 300  # 300 numbers: one whole block of the int8 codec and a part of one


def test_each_cluster_gets_its_own_rows() -> None:
    """Clients in order, clusters out of order: a cycle of three, which is not its own inverse."""
    rows = torch.tensor([[10.0], [20.0], [30.0]])
    table = ClusteredTable(torch.tensor([1, 2, 0]), MemoryTable(3, 1))
    table.put(torch.arange(3), rows)
    assert torch.equal(everyone(table), rows)
    a = torch.tensor([0.5, 0.25, 0.125], dtype=torch.float64)
    v = table.exchange(torch.arange(3), 10 * rows, a, beta=1.0)
    assert v.item() == 20 + 0.5 * 90 + 0.25 * 180 + 0.125 * 270  # 20 is the mean row
    assert torch.equal(everyone(table), 10 * rows)


def test_weights_of_another_number_of_clients_are_refused() -> None:
    with pytest.raises(ValueError, match=r"client_weights.*one number for each client"):
        ClusteredTable(torch.tensor([0, 1]), MemoryTable(2, D), torch.ones(3))


@pytest.mark.parametrize("clusters", [[0, 3], [-1, 0], []])
def test_clusters_outside_the_table_are_refused(clusters: list[int]) -> None:
    with pytest.raises(ValueError, match="cluster_of"):
        ClusteredTable(torch.tensor(clusters, dtype=torch.int64), MemoryTable(3, D))


def test_tables_keep_their_own_copy_of_clusters_and_weights() -> None:
    clusters, weights = torch.tensor([0, 0, 1]), torch.ones(3, dtype=torch.float64)
    shared = ClusteredTable(clusters, MemoryTable(2, D))
    plain = MemoryTable(3, D, client_weights=weights)
    clusters.fill_(1)
    weights.fill_(0.5)
    for table in (shared, plain):
        table.put(torch.arange(3), rows_like(table, 3, seed=0))
        assert_law(table)
    assert not torch.equal(everyone(shared)[0], everyone(shared)[2])


def test_clients_move_between_clusters_and_new_clusters_appear() -> None:
    table = ClusteredTable(torch.tensor([0, 0, 0]), MemoryTable(1, 1))
    table.put(torch.tensor([0]), torch.tensor([[3.0]]))
    table.move(torch.tensor([1, 2]), torch.tensor([2, 1]))
    assert table.rows.num_clients == 3
    assert table.get(torch.arange(3)).flatten().tolist() == [3, 0, 0]
    assert table.mean().tolist() == [1]
    table.put(torch.tensor([1]), torch.tensor([[6.0]]))
    table.move(torch.tensor([2]), torch.tensor([2]))
    assert table.mean().tolist() == [5]
    with pytest.raises(IndexError, match="Client 3"):
        table.move(torch.tensor([3]), torch.tensor([0]))


def test_clients_that_share_a_row_may_go_and_it_weighs_less() -> None:
    """Rows 2 and 8 for clusters of two and three: 28 / 5; then of two and one: 12 / 3."""
    shared = ClusteredTable(torch.tensor([0, 0, 1, 1, 1]), MemoryTable(num_clients=2, dim=1))
    shared.put(torch.tensor([0, 2]), torch.tensor([[2.0], [8.0]]))
    assert shared.mean().tolist() == pytest.approx([28 / 5])
    shared.drop_clients(2)
    assert (shared.num_clients, shared.mean().tolist()) == (3, [4])
    with pytest.raises(ValueError, match="one stay"):
        shared.drop_clients(3)


@registry.every_place
def test_a_put_right_after_a_client_joined_a_cluster(place: str, tmp_path: Path) -> None:
    """The rows weigh differently from then on, and nobody asked for the mean in between."""
    table = ClusteredTable(
        torch.tensor([0, 1, 1]), registry.rows_in(place, tmp_path, 2, D, "float32")
    )
    table.put(torch.arange(3), rows_like(table, 3, seed=0))
    table.add_clients(torch.tensor([0, 0, 0]))
    table.put(torch.tensor([2]), rows_like(table, 1, seed=3))
    torch.testing.assert_close(table.mean(), table.get(torch.arange(6)).mean(0))
    registry.close(table)
