"""The LMDB folder that rows and checkpoints live in."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedvarp import StoreError
from fedvarp.tables.store import Store

N, D = 7, 300  # 300 numbers: one whole block of the int8 codec and a part of one


def test_two_words_that_changed_places_are_damage(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    numbers = torch.arange(1000, dtype=torch.int64)
    store.write({("state", "x"): numbers})
    store.write({("state", "y"): numbers})  # so that the transaction before has it, too
    store.close()
    file = tmp_path / "data.mdb"
    data = file.read_bytes()
    swapped = numbers.clone()
    swapped[[3, 700]] = swapped[[700, 3]]
    file.write_bytes(data.replace(numbers.numpy().tobytes(), swapped.numpy().tobytes()))
    with pytest.raises(StoreError, match="checksum of state/x"):
        Store.open(tmp_path)


def test_a_value_without_a_checksum_is_damage(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    store.write({("state", "x"): torch.ones(3)})
    with store._environment.begin(write=True) as transaction:
        transaction.delete(b"state/x", db=store._database("checksums"))
    with pytest.raises(StoreError, match="state/x does not match"):
        store.read("state", "x")
    store.close()


def test_where_pages_cannot_be_read_values_are_checked_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedvarp.tables.data_file.IS_KNOWN", False)
    for n in range(2):
        store = Store.open(tmp_path)
        assert store.count("state") == n
        store.write({("state", str(n)): torch.arange(900)})
        store.close()
    monkeypatch.undo()
    store = Store.open(tmp_path)  # and the seal is right
    store.close()
    monkeypatch.setattr("fedvarp.tables.data_file.IS_KNOWN", False)
    file = tmp_path / "data.mdb"
    content = torch.arange(900).numpy().tobytes()
    file.write_bytes(file.read_bytes().replace(content, content[::-1]))
    store = Store.open(tmp_path)
    with pytest.raises(StoreError, match="checksum of state/0"):
        list(store.items("state"))
    store.close()


def test_a_file_that_is_there_gets_its_name_onto_the_disk_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever made it may have been killed before that; a power failure would then lose it all."""
    folder = tmp_path / "store"
    Store.open(folder).close()
    synced: list[Path] = []
    monkeypatch.setattr("fedvarp.tables.store.sync_folder", synced.append)
    monkeypatch.setattr("fedvarp.system.whole_files.sync_folder", synced.append)
    Store.open(folder).close()
    assert {folder, tmp_path} <= set(synced)
