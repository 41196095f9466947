"""LMDB's pages as we read them: the same values as LMDB's, and damage that LMDB would die of."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest

from fedvarp.errors import DamageWarning
from fedvarp.tables.data_file import StoreError, inspect
from fedvarp.tables.pages import DamagedPagesError, snapshots, values
from fedvarp.tables.store import Store, as_json

DATABASES = (b"a", b"rows/x", b"c")


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    """A descriptor of a file that many transactions have written to, deleted from and emptied."""
    with lmdb.open(str(tmp_path / "x.mdb"), subdir=False, max_dbs=8, sync=False) as environment:
        draw = random.Random(0)
        for _ in range(60):
            with environment.begin(write=True) as transaction:
                write_some(environment, transaction, draw)
    descriptor = os.open(tmp_path / "x.mdb", os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


def write_some(
    environment: lmdb.Environment, transaction: lmdb.Transaction, draw: random.Random
) -> None:
    for _ in range(draw.randrange(1, 40)):
        db = environment.open_db(draw.choice(DATABASES), txn=transaction)
        key = str(draw.randrange(400)).encode()
        if draw.random() < 0.3:
            transaction.delete(key, db=db)
        else:
            transaction.put(key, draw.randbytes(draw.choice([3, 100, 2000, 9000, 50_000])), db=db)
    if draw.random() < 0.1:
        transaction.drop(environment.open_db(b"c", txn=transaction), delete=False)


def test_all_values_are_those_that_lmdb_reads(file: int, tmp_path: Path) -> None:
    newest = snapshots(file)[0]
    found = {(v.database, v.key): os.pread(file, v.length, v.offset) for v in values(file, newest)}
    with lmdb.open(str(tmp_path / "x.mdb"), subdir=False, max_dbs=8) as environment:
        expected: dict[tuple[bytes, bytes], bytes] = {}
        for name in DATABASES:
            db = environment.open_db(name)
            with environment.begin(db=db) as transaction:
                expected |= {(name, key): value for key, value in transaction.cursor()}
    assert found == expected


def test_the_transaction_before_the_newest_is_whole_too(file: int) -> None:
    newest, before = snapshots(file)
    assert newest.transaction == before.transaction + 1
    assert len(list(values(file, before))) > 100


def test_a_file_that_was_cut_off_is_damaged(file: int, tmp_path: Path) -> None:
    content = (tmp_path / "x.mdb").read_bytes()
    (tmp_path / "short").write_bytes(content[: len(content) // 2])
    short = os.open(tmp_path / "short", os.O_RDONLY)
    with pytest.raises(DamagedPagesError, match="cut off"):
        list(values(short, snapshots(short)[0]))
    os.close(short)


def test_any_flipped_bit_in_use_is_noticed(tmp_path: Path) -> None:
    """Bits of a small store are turned; those of pages that are free again may be anything."""
    store = Store.open(tmp_path)
    for n in range(3):
        store.write({("state", "x"): as_json({"n": n}), ("rows", str(n)): as_json({"row": n})})
    seal = store._seal
    store.close()
    file, draw = tmp_path / "data.mdb", random.Random(0)
    whole = file.read_bytes()
    noticed, written = 0, [at for at, byte in enumerate(whole) if byte]
    for _ in range(300):
        data = bytearray(whole)
        data[draw.choice(written)] ^= 1 << draw.randrange(8)
        file.write_bytes(data)
        try:
            found = inspect(file, with_values=True)
            noticed += found.wrong is not None
            assert found.wrong is not None or found.seal == seal
        except StoreError:
            noticed += 1
    assert noticed > 50


@pytest.mark.parametrize("slot", [0, 1])
def test_a_meta_page_that_is_none_is_written_anew_from_the_other(tmp_path: Path, slot: int) -> None:
    store = Store.open(tmp_path)
    for n in range(3):
        store.write({("state", "x"): as_json({"n": n})})
    store.close()
    file = tmp_path / "data.mdb"
    data = bytearray(file.read_bytes())
    data[slot * 4096 : slot * 4096 + 100] = bytes(100)
    file.write_bytes(data)
    with pytest.warns(DamageWarning, match="meta page"):
        store = Store.open(tmp_path)
    found = store.read("state", "x")
    assert found is not None
    assert bytes(found.numpy()) in (b'{"n": 2}', b'{"n": 1}')
    store.write({("state", "x"): as_json({"n": 5})})
    store.close()
    Store.open(tmp_path).close()
