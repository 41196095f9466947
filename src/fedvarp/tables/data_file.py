"""The file of a store: made, proven whole before LMDB maps it, and told of if it is not."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import lmdb

from fedvarp.errors import DamageWarning, FedvarpError
from fedvarp.system.whole_files import sync_folder
from fedvarp.tables.earlier import forget_notes, noted_snapshots
from fedvarp.tables.pages import IS_KNOWN, DamagedPagesError, Snapshot, go_back, snapshots, values
from fedvarp.tables.seals import SEAL, Seal, examine

DATA: Final = "data.mdb"
"""The file of a store, in its folder."""
LOCK: Final = "lock"
"""What is locked by who writes to the store."""
DRAFT: Final = "new.mdb"
"""What a file is called until it is whole."""

_FIRST_MAP_SIZE: Final = 64 * 2**20
_MAX_DATABASES: Final = 32
_READ_WHOLE: Final = 2**30  # bytes of a file whose values are all read as it is opened: a second
_DAMAGES: Final = (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError)
_IF_DAMAGED: Final = (
    "Nothing in it was changed. `fedvarp verify` says what else is wrong; restore the folder from "
    "a backup. Without one the run has to be begun anew, in another directory."
)


class StoreError(FedvarpError):
    """The folder cannot be used: damaged, taken by another process, or out of space."""


class WriteError(StoreError):
    """A transaction could not be written; those before it are whole, and can be gone on from."""


def create(folder: Path) -> None:
    """Makes an empty store, under another name first: a file of the right name is always whole.

    Args:
        folder: Where.
    """
    with damage_reported(folder / DATA):
        seal_anew(folder / DRAFT, Seal())
    put_in_place(folder)


def put_in_place(folder: Path) -> None:
    """Gives a draft the name of the store's file, for good; nothing of an older one is kept."""
    forget_notes(folder / DATA)
    (folder / DRAFT).replace(folder / DATA)
    remove_draft(folder)
    sync_folder(folder)


def remove_draft(folder: Path) -> None:
    """Removes a draft that somebody was killed over, and what LMDB puts beside it."""
    for name in (DRAFT, f"{DRAFT}-lock"):
        (folder / name).unlink(missing_ok=True)


def seal_anew(file: Path, seal: Seal | None) -> None:
    """Writes the seal into a file that was copied by LMDB, or is new.

    Args:
        file: It.
        seal: Of what it holds; None: it has none.
    """
    environment = open_environment(file, fsync=True)
    try:
        if seal is not None:
            with environment.begin(write=True) as transaction:
                database = environment.open_db(SEAL.encode(), txn=transaction)
                transaction.put(SEAL.encode(), seal.packed(transaction.id()), db=database)
    finally:
        environment.close()


def open_environment(file: Path, *, fsync: bool, readonly: bool = False) -> Any:
    """Opens a file with LMDB.

    Args:
        file: One that is proven, or new.
        fsync: Whether transactions wait for the disk.
        readonly: For another process than the one that writes.

    Returns:
        LMDB's environment.

    Raises:
        StoreError: It cannot be opened.
    """
    size = file.stat().st_size if file.exists() else 0
    with damage_reported(file):
        return lmdb.open(
            str(file),
            subdir=False,
            map_size=max(_FIRST_MAP_SIZE, size),
            max_dbs=_MAX_DATABASES,
            sync=fsync,
            readonly=readonly,
        )


def prove(file: Path) -> tuple[Seal | None, bool]:
    """Proves a file whole; goes back to an earlier transaction if the newest one is damaged.

    Only for who may write to the file. All values are read too, unless there are so many that they
    are better looked at one by one as they are needed.

    Args:
        file: That of a store.

    Returns:
        Its seal, None where a version without seals wrote it; and whether all values were read.

    Raises:
        StoreError: It is damaged, or cannot be read. It stays as it is.
    """
    with_values = file.stat().st_size <= _READ_WHOLE
    found = inspect(file, with_values=with_values)
    if found.snapshot is not None and found.wrong is not None:
        descriptor = os.open(file, os.O_RDWR)
        try:
            go_back(descriptor, found.snapshot)
        finally:
            os.close(descriptor)
        warnings.warn(
            f"{file} was damaged in its newest transaction ({found.wrong}). One before it is "
            f"whole, and is gone on from: what came since, {found.transactions_back} at most, is "
            f"done again.",
            DamageWarning,
            stacklevel=2,
        )
    return found.seal, with_values and found.seal is not None and found.snapshot is not None


@dataclass(frozen=True)
class Inspection:
    """The newest state of a file that is whole.

    Attributes:
        seal: Of what it holds; None where a version without seals wrote it.
        snapshot: That state; None on machines whose layout is not known.
        wrong: What is wrong with a newer one; None where nothing is.
        transactions_back: How many transactions are lost with the newer ones.
    """

    seal: Seal | None
    snapshot: Snapshot | None = None
    wrong: str | None = None
    transactions_back: int = 0


def inspect(file: Path, *, with_values: bool) -> Inspection:
    """Looks for the newest whole state of a file, without changing anything.

    Args:
        file: That of a store.
        with_values: Whether to read all values too.

    Returns:
        What was found.

    Raises:
        StoreError: No state is whole, or it cannot be read.
    """
    if not IS_KNOWN:
        return Inspection(_seal_by_lmdb(file))
    try:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            named = snapshots(descriptor)
            newest = max((each.transaction for each in named), default=None)
            # LMDB needs both meta pages: one that is none is written anew from the other.
            wrong = None if len(named) == 2 else "one of its two meta pages is none"
            for snapshot in (*named, *noted_snapshots(file, before=newest)):
                back = 0 if newest is None else newest - snapshot.transaction
                try:
                    seal = examine(descriptor, snapshot, with_values=with_values)
                    return Inspection(seal, snapshot, wrong, back)
                except DamagedPagesError as reason:
                    wrong = wrong or str(reason)
        finally:
            os.close(descriptor)
    except OSError as reason:
        raise _cannot_open(file, reason.strerror or str(reason)) from reason
    raise damaged(file, wrong if named and wrong else "it is empty, was cut off, or is not ours")


def _seal_by_lmdb(file: Path) -> Seal | None:
    environment = open_environment(file, fsync=True)
    try:
        with damage_reported(file), environment.begin() as transaction:
            try:
                database = environment.open_db(SEAL.encode(), txn=transaction, create=False)
            except lmdb.NotFoundError:
                return None
            return Seal.unpacked(transaction.get(SEAL.encode(), db=database))
    finally:
        environment.close()


def values_of(file: Path, snapshot: Snapshot | None, database: str) -> dict[str, bytes]:
    """Reads a small database without LMDB, from a file that `inspect` has found whole.

    Args:
        file: That of a store.
        snapshot: Which state; None reads nothing.
        database: Its name.

    Returns:
        All its values by key.
    """
    if snapshot is None:
        return {}
    descriptor = os.open(file, os.O_RDONLY)
    try:
        return {
            value.key.decode(): os.pread(descriptor, value.length, value.offset)
            for value in values(descriptor, snapshot)
            if value.database == database.encode()
        }
    finally:
        os.close(descriptor)


def damaged(file: Path, wrong: str) -> StoreError:
    """What to raise for a file that is proven to be damaged.

    Args:
        file: It.
        wrong: What is wrong with it.
    """
    return StoreError(f"{file} is damaged: {wrong}. {_IF_DAMAGED}")


def unless_damaged(file: Path, reason: Exception, otherwise: StoreError) -> StoreError:
    """Tells damage, as LMDB sees it, from all that may pass.

    Args:
        file: That of a store.
        reason: What LMDB says.
        otherwise: What to raise where it is no damage.
    """
    return damaged(file, str(reason)) if isinstance(reason, _DAMAGES) else otherwise


@contextlib.contextmanager
def damage_reported(file: Path) -> Iterator[None]:
    """Says in a sentence what LMDB cannot do with a file.

    Args:
        file: That of a store.

    Raises:
        StoreError: LMDB could not do what the `with` block asked of it.
    """
    try:
        yield
    except lmdb.Error as reason:
        raise unless_damaged(file, reason, _cannot_open(file, str(reason))) from reason


def _cannot_open(file: Path, reason: str) -> StoreError:
    return StoreError(
        f"{file} cannot be opened: {reason}. That need not be damage: look at the permissions of "
        f"the folder, at the disk and the room on it, and start again. Nothing was changed."
    )
