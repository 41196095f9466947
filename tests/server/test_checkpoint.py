"""Checkpoints: what they refuse, what they leave alone, what survives a kill."""

from __future__ import annotations

import errno
import json
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import lmdb
import pytest
import torch
from torch import Tensor

import fedvarp.server.checkpoint
import fedvarp.tables.data_file
import registry
from fedvarp import (
    MIFA,
    Aggregator,
    Checkpoint,
    CheckpointError,
    ClusteredTable,
    ClusterFedVARP,
    DiskTable,
    FedAvg,
    FedVARP,
    MemoryTable,
    RoundUpdates,
    Server,
    ServerMomentum,
    ServerOptimizer,
    ServerSGD,
    StoreError,
)
from fedvarp.errors import DamageWarning
from fedvarp.tables.seals import checksum
from fedvarp.tables.store import Store

N, D = 5, 4


def a_server(
    aggregator: Aggregator | None = None, optimizer: ServerOptimizer | None = None, dim: int = D
) -> Server:
    return Server(
        torch.zeros(dim),
        aggregator or FedVARP(MemoryTable(N, dim)),
        optimizer or ServerSGD(),
    )


def one_round(server: Server, client: int = 1) -> None:
    one = torch.tensor([1])
    delta = torch.full((1, len(server.w)), float(server.round + 1))
    server.receive(RoundUpdates(torch.tensor([client]), delta, one, one, scale=0.5))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A folder with two committed rounds of FedVARP."""
    with Checkpoint(tmp_path / "state") as checkpoint:
        server = a_server()
        for client in (1, 3):
            one_round(server, client)
            checkpoint.commit(server, notes={"best": client}, tensors={"extra": torch.arange(3)})
    return tmp_path / "state"


def test_a_new_folder_has_nothing_to_restore(tmp_path: Path) -> None:
    with Checkpoint(tmp_path / "new") as checkpoint:
        assert checkpoint.round is None
        assert checkpoint.server_description is None
        assert checkpoint.restore(a_server()) is False


def test_notes_and_tensors_come_back(saved: Path) -> None:
    with Checkpoint(saved) as checkpoint:
        assert checkpoint.round == 2
        assert checkpoint.notes == {"best": 3}
        assert torch.equal(checkpoint.tensors()["extra"], torch.arange(3))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: a_server(dim=D + 1), r"dim=4 \(now 5\)"),
        (lambda: a_server(MIFA(MemoryTable(N, D))), r"algorithm=FedVARP \(now MIFA\)"),
        (lambda: a_server(FedAvg()), r"algorithm=FedVARP \(now FedAvg\)"),
        (lambda: a_server(FedVARP(MemoryTable(N + 2, D))), r"num_clients=5 \(now 7\)"),
        (lambda: a_server(FedVARP(MemoryTable(N, D, "int8"))), r"codec=float32 \(now int8\)"),
        (lambda: a_server(optimizer=ServerSGD(0.5)), r"server_lr=1.0 \(now 0.5\)"),
        (lambda: a_server(optimizer=ServerMomentum()), r"optimizer=sgd \(now momentum\)"),
        (
            lambda: a_server(ClusterFedVARP(ClusteredTable(torch.arange(N), MemoryTable(N, D)))),
            r"num_clusters=None \(now 5\)",
        ),
        (
            lambda: a_server(FedVARP(MemoryTable(N, D, client_weights=torch.arange(5.0)))),
            r"row_weights=equal \(now [0-9a-f]{16}\)",
        ),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(
    saved: Path, other: object, message: str
) -> None:
    assert callable(other)
    server = other()
    w = server.w.clone()
    before = (saved / "data.mdb").read_bytes()
    with Checkpoint(saved) as checkpoint:
        with pytest.raises(StoreError, match=message):
            checkpoint.restore(server)
        with pytest.raises(CheckpointError, match="holds a run at round 2"):
            checkpoint.commit(server)
    assert torch.equal(server.w, w)
    assert server.round == 0
    assert (saved / "data.mdb").read_bytes() == before


def test_another_clustering_of_the_same_size_is_refused(tmp_path: Path) -> None:
    def server(clusters: list[int]) -> Server:
        return a_server(ClusterFedVARP(ClusteredTable(torch.tensor(clusters), MemoryTable(2, D))))

    with Checkpoint(tmp_path) as checkpoint:
        first = server([0, 0, 1, 1, 1])
        one_round(first)
        checkpoint.commit(first)
    with Checkpoint(tmp_path) as checkpoint, pytest.raises(StoreError, match="cluster_of="):
        checkpoint.restore(server([0, 1, 0, 1, 1]))


def test_a_run_that_was_not_restored_is_not_overwritten(saved: Path) -> None:
    with Checkpoint(saved) as checkpoint:
        server = a_server()
        one_round(server)
        with pytest.raises(CheckpointError, match=r"holds a run at round 2.*restore\(\) first"):
            checkpoint.commit(server)


@dataclass(eq=False)
class Drawn(Aggregator):
    """An algorithm of one's own that remembers: an average of averages over rounds."""

    decay: float = 0.5
    u: Tensor | None = None

    def aggregate(self, updates: RoundUpdates) -> Tensor:
        fresh = updates.average(updates.deltas)
        self.u = fresh if self.u is None else self.decay * self.u + fresh
        return self.u

    def state_dict(self) -> dict[str, Tensor]:
        return {} if self.u is None else {"u": self.u}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        self.u = tensors["u"]

    def describe(self) -> dict[str, object]:
        return {**super().describe(), "decay": self.decay}


class Forgetful(Drawn):
    load_state_dict = Aggregator.load_state_dict


def test_an_algorithm_that_remembers_goes_on_as_if_not_stopped(tmp_path: Path) -> None:
    straight = a_server(Drawn())
    with Checkpoint(tmp_path / "new") as checkpoint:
        assert straight.num_bytes == D * 4
        for round in range(4):
            one_round(straight)
            if round == 1:
                checkpoint.commit(straight)
    assert straight.num_bytes == 2 * D * 4
    with Checkpoint(tmp_path / "new") as checkpoint:
        resumed, forgetful = a_server(Drawn()), Drawn()
        for server in (resumed, a_server(forgetful)):
            checkpoint.restore(server)
            if server.aggregator is forgetful:
                forgetful.u = None
            for _ in range(2):
                one_round(server)
            assert torch.equal(server.w, straight.w) == (server is resumed)
        with pytest.raises(CheckpointError, match=r"decay.*0\.5.*0\.9"):
            checkpoint.restore(a_server(Drawn(decay=0.9)))


def test_an_algorithm_that_could_not_take_back_what_it_gives_is_refused(tmp_path: Path) -> None:
    with Checkpoint(tmp_path / "new") as checkpoint:
        server = a_server(Forgetful())
        checkpoint.commit(server)  # nothing to remember yet
        one_round(server)
        with pytest.raises(
            CheckpointError, match=r"gives u to be saved, and has no load_state_dict"
        ):
            checkpoint.commit(server)
        checkpoint.restore(a_server(Forgetful()))


def test_another_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fedvarp.server.checkpoint, "FORMAT", 99)
    with Checkpoint(tmp_path) as checkpoint:
        checkpoint.commit(a_server())
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match=r"in format 99; this is fedvarp .* reads format 2"):
        Checkpoint(tmp_path)


def test_a_checkpoint_of_the_format_before_is_gone_on_with(saved: Path) -> None:
    """It had no seal, and left the checksums of tables that were replaced."""
    with lmdb.open(str(saved / "data.mdb"), subdir=False, max_dbs=9) as environment:
        checksums = environment.open_db(b"checksums")
        with environment.begin(write=True) as transaction:
            state = environment.open_db(b"state", txn=transaction)
            about = bytes(transaction.get(b"about", db=state) or b"").replace(
                b'"format": 2', b'"format": 1'
            )
            transaction.put(b"about", about, db=state)
            transaction.put(b"state/about", checksum(about), db=checksums)
            transaction.put(b"rows/rows/4", bytes(12), db=checksums)
            transaction.drop(environment.open_db(b"seal", txn=transaction))
    with Checkpoint(saved) as checkpoint:
        server = a_server()
        assert checkpoint.restore(server)
        one_round(server, 2)
        checkpoint.commit(server)
    with Checkpoint(saved) as checkpoint:
        again = a_server()
        assert checkpoint.restore(again)
    assert again.round == 3
    assert torch.equal(again.w, server.w)


def test_a_damaged_newest_round_costs_that_round(tmp_path: Path) -> None:
    """One bit of the newest w is turned: the transaction before it is still whole."""
    with Checkpoint(tmp_path) as checkpoint:
        server, models = a_server(FedAvg(), dim=1000), []
        for _ in range(3):
            one_round(server)
            checkpoint.commit(server)
            models.append(server.w.clone())
    file = tmp_path / "data.mdb"
    data = bytearray(file.read_bytes())
    at = data.find(models[2].numpy().tobytes())
    assert at > 0
    data[at + 2001] ^= 0x10
    file.write_bytes(bytes(data))
    with pytest.warns(DamageWarning, match="checksum of state/w does not match"):
        checkpoint = Checkpoint(tmp_path)
    fresh = a_server(FedAvg(), dim=1000)
    checkpoint.restore(fresh)
    assert fresh.round == 2
    assert torch.equal(fresh.w, models[1])
    one_round(fresh)
    checkpoint.commit(fresh)
    checkpoint.close()
    with Checkpoint(tmp_path) as checkpoint:
        assert checkpoint.round == 3


def test_a_place_that_cannot_be_read_is_not_called_damaged(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("os.pread", failing)
    with pytest.raises(StoreError, match=r"Input/output error.*need not be damage") as refused:
        Checkpoint(saved)
    assert "delete" not in str(refused.value)


def test_a_draft_that_somebody_was_killed_over_does_not_block_the_next(tmp_path: Path) -> None:
    (tmp_path / "new.mdb").write_bytes(b"half of a")
    with Checkpoint(tmp_path) as checkpoint:
        checkpoint.commit(a_server())
    assert sorted(f.name for f in tmp_path.iterdir()) == ["data.mdb", "data.mdb-lock", "lock"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: b"", "is empty"),
        (lambda data: data[: len(data) // 2 // 4096 * 4096], "was cut off"),
        (lambda data: data[:5000], "cut off|meta pages"),
        (lambda data: b"not a database" * 1000, "not ours"),
    ],
)
def test_a_damaged_file_is_refused_and_left_alone(
    saved: Path, damage: object, message: str
) -> None:
    assert callable(damage)
    file = saved / "data.mdb"
    file.write_bytes(damage(file.read_bytes()))
    before = file.read_bytes()
    with pytest.raises(StoreError, match=message):
        Checkpoint(saved)
    assert file.read_bytes() == before


def test_two_processes_cannot_share_a_folder(saved: Path) -> None:
    other = f"from fedvarp import Checkpoint; Checkpoint({str(saved)!r})"
    with Checkpoint(saved):
        second = subprocess.run([sys.executable, "-c", other], capture_output=True, text=True)
    assert second.returncode != 0
    assert "in use by another process" in second.stderr
    third = subprocess.run([sys.executable, "-c", other], capture_output=True, text=True)
    assert third.returncode == 0, third.stderr


def test_rows_on_disk_elsewhere_are_refused(tmp_path: Path) -> None:
    with (
        DiskTable(tmp_path / "rows", N, D) as table,
        Checkpoint(tmp_path / "state") as checkpoint,
        pytest.raises(CheckpointError, match="give both the same path"),
    ):
        checkpoint.commit(a_server(FedVARP(table)))


def test_the_map_grows_when_it_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fedvarp.tables.data_file, "_FIRST_MAP_SIZE", 64 * 1024)
    with Checkpoint(tmp_path, fsync=False) as checkpoint:
        server = a_server(dim=50_000)
        for client in range(N):
            one_round(server, client)
            checkpoint.commit(server)
    with Checkpoint(tmp_path) as checkpoint:
        again = a_server(dim=50_000)
        checkpoint.restore(again)
    assert torch.equal(again.w, server.w)


def test_a_commit_writes_what_changed_whatever_n_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    write = Store.write

    def counting(
        self: Store, batch: dict[tuple[str, str], torch.Tensor | None], emptied: list[str]
    ) -> None:
        written.append(sum(tensor.nbytes for tensor in batch.values() if tensor is not None))
        write(self, batch, emptied)

    monkeypatch.setattr(Store, "write", counting)
    for n in (10, 1_000_000):
        with Checkpoint(tmp_path / str(n), fsync=False) as checkpoint:
            server = a_server(FedVARP(MemoryTable(n, 1000)), dim=1000)
            for client in range(4):
                one_round(server, client)
                checkpoint.commit(server)
    few, many = written[3], written[7]
    # w and one row in float32, the sum in float64, a few hundred bytes of JSON
    assert 16_000 < few < 17_000
    assert abs(many - few) < 64


def test_a_full_disk_says_so_and_loses_nothing(tmp_path: Path) -> None:
    """A limit on the file's size stands in for the full disk: the write fails the same way."""
    script = textwrap.dedent(f"""
        import resource, signal, torch
        from fedvarp import *
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        with Checkpoint({str(tmp_path)!r}, fsync=False) as checkpoint:
            server = Server(torch.zeros(20_000), FedVARP(MemoryTable(50, 20_000)), ServerSGD())
            one = torch.tensor([1])
            for client in range(50):
                if client == 3:
                    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
                updates = RoundUpdates(torch.tensor([client]), torch.ones(1, 20_000), one, one, 0.5)
                server.receive(updates)
                try:
                    checkpoint.commit(server)
                except StoreError as error:
                    print(server.round, error)
                    break
    """)
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    failed_at, message = result.stdout.split(maxsplit=1)
    assert "Is the disk full?" in message
    with Checkpoint(tmp_path) as checkpoint:
        server = a_server(FedVARP(MemoryTable(50, 20_000)), dim=20_000)
        assert checkpoint.restore(server)
        assert server.round == int(failed_at) - 1


WRITER = """
import json, sys, torch
from fedvarp import *
sys.path.insert(0, {tests!r})
import registry
from pathlib import Path
folder, algorithm, place, codec = Path(sys.argv[1]), *sys.argv[2:5]
aggregator = registry.algorithm_in(algorithm, place, folder, 40, 3000, codec)
checkpoint = Checkpoint(folder, fsync=False)
server = Server(torch.zeros(3000), aggregator, ServerMomentum(0.1))
checkpoint.restore(server)
print("ready", flush=True)
while True:
    t = server.round
    clients = torch.randperm(40, generator=stream(0, "cohort", t))[:5].sort().values
    deltas = torch.randn(5, 3000, generator=stream(0, "deltas", t)) + server.w
    five = torch.full((5,), 5)
    server.receive(RoundUpdates(clients, deltas, five, five, scale=0.05))
    checkpoint.commit(server, notes={{"sum": float(server.w.double().sum())}})
"""


def kill_and_check(folder: Path, algorithm: str, place: str, codec: str, times: int) -> int:
    """Kills a writer `times` times at random moments; each time the folder must be whole."""
    tests = str(Path(__file__).parents[1])
    moment = random.Random(f"{algorithm}{place}{codec}")
    last = 0
    for _ in range(times):
        writer = subprocess.Popen(
            [
                sys.executable,
                "-c",
                WRITER.format(tests=tests),
                str(folder),
                algorithm,
                place,
                codec,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n", writer.communicate()[1].decode()
        time.sleep(moment.uniform(0, 0.15))
        writer.send_signal(signal.SIGKILL)
        writer.communicate()

        aggregator = registry.algorithm_in(algorithm, place, folder, 40, 3000, codec)
        with Checkpoint(folder, fsync=False) as checkpoint:
            server = Server(torch.zeros(3000), aggregator, ServerMomentum(0.1))
            if checkpoint.restore(server):
                assert server.round >= last
                last = server.round
                # Model and note are of one round, and so are the rows and their sum.
                assert checkpoint.notes["sum"] == float(server.w.double().sum())
                table = aggregator.table
                assert table is not None
                rows = table.get(torch.arange(40)).double()
                scale = float(rows.abs().max())
                torch.testing.assert_close(
                    table.mean().double(), rows.mean(0), rtol=0, atol=1e-6 * scale
                )
        registry.close(aggregator.table)
    assert last > 0
    replay_and_compare(folder, algorithm, place, codec, last)
    return last


def replay_and_compare(folder: Path, algorithm: str, place: str, codec: str, rounds: int) -> None:
    """The same rounds in one go, without a checkpoint: the survivor must equal it bit for bit."""
    from fedvarp import stream

    plain = registry.algorithm_in(algorithm, "memory", folder, 40, 3000, codec)
    server = Server(torch.zeros(3000), plain, ServerMomentum(0.1))
    for t in range(rounds):
        clients = torch.randperm(40, generator=stream(0, "cohort", t))[:5].sort().values
        deltas = torch.randn(5, 3000, generator=stream(0, "deltas", t)) + server.w
        five = torch.full((5,), 5)
        server.receive(RoundUpdates(clients, deltas, five, five, scale=0.05))
    survivor = registry.algorithm_in(algorithm, place, folder, 40, 3000, codec)
    with Checkpoint(folder, fsync=False) as checkpoint:
        restored = Server(torch.zeros(3000), survivor, ServerMomentum(0.1))
        checkpoint.restore(restored)
    assert plain.table is not None
    assert survivor.table is not None
    assert torch.equal(restored.w, server.w)
    assert torch.equal(survivor.table.mean(), plain.table.mean())
    everyone = torch.arange(40)
    assert torch.equal(survivor.table.get(everyone), plain.table.get(everyone))
    registry.close(survivor.table)


@registry.every_place
def test_a_killed_writer_leaves_a_whole_round(tmp_path: Path, place: str) -> None:
    kill_and_check(tmp_path, "fedvarp", place, "float32", times=2)


@pytest.mark.slow
@registry.every_place
@pytest.mark.parametrize(
    ("algorithm", "codec"),
    [
        ("fedvarp", "float32"),
        ("cluster_fedvarp", "int8"),
        ("mifa", "bfloat16"),
        ("scaffold", "float16"),
    ],
)
def test_a_writer_killed_many_times_leaves_a_whole_round(
    tmp_path: Path, place: str, algorithm: str, codec: str
) -> None:
    """8 combinations × 10 kills."""
    kill_and_check(tmp_path, algorithm, place, codec, times=10)


def test_no_file_of_ours_is_a_pickle(saved: Path) -> None:
    """What is not tensors is JSON that any tool can read."""
    data = (saved / "data.mdb").read_bytes()
    at = data.find(b'{"format": 2')
    assert at > 0
    about, _ = json.JSONDecoder().raw_decode(data[at:].decode("latin-1"))
    assert about["server"]["algorithm"] == "FedVARP"
    assert b"\x80\x04\x95" not in data


def num_open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files the Linux way")
def test_nothing_is_left_open(tmp_path: Path) -> None:
    before = num_open_files()
    for _ in range(3):
        with DiskTable(tmp_path, N, D) as table, Checkpoint(tmp_path) as checkpoint:
            server = a_server(FedVARP(table))
            checkpoint.restore(server)
            one_round(server)
            checkpoint.commit(server)
    assert num_open_files() == before


def test_entries_accumulate_and_are_of_one_transaction_with_the_round(tmp_path: Path) -> None:
    with Checkpoint(tmp_path) as checkpoint:
        server = Server(torch.zeros(2), FedAvg(), ServerSGD())
        assert checkpoint.entries() == {}
        checkpoint.commit(server, entries={"a": {"x": 1}, "b": {"x": 2}})
        checkpoint.commit(server, entries={"b": {"x": 3}, "c": {"x": [4.5]}})
    with Checkpoint(tmp_path) as checkpoint:
        assert checkpoint.entries() == {"a": {"x": 1}, "b": {"x": 3}, "c": {"x": [4.5]}}
