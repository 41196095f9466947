"""Rows on disk: alone, beside a checkpoint, and after a write that failed."""

from __future__ import annotations

import os
import pickle
import threading
from pathlib import Path

import pytest
import torch

import registry
from fedvarp import (
    Checkpoint,
    CheckpointError,
    ClusteredTable,
    DiskTable,
    FedVARP,
    MemoryTable,
    RoundUpdates,
    Server,
    ServerMomentum,
    ServerSGD,
    StoreError,
    cluster_fedvarp,
    stream,
)
from fedvarp.tables.store import Store

N, D = 5, 4
every_place = pytest.mark.parametrize("place", registry.PLACES)


def row(seed: int, dim: int = D) -> torch.Tensor:
    return torch.randn(1, dim, generator=stream(seed, "row"))


def receive(server: Server, client: int, seed: int, size: float = 1.0) -> None:
    one = torch.tensor([1])
    delta = size * row(seed, len(server.w))
    server.receive(RoundUpdates(torch.tensor([client]), delta, one, one, scale=0.5))


def everyone(server: Server) -> torch.Tensor:
    states = server.aggregator.table
    assert states is not None
    return states.get(torch.arange(states.num_clients))


@pytest.mark.parametrize("codec", registry.CODEC_NAMES)
def test_a_table_alone_is_found_again(tmp_path: Path, codec: str) -> None:
    weights = torch.arange(1.0, N + 1)
    with DiskTable(tmp_path, N, D, codec, client_weights=weights) as states:
        for t in range(8):
            rows = torch.cat([row(t), row(t + 100)]).to(states.dtype)
            states.put(torch.tensor([t % 3, 4]), rows)
        mean, rows = states.mean(), states.get(torch.arange(N))
    with DiskTable(tmp_path, N, D, codec, client_weights=weights) as states:
        assert states.num_rows == 4
        assert torch.equal(states.mean(), mean)
        assert torch.equal(states.get(torch.arange(N)), rows)


def test_a_table_alone_keeps_the_rows_of_a_failed_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Store, batch: object, emptied: object) -> None:
        raise StoreError("no room")

    with DiskTable(tmp_path, N, D) as states:
        with monkeypatch.context() as patch:
            patch.setattr(Store, "write", full)
            with pytest.raises(StoreError, match="no room"):
                states.put(torch.tensor([0]), row(0))
        states.put(torch.tensor([1]), row(1))
    with DiskTable(tmp_path, N, D) as states:
        rows = states.get(torch.arange(N))
        assert torch.equal(rows[:2], torch.cat([row(0), row(1)]))
        torch.testing.assert_close(states.mean(), rows.mean(0))


@pytest.mark.parametrize(
    ("num_clients", "dim", "dtype"), [(N + 1, D, "float32"), (N, D + 1, "float32"), (N, D, "int8")]
)
def test_a_table_of_something_else_is_not_opened(
    tmp_path: Path, num_clients: int, dim: int, dtype: str
) -> None:
    with DiskTable(tmp_path, N, D) as states:
        states.put(torch.tensor([0]), row(0))
    before = (tmp_path / "data.mdb").read_bytes()
    with pytest.raises(StoreError, match="was made for"):
        DiskTable(tmp_path, num_clients, dim, dtype)
    assert (tmp_path / "data.mdb").read_bytes() == before
    with DiskTable(tmp_path, N, D) as states:  # and the folder was given back
        assert states.num_rows == 1


def test_memory_lets_go_of_rows_once_committed(tmp_path: Path) -> None:
    with DiskTable(tmp_path, N, D) as states, Checkpoint(tmp_path) as checkpoint:
        server = Server(torch.zeros(D), FedVARP(states), ServerSGD())
        receive(server, 0, seed=0)
        assert states._waiting
        checkpoint.commit(server)
        assert not states._waiting
        receive(server, 0, seed=1)
        receive(server, 1, seed=2)
        assert states.num_rows == 2  # one waits over its old self, one is new


def test_a_table_saves_itself_again_once_the_checkpoint_is_closed(tmp_path: Path) -> None:
    with DiskTable(tmp_path, N, D) as states:
        Checkpoint(tmp_path).close()
        states.put(torch.tensor([2]), row(0))
    with DiskTable(tmp_path, N, D) as states:
        assert torch.equal(states.get(torch.tensor([2])), row(0))


@every_place
@pytest.mark.parametrize("failing", [1, 2])
def test_a_failed_commit_loses_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, failing: int
) -> None:
    write = Store.write
    states = registry.rows_in(place, tmp_path, N, D, "float32")
    with Checkpoint(tmp_path, fsync=False) as checkpoint:
        server = Server(torch.zeros(D), FedVARP(states), ServerSGD())
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
    registry.close(states)
    again = registry.rows_in(place, tmp_path, N, D, "float32")
    with Checkpoint(tmp_path, fsync=False) as checkpoint:
        resumed = Server(torch.zeros(D), FedVARP(again), ServerSGD())
        checkpoint.restore(resumed)
        assert torch.equal(everyone(resumed)[:4], torch.cat([row(t) for t in range(4)]))
    registry.close(again)
    assert torch.equal(resumed.w, server.w)


def test_a_folder_with_rows_of_another_table_ends_with_those_of_this_one(tmp_path: Path) -> None:
    with DiskTable(tmp_path, N, D) as states:
        states.put(torch.tensor([3]), row(0))
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
    with DiskTable(tmp_path, N, D) as states:
        with Checkpoint(tmp_path) as checkpoint:
            server = Server(torch.zeros(D), FedVARP(states), ServerSGD())
            receive(server, 0, seed=0)
            checkpoint.commit(server)
            receive(server, 0, seed=1)
        with pytest.raises(StoreError, match="Open the Checkpoint"):
            states.put(torch.tensor([1]), row(2))
    with DiskTable(tmp_path, N, D) as states:
        assert torch.equal(states.get(torch.arange(2)), torch.cat([row(0), torch.zeros(1, D)]))


def test_a_table_is_open_once(tmp_path: Path) -> None:
    with (
        DiskTable(tmp_path, N, D),
        DiskTable(tmp_path, N, D, name="other"),
        pytest.raises(StoreError, match="open already in this process"),
    ):
        DiskTable(tmp_path, N, D)
    DiskTable(tmp_path, N, D).close()


def test_closing_twice_is_closing_once(tmp_path: Path) -> None:
    with DiskTable(tmp_path, N, D) as states:
        checkpoint = Checkpoint(tmp_path)
        checkpoint.close()
        checkpoint.close()
        states.put(torch.tensor([0]), row(0))
    states.close()


def test_whoever_asks_for_fsync_gets_it(tmp_path: Path) -> None:
    with DiskTable(tmp_path, N, D, fsync=False) as states:
        states.put(torch.tensor([0]), row(0))
        assert not states.store._environment.flags()["sync"]
        with Checkpoint(tmp_path):
            assert states.store._environment.flags()["sync"]
            assert torch.equal(states.get(torch.tensor([0])), row(0))


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


def test_two_words_that_changed_places_are_damage(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    numbers = torch.arange(1000, dtype=torch.int64)
    store.write({("state", "x"): numbers})
    store.close()
    file = tmp_path / "data.mdb"
    data = file.read_bytes()
    swapped = numbers.clone()
    swapped[[3, 700]] = swapped[[700, 3]]
    file.write_bytes(data.replace(numbers.numpy().tobytes(), swapped.numpy().tobytes()))
    store = Store.open(tmp_path)
    with pytest.raises(StoreError, match="checksum of state/x"):
        store.read("state", "x")
    store.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_may_not_write(tmp_path: Path) -> None:
    with DiskTable(tmp_path, N, D) as states:
        child = os.fork()
        if child == 0:
            try:
                states.put(torch.tensor([0]), row(0))
            except StoreError as error:
                os._exit(42 if "forked" in str(error) else 1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42


def test_pickled_rows_do_not_bring_their_slabs() -> None:
    """A row is 4 kB; a slab holds up to 16 MB of them."""
    states = MemoryTable(100, 1000)
    states.put(torch.arange(50), torch.randn(50, 1000))
    sent = pickle.dumps(states)
    assert len(sent) < 50 * 4000 * 1.2
    received = pickle.loads(sent)  # noqa: S301  # our own bytes
    assert torch.equal(received.get(torch.arange(100)), states.get(torch.arange(100)))
    received.put(torch.tensor([70]), torch.ones(1, 1000))
    assert torch.equal(states.get(torch.tensor([70])), torch.zeros(1, 1000))


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


@every_place
def test_restoring_takes_back_what_was_not_committed(tmp_path: Path, place: str) -> None:
    states = registry.rows_in(place, tmp_path, N, D, "float32")
    with Checkpoint(tmp_path) as checkpoint:
        server = Server(torch.zeros(D), FedVARP(states), ServerSGD())
        receive(server, 0, seed=0)
        checkpoint.commit(server)
        w, rows, mean = server.w.clone(), everyone(server), states.mean()
        receive(server, 0, seed=1)
        receive(server, 2, seed=2)
        checkpoint.restore(server)
        assert server.round == 1
        assert torch.equal(server.w, w)
        assert torch.equal(everyone(server), rows)
        assert torch.equal(states.mean(), mean)
        checkpoint.commit(server)
        assert checkpoint.store.keys("rows/rows") == ["0"]
    registry.close(states)


def test_restoring_refuses_rows_elsewhere(tmp_path: Path) -> None:
    with DiskTable(tmp_path / "a", N, D) as states, Checkpoint(tmp_path / "a") as checkpoint:
        server = Server(torch.zeros(D), FedVARP(states), ServerSGD())
        receive(server, 0, seed=0)
        checkpoint.commit(server)
    with (
        DiskTable(tmp_path / "b", N, D) as states,
        Checkpoint(tmp_path / "a") as checkpoint,
        pytest.raises(CheckpointError, match="same path"),
    ):
        checkpoint.restore(Server(torch.zeros(D), FedVARP(states), ServerSGD()))


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
    with Checkpoint(tmp_path) as checkpoint, damaged:
        checkpoint.restore(other)
    assert other.round == 1
    assert torch.equal(other.w, w)
    assert torch.equal(everyone(other), rows)
    assert torch.equal(other.optimizer.state_dict()["velocity"], before)


def test_a_value_without_a_checksum_is_damage(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    store.write({("state", "x"): torch.ones(3)})
    with store._environment.begin(write=True) as transaction:
        transaction.delete(b"state/x", db=store._database("checksums"))
    with pytest.raises(StoreError, match="state/x does not match"):
        store.read("state", "x")
    store.close()


@every_place
def test_a_put_right_after_a_client_joined_a_cluster(place: str, tmp_path: Path) -> None:
    """The rows weigh differently from then on, and nobody asked for the mean in between."""
    states = ClusteredTable(
        torch.tensor([0, 1, 1]), registry.rows_in(place, tmp_path, 2, D, "float32")
    )
    states.put(torch.arange(3), torch.cat([row(0), row(1), row(2)]))
    states.add_clients(torch.tensor([0, 0, 0]))
    states.put(torch.tensor([2]), row(3))
    torch.testing.assert_close(states.mean(), states.get(torch.arange(6)).mean(0))
    registry.close(states)


def test_a_commit_right_after_a_client_joined_a_cluster(tmp_path: Path) -> None:
    def server(clusters: list[int]) -> Server:
        table = cluster_fedvarp(torch.tensor(clusters), MemoryTable(2, D))
        return Server(torch.zeros(D), table, ServerSGD())

    with Checkpoint(tmp_path) as checkpoint:
        first = server([0, 1, 1])
        receive(first, 0, seed=0)
        receive(first, 1, seed=1)
        states = first.aggregator.table
        assert isinstance(states, ClusteredTable)
        states.add_clients(torch.tensor([0, 0, 0]))
        checkpoint.commit(first)
        again = server([0, 1, 1, 0, 0, 0])
        assert checkpoint.restore(again)
    restored = again.aggregator.table
    assert restored is not None
    torch.testing.assert_close(restored.mean(), everyone(again).mean(0))


@every_place
def test_a_healed_sum_is_resumed_bit_for_bit(tmp_path: Path, place: str) -> None:
    """An outlier comes in one sitting and goes in another: both heal at the same moment."""

    def sitting(folder: Path, start: int, stop: int) -> torch.Tensor:
        states = registry.rows_in(place, folder, N, D, "float32")
        with Checkpoint(folder, fsync=False) as checkpoint:
            server = Server(torch.zeros(D), FedVARP(states), ServerSGD(0.01))
            checkpoint.restore(server)
            for t in range(start, stop):
                receive(server, t % N, seed=t, size=1e17 if t == 2 else 1.0)
                checkpoint.commit(server)
            found = torch.cat([server.w, states.mean(), everyone(server).flatten()])
        registry.close(states)
        return found

    whole = sitting(tmp_path / "whole", 0, 12)
    for t in range(12):
        pieces = sitting(tmp_path / "pieces", t, t + 1)
    assert torch.equal(pieces, whole)
