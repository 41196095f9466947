"""Tables that hold at most so many rows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import fedvarp
from fedvarp import (
    Checkpoint,
    DiskTable,
    FedVARP,
    LocalSGD,
    MemoryTable,
    Server,
    ServerSGD,
    Table,
)
from fedvarp.data import digits
from fedvarp.flower.strategies import FedVARP as FlowerFedVARP
from fedvarp.models import LogisticRegression
from fedvarp.tables import RowTable
from quadratics import Quadratics
from registry import every_codec, every_place
from rows import assert_law, everyone, rows_like

N, D, R = 9, 300, 4


def table_in(place: str, folder: Path, codec: str = "float32", max_rows: int = R) -> RowTable:
    if place == "memory":
        return MemoryTable(N, D, codec, max_rows=max_rows)
    return DiskTable(folder, N, D, codec, fsync=False, max_rows=max_rows)


def newest(puts: list[list[int]], max_rows: int) -> set[int]:
    """Whose rows a table holds that drops the one written longest ago: by a plain list."""
    order: list[int] = []
    for clients in puts:
        for client in clients:
            order = [other for other in order if other != client] + [client]
    return set(order[-max_rows:])


@every_codec
@every_place
@settings(max_examples=10, deadline=None)
@given(puts=st.lists(st.lists(st.integers(0, N - 1), unique=True, max_size=N), max_size=8))
def test_the_newest_rows_stay_and_the_mean_is_theirs(
    tmp_path_factory: pytest.TempPathFactory, place: str, codec: str, puts: list[list[int]]
) -> None:
    table = table_in(place, tmp_path_factory.mktemp("rows"), codec)
    last: dict[int, Tensor] = {}
    for seed, clients in enumerate(puts):
        rows = rows_like(table, len(clients), seed)
        table.put(torch.tensor(clients, dtype=torch.int64), rows)
        last |= dict(zip(clients, table.get(torch.tensor(clients, dtype=torch.int64)), strict=True))
        assert_law(table)
    kept = newest(puts, R)
    assert set(table.rows_written()) == kept
    assert table.num_rows == len(kept)
    found = everyone(table)
    for client in range(N):
        expected = last[client] if client in kept else torch.zeros_like(found[client])
        assert torch.equal(found[client], expected)
    table.close()


@every_place
def test_an_enormous_row_that_is_dropped_takes_nothing_with_it(tmp_path: Path, place: str) -> None:
    """1e30 + 1 − 1e30 is 0 in float64: the sum has to be made afresh."""
    table = table_in(place, tmp_path)
    table.put(torch.tensor([0]), rows_like(table, 1, seed=0, size=1e30))
    table.put(torch.tensor([1, 2, 3]), rows_like(table, 3, seed=1))
    table.put(torch.tensor([4]), rows_like(table, 1, seed=2))
    assert_law(table)
    assert 0 not in set(table.rows_written())
    table.close()


def test_memory_for_dropped_rows_is_used_again() -> None:
    table = MemoryTable(10**8, D, max_rows=R)
    for first in range(0, 4000, 2):
        table.put(torch.tensor([first, first + 1]), rows_like(table, 2, seed=first))
    places = {
        row.data_ptr() for row in (table._find(i) for i in table.rows_written()) if row is not None
    }
    assert len(places) == table.num_rows == R
    assert len(table._free) <= 2
    assert table.num_bytes == R * D * 4 + 8 * D


@every_place
def test_a_run_in_many_sittings_drops_the_same_rows(tmp_path: Path, place: str) -> None:
    problem = Quadratics.make(N, 6)

    def sitting(folder: Path, until: int) -> tuple[Tensor, Tensor, set[int]]:
        rows = (
            MemoryTable(N, 6, "float64", max_rows=R)
            if place == "memory"
            else DiskTable(folder, N, 6, "float64", fsync=False, max_rows=R)
        )
        with Checkpoint(folder, fsync=False) as checkpoint:
            server = Server(torch.zeros(6).double(), FedVARP(rows), ServerSGD())
            checkpoint.restore(server)
            while server.round < until:
                server.receive(problem.train(server.broadcast(problem.cohort(server.round, 3))))
                checkpoint.commit(server)
            kept = set(rows.rows_written())
            found = server.w, rows.get(torch.arange(N)), kept
        rows.close()
        return found

    whole = sitting(tmp_path / "whole", 12)
    for until in range(1, 13):
        pieces = sitting(tmp_path / "pieces", until)
    assert torch.equal(pieces[0], whole[0])
    assert torch.equal(pieces[1], whole[1])
    assert pieces[2] == whole[2]
    assert len(whole[2]) == R


def test_a_bound_that_is_never_reached_changes_no_bit() -> None:
    problem = Quadratics.make(N, 6)
    models = []
    for max_rows in (None, N):
        table = MemoryTable(N, 6, "float64", max_rows=max_rows)
        server = Server(torch.zeros(6).double(), FedVARP(table), ServerSGD())
        for t in range(20):
            server.receive(problem.train(server.broadcast(problem.cohort(t, 3))))
        models.append(server.w)
    assert torch.equal(*models)


@every_place
def test_of_a_cohort_beyond_the_bound_v_is_that_of_all_and_the_last_stay(
    tmp_path: Path, place: str
) -> None:
    table, free = table_in(place, tmp_path), MemoryTable(N, D)
    for clients in (torch.arange(3), torch.arange(1, 7)):
        rows, a = rows_like(table, len(clients), seed=len(clients)), torch.rand(len(clients))
        v, expected = (t.exchange(clients, rows, a, 1.0) for t in (table, free))
        assert torch.equal(v, expected)
    assert set(table.rows_written()) == {3, 4, 5, 6}
    assert_law(table)
    table.close()


def test_a_bound_below_a_cohort_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"max_rows = 2 is less than a cohort of 3"):
        fedvarp.simulate(
            digits(),
            LogisticRegression(64, 10),
            local_sgd=LocalSGD(lr=0.1, batch_size=8, epochs=1),
            rounds=1,
            clients_per_round=3,
            table=Table(max_rows=2),
            recording=tmp_path / "run",
        )
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match=r"max_rows=2 is less than a cohort of 3"):
        FlowerFedVARP(max_rows=2, clients_per_round=3)
    with pytest.raises(ValueError, match=r"max_rows=1 is less than a cohort of 2"):
        FlowerFedVARP(max_rows=1)  # two nodes train at the least
    FlowerFedVARP(max_rows=9, num_clients=100, fraction_train=0.1)  # of those who are online
