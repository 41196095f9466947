"""More than two states to go back to: whole, whatever was written since, and no more than asked."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from fedvarp.errors import DamageWarning
from fedvarp.tables.data_file import DATA, inspect
from fedvarp.tables.earlier import noted_snapshots
from fedvarp.tables.pages import DamagedPagesError, snapshots
from fedvarp.tables.seals import examine
from fedvarp.tables.store import Store, StoreError

ROWS = 30


def write_round(store: Store, number: int) -> None:
    """Two of thirty rows, and the number itself, as a round does."""
    draw = random.Random(number)
    rows = {
        ("rows", str(row)): torch.full((900,), float(number)) for row in draw.sample(range(ROWS), 2)
    }
    store.write({("state", "round"): torch.tensor([number]), **rows})


def rounds_held(file: Path) -> list[int]:
    """How many transactions back each state lies that is whole."""
    with file.open("rb") as opened:
        named = snapshots(opened.fileno())
        newest = named[0].transaction
        noted = noted_snapshots(file, before=named[-1].transaction)
        found = []
        for snapshot in (*named, *noted):
            try:
                examine(opened.fileno(), snapshot, with_values=True)
                found.append(newest - snapshot.transaction)
            except DamagedPagesError:
                continue
    return found


@pytest.mark.parametrize("keep", [2, 3, 5])
def test_so_many_states_are_whole_after_any_number_of_transactions(
    tmp_path: Path, keep: int
) -> None:
    store = Store.open(tmp_path, fsync=False, keep=keep)
    for number in range(40):
        write_round(store, number)
        expected = list(range(min(keep, number + 2)))
        assert rounds_held(tmp_path / DATA)[: len(expected)] == expected
    size = (tmp_path / DATA).stat().st_size
    for number in range(40, 80):
        write_round(store, number)
    # Pages of dropped states are used again: forty rounds write six times as many as there are.
    assert (tmp_path / DATA).stat().st_size < 1.2 * size
    store.close()


def damage_pages_since(file: Path, transactions: int) -> None:
    """Overwrites all pages that the states since then have and the one before has not."""
    before = Path(f"{file}.{transactions}").read_bytes()
    now = bytearray(file.read_bytes())
    for at in range(2 * 4096, len(now), 4096):
        if now[at : at + 4096] != before[at : at + 4096]:
            now[at : at + 4096] = b"\xff" * 4096
    file.write_bytes(now)


def written(tmp_path: Path, keep: int) -> Path:
    """The file of a store after twenty rounds, with copies of it as it was some rounds before."""
    store = Store.open(tmp_path, fsync=False, keep=keep)
    for number in range(20):
        write_round(store, number)
        (tmp_path / f"{DATA}.{19 - number}").write_bytes((tmp_path / DATA).read_bytes())
    store.close()
    return tmp_path / DATA


def test_damage_to_all_that_three_rounds_wrote_costs_three_rounds(tmp_path: Path) -> None:
    file = written(tmp_path, keep=5)
    damage_pages_since(file, 3)
    assert inspect(file, with_values=True).transactions_back == 3
    with pytest.warns(DamageWarning, match="3 at most"):
        store = Store.open(tmp_path, keep=5)
    assert store.read_tensor("state", "round", torch.int64, (1,)).item() == 16
    for number in range(17, 20):  # the same rounds again give the same values
        write_round(store, number)
    found = dict(store.items("rows"))
    store.close()
    (tmp_path / DATA).write_bytes((tmp_path / f"{DATA}.0").read_bytes())
    store = Store.open(tmp_path)
    undamaged = dict(store.items("rows"))
    store.close()
    assert found == undamaged


def test_with_two_states_the_same_damage_is_refused(tmp_path: Path) -> None:
    file = written(tmp_path, keep=2)
    damage_pages_since(file, 3)
    damaged = file.read_bytes()
    with pytest.raises(StoreError, match="damaged"):
        Store.open(tmp_path)
    assert file.read_bytes() == damaged


def test_both_meta_pages_lost_are_made_again_from_what_was_noted(tmp_path: Path) -> None:
    file = written(tmp_path, keep=3)
    file.write_bytes(bytes(2 * 4096) + file.read_bytes()[2 * 4096 :])
    with pytest.warns(DamageWarning, match="meta page"):
        store = Store.open(tmp_path)
    assert store.read_tensor("state", "round", torch.int64, (1,)).item() == 18
    store.close()


def test_notes_that_are_noise_or_of_another_file_are_not_believed(tmp_path: Path) -> None:
    written(tmp_path / "a", keep=3)
    written(tmp_path / "b", keep=4)
    notes = (tmp_path / "b" / "earlier.mdb").read_bytes()
    for content in (notes, random.Random(0).randbytes(1000), b""):
        (tmp_path / "a" / "earlier.mdb").write_bytes(content)
        store = Store.open(tmp_path / "a")
        assert store.read_tensor("state", "round", torch.int64, (1,)).item() == 19
        store.close()


def test_a_file_written_anew_keeps_nothing_of_what_was_deleted(tmp_path: Path) -> None:
    store = Store.open(tmp_path, fsync=False, keep=4)
    secret = torch.full((900,), 7.5)
    store.write({("rows", "secret"): secret})
    store.write({("rows", "secret"): None, ("rows", "other"): torch.ones(900)})
    store.compact()
    assert not (tmp_path / "earlier.mdb").exists()
    assert secret.numpy().tobytes() not in (tmp_path / DATA).read_bytes()
    write_round(store, 1)
    store.close()


def test_a_file_that_outgrows_its_map_begins_anew_with_two_states(tmp_path: Path) -> None:
    store = Store.open(tmp_path, fsync=False, keep=4)
    for number in range(5):  # 80 MB: beyond the map that LMDB begins with
        store.write({("rows", str(number)): torch.full((4_000_000,), float(number))})
    assert rounds_held(tmp_path / DATA)[:2] == [0, 1]
    for number in range(3):
        write_round(store, number)
    assert rounds_held(tmp_path / DATA)[:4] == [0, 1, 2, 3]
    store.close()
