"""Rows on disk: alone, beside a checkpoint, and after a write that failed."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
import torch

import registry
from fedvarp import (
    Checkpoint,
    CheckpointError,
    ClusteredTable,
    ClusterFedVARP,
    DiskTable,
    FedVARP,
    MemoryTable,
    RoundUpdates,
    Server,
    ServerMomentum,
    ServerSGD,
    StoreError,
    stream,
)
from fedvarp.tables.store import Store

N, D = 5, 4


def row(seed: int, dim: int = D) -> torch.Tensor:
    return torch.randn(1, dim, generator=stream(seed, "row"))


def receive(server: Server, client: int, seed: int, size: float = 1.0) -> None:
    one = torch.tensor([1])
    delta = size * row(seed, len(server.w))
    server.receive(RoundUpdates(torch.tensor([client]), delta, one, one, scale=0.5))


def everyone(server: Server) -> torch.Tensor:
    table = server.aggregator.table
    assert table is not None
    return table.get(torch.arange(table.num_clients))


@registry.every_codec
def test_a_table_alone_is_found_again(tmp_path: Path, codec: str) -> None:
    weights = torch.arange(1.0, N + 1)
    with DiskTable(tmp_path, N, D, codec, client_weights=weights) as table:
        for t in range(8):
            rows = torch.cat([row(t), row(t + 100)]).to(table.dtype)
            table.put(torch.tensor([t % 3, 4]), rows)
        mean, rows = table.mean(), table.get(torch.arange(N))
    with DiskTable(tmp_path, N, D, codec, client_weights=weights) as table:
        assert table.num_rows == 4
        assert torch.equal(table.mean(), mean)
        assert torch.equal(table.get(torch.arange(N)), rows)


def test_a_table_alone_keeps_the_rows_of_a_failed_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Store, batch: object, emptied: object) -> None:
        raise StoreError("no room")

    with DiskTable(tmp_path, N, D) as table:
        with monkeypatch.context() as patch:
            patch.setattr(Store, "write", full)
            with pytest.raises(StoreError, match="no room"):
                table.put(torch.tensor([0]), row(0))
        table.put(torch.tensor([1]), row(1))
    with DiskTable(tmp_path, N, D) as table:
        rows = table.get(torch.arange(N))
        assert torch.equal(rows[:2], torch.cat([row(0), row(1)]))
        torch.testing.assert_close(table.mean(), rows.mean(0))


@pytest.mark.parametrize(
    ("num_clients", "dim", "dtype"), [(N + 1, D, "float32"), (N, D + 1, "float32"), (N, D, "int8")]
)
def test_a_table_of_something_else_is_not_opened(
    tmp_path: Path, num_clients: int, dim: int, dtype: str
) -> None:
    with DiskTable(tmp_path, N, D) as table:
        table.put(torch.tensor([0]), row(0))
    before = (tmp_path / "data.mdb").read_bytes()
    with pytest.raises(StoreError, match="was made for"):
        DiskTable(tmp_path, num_clients, dim, dtype)
    assert (tmp_path / "data.mdb").read_bytes() == before
    with DiskTable(tmp_path, N, D) as table:  # and the folder was given back
        assert table.num_rows == 1


def test_memory_lets_go_of_rows_once_committed(tmp_path: Path) -> None:
    with DiskTable(tmp_path, N, D) as table, Checkpoint(tmp_path) as checkpoint:
        server = Server(torch.zeros(D), FedVARP(table), ServerSGD())
        receive(server, 0, seed=0)
        assert table._waiting
        checkpoint.commit(server)
        assert not table._waiting
        receive(server, 0, seed=1)
        receive(server, 1, seed=2)
        assert table.num_rows == 2  # one waits over its old self, one is new


def test_a_table_saves_itself_again_once_the_checkpoint_is_closed(tmp_path: Path) -> None:
    with DiskTable(tmp_path, N, D) as table:
        Checkpoint(tmp_path).close()
        table.put(torch.tensor([2]), row(0))
    with DiskTable(tmp_path, N, D) as table:
        assert torch.equal(table.get(torch.tensor([2])), row(0))


@registry.every_place
@pytest.mark.parametrize("failing", [1, 2])
def test_a_failed_commit_loses_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, failing: int
) -> None:
    write = Store.write
    table = registry.rows_in(place, tmp_path, N, D, "float32")
    with Checkpoint(tmp_path, fsync=False) as checkpoint:
        server = Server(torch.zeros(D), FedVARP(table), ServerSGD())
        for t in range(4):
            receive(server, t, seed=t)

            def flaky(
                self: Store,
                batch: dict[tuple[str, str], torch.Tensor],
                emptied: list[str],
                t: int = t,
            ) -> None:
                if t == failing:
                    raise StoreError("no room")
                write(self, batch, emptied)

            monkeypatch.setattr(Store, "write", flaky)
            if t == failing:
                with pytest.raises(StoreError, match="no room"):
                    checkpoint.commit(server)
            else:
                checkpoint.commit(server)
    registry.close(table)
    again = registry.rows_in(place, tmp_path, N, D, "float32")
    with Checkpoint(tmp_path, fsync=False) as checkpoint:
        resumed = Server(torch.zeros(D), FedVARP(again), ServerSGD())
        checkpoint.restore(resumed)
        assert torch.equal(everyone(resumed)[:4], torch.cat([row(t) for t in range(4)]))
    registry.close(again)
    assert torch.equal(resumed.w, server.w)


def test_a_folder_with_rows_of_another_table_ends_with_those_of_this_one(tmp_path: Path) -> None:
    with DiskTable(tmp_path, N, D) as table:
        table.put(torch.tensor([3]), row(0))
    server = Server(torch.zeros(D), FedVARP(MemoryTable(N, D)), ServerSGD())
    with Checkpoint(tmp_path) as checkpoint:
        receive(server, 1, seed=1)
        checkpoint.commit(server)
        assert checkpoint.store.keys("rows/rows") == ["1"]


def test_only_the_server_whose_run_it_is_may_commit(tmp_path: Path) -> None:
    def fresh() -> Server:
        return Server(torch.zeros(D), FedVARP(MemoryTable(N, D)), ServerSGD())

    with Checkpoint(tmp_path) as checkpoint:
        first, second = fresh(), fresh()
        receive(first, 0, seed=0)
        checkpoint.commit(first)
        receive(second, 1, seed=1)
        with pytest.raises(CheckpointError, match="would overwrite"):
            checkpoint.commit(second)
        assert checkpoint.restore(second)
        checkpoint.commit(second)


def test_rows_of_a_saved_round_are_not_changed_without_its_checkpoint(tmp_path: Path) -> None:
    with DiskTable(tmp_path, N, D) as table:
        with Checkpoint(tmp_path) as checkpoint:
            server = Server(torch.zeros(D), FedVARP(table), ServerSGD())
            receive(server, 0, seed=0)
            checkpoint.commit(server)
            receive(server, 0, seed=1)
        with pytest.raises(StoreError, match="Open the Checkpoint"):
            table.put(torch.tensor([1]), row(2))
    with DiskTable(tmp_path, N, D) as table:
        assert torch.equal(table.get(torch.arange(2)), torch.cat([row(0), torch.zeros(1, D)]))


def test_a_table_is_open_once(tmp_path: Path) -> None:
    with (
        DiskTable(tmp_path, N, D),
        DiskTable(tmp_path, N, D, name="other"),
        pytest.raises(StoreError, match="open already in this process"),
    ):
        DiskTable(tmp_path, N, D)
    DiskTable(tmp_path, N, D).close()


def test_closing_twice_is_closing_once(tmp_path: Path) -> None:
    with DiskTable(tmp_path, N, D) as table:
        checkpoint = Checkpoint(tmp_path)
        checkpoint.close()
        checkpoint.close()
        table.put(torch.tensor([0]), row(0))
    table.close()


def test_whoever_asks_for_fsync_gets_it(tmp_path: Path) -> None:
    with DiskTable(tmp_path, N, D, fsync=False) as table:
        table.put(torch.tensor([0]), row(0))
        assert not table.store._environment.flags()["sync"]
        with Checkpoint(tmp_path):
            assert table.store._environment.flags()["sync"]
            assert torch.equal(table.get(torch.tensor([0])), row(0))


def test_a_closed_table_says_so(tmp_path: Path) -> None:
    table = DiskTable(tmp_path, 3, 2)
    table.put(torch.tensor([1]), torch.ones(1, 2))
    table.close()
    with pytest.raises(StoreError, match=r"is closed.*open a DiskTable"):
        table.get(torch.tensor([1]))


def test_a_folder_may_be_closed_by_another_thread(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    closing = threading.Thread(target=checkpoint.close)
    closing.start()
    closing.join()
    Checkpoint(tmp_path).close()


def test_tensors_without_numbers_come_back(tmp_path: Path) -> None:
    with Checkpoint(tmp_path) as checkpoint:
        server = Server(torch.zeros(D), FedVARP(MemoryTable(N, D)), ServerSGD())
        checkpoint.commit(server, tensors={"nothing": torch.empty(0, 3)})
        assert checkpoint.tensors()["nothing"].shape == (0, 3)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_may_not_write(tmp_path: Path) -> None:
    with DiskTable(tmp_path, N, D) as table:
        child = os.fork()
        if child == 0:
            try:
                table.put(torch.tensor([0]), row(0))
            except StoreError as error:
                os._exit(42 if "forked" in str(error) else 1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42


def test_a_second_folder_gets_the_whole_table(tmp_path: Path) -> None:
    """The first commit into a folder cannot rely on what was saved elsewhere."""
    server = Server(torch.zeros(D), FedVARP(MemoryTable(N, D)), ServerSGD())
    for folder, client in (("a", 0), ("b", 1)):
        with Checkpoint(tmp_path / folder) as checkpoint:
            receive(server, client, seed=client)
            checkpoint.commit(server)
    again = Server(torch.zeros(D), FedVARP(MemoryTable(N, D)), ServerSGD())
    with Checkpoint(tmp_path / "b") as checkpoint:
        checkpoint.restore(again)
    assert torch.equal(everyone(again), everyone(server))


@registry.every_place
def test_restoring_takes_back_what_was_not_committed(tmp_path: Path, place: str) -> None:
    table = registry.rows_in(place, tmp_path, N, D, "float32")
    with Checkpoint(tmp_path) as checkpoint:
        server = Server(torch.zeros(D), FedVARP(table), ServerSGD())
        receive(server, 0, seed=0)
        checkpoint.commit(server)
        w, rows, mean = server.w.clone(), everyone(server), table.mean()
        receive(server, 0, seed=1)
        receive(server, 2, seed=2)
        checkpoint.restore(server)
        assert server.round == 1
        assert torch.equal(server.w, w)
        assert torch.equal(everyone(server), rows)
        assert torch.equal(table.mean(), mean)
        checkpoint.commit(server)
        assert checkpoint.store.keys("rows/rows") == ["0"]
    registry.close(table)


def test_restoring_refuses_rows_elsewhere(tmp_path: Path) -> None:
    with DiskTable(tmp_path / "a", N, D) as table, Checkpoint(tmp_path / "a") as checkpoint:
        server = Server(torch.zeros(D), FedVARP(table), ServerSGD())
        receive(server, 0, seed=0)
        checkpoint.commit(server)
    with (
        DiskTable(tmp_path / "b", N, D) as table,
        Checkpoint(tmp_path / "a") as checkpoint,
        pytest.raises(CheckpointError, match="same path"),
    ):
        checkpoint.restore(Server(torch.zeros(D), FedVARP(table), ServerSGD()))


def test_a_damaged_row_is_noticed_and_the_server_stays_as_it_is(tmp_path: Path) -> None:
    dim = 2000

    def fresh() -> Server:
        return Server(torch.zeros(dim), FedVARP(MemoryTable(N, dim)), ServerMomentum())

    with Checkpoint(tmp_path) as checkpoint:
        server = fresh()
        for t in range(2):
            receive(server, t, seed=t)
            checkpoint.commit(server)
    file = tmp_path / "data.mdb"
    data = bytearray(file.read_bytes())
    at = data.find(row(0, dim).numpy().tobytes())
    assert at > 0
    while at > 0:  # pages that are free again may hold it too
        data[at + 3001] ^= 0x10
        at = data.find(row(0, dim).numpy().tobytes())
    file.write_bytes(bytes(data))
    other = fresh()
    receive(other, 4, seed=9)
    w, rows, velocity = other.w.clone(), everyone(other), other.optimizer.state_dict()["velocity"]
    before = velocity.clone()
    damaged = pytest.raises(StoreError, match="checksum of rows/rows/0")
    with damaged, Checkpoint(tmp_path) as checkpoint:
        checkpoint.restore(other)
    assert other.round == 1
    assert torch.equal(other.w, w)
    assert torch.equal(everyone(other), rows)
    assert torch.equal(other.optimizer.state_dict()["velocity"], before)


def test_a_commit_right_after_a_client_joined_a_cluster(tmp_path: Path) -> None:
    def server(clusters: list[int]) -> Server:
        y = ClusteredTable(torch.tensor(clusters), MemoryTable(2, D))
        return Server(torch.zeros(D), ClusterFedVARP(y), ServerSGD())

    with Checkpoint(tmp_path) as checkpoint:
        first = server([0, 1, 1])
        receive(first, 0, seed=0)
        receive(first, 1, seed=1)
        table = first.aggregator.table
        assert isinstance(table, ClusteredTable)
        table.add_clients(torch.tensor([0, 0, 0]))
        checkpoint.commit(first)
        again = server([0, 1, 1, 0, 0, 0])
        assert checkpoint.restore(again)
    restored = again.aggregator.table
    assert restored is not None
    torch.testing.assert_close(restored.mean(), everyone(again).mean(0))


@registry.every_place
def test_a_healed_sum_is_resumed_bit_for_bit(tmp_path: Path, place: str) -> None:
    """An outlier comes in one sitting and goes in another: both heal at the same moment."""

    def sitting(folder: Path, start: int, stop: int) -> torch.Tensor:
        table = registry.rows_in(place, folder, N, D, "float32")
        with Checkpoint(folder, fsync=False) as checkpoint:
            server = Server(torch.zeros(D), FedVARP(table), ServerSGD(0.01))
            checkpoint.restore(server)
            for t in range(start, stop):
                receive(server, t % N, seed=t, size=1e17 if t == 2 else 1.0)
                checkpoint.commit(server)
            found = torch.cat([server.w, table.mean(), everyone(server).flatten()])
        registry.close(table)
        return found

    whole = sitting(tmp_path / "whole", 0, 12)
    for t in range(12):
        pieces = sitting(tmp_path / "pieces", t, t + 1)
    assert torch.equal(pieces, whole)
