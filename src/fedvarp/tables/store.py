"""A folder that holds named tensors and changes only by whole transactions (LMDB).

Kill the process at any instant: the folder reopens at the last transaction that was complete. Every
value carries a checksum, and a seal tells that none is missing. The file is proven whole before
LMDB sees it; if the newest transaction is damaged, the one before it is gone on from. Nothing is
pickled: values are plain bytes.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import filelock
import lmdb
import numpy as np
import torch
from torch import Tensor

from fedvarp.system.whole_files import make_folder, sync_folder
from fedvarp.tables.data_file import (
    DATA,
    DRAFT,
    LOCK,
    StoreError,
    WriteError,
    create,
    damage_reported,
    damaged,
    open_environment,
    prove,
    put_in_place,
    remove_draft,
    seal_anew,
    unless_damaged,
)
from fedvarp.tables.earlier import ALWAYS, EarlierStates
from fedvarp.tables.seals import CHECKSUMS, SEAL, Seal, checksum, sealed_afresh, with_prefix

__all__ = ["Store", "StoreError", "WriteError", "as_json", "from_json", "refuse_differences"]

_Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class Store:
    """Named databases of named tensors in one folder, open in one process at a time.

    Use `Store.open`: within a process everybody who asks for a folder gets the same store, so that
    a table and a checkpoint in one folder share their transactions.
    """

    _opened: Final[dict[Path, Store]] = {}

    def __init__(self, path: Path, fsync: bool) -> None:
        self.path = path
        self.identity = uuid.uuid4().hex  # of this opening: what was saved earlier may be gone
        self.checkpoints_open = 0  # while there is one, it decides when rows are written
        self.tables_open: set[str] = set()
        self._users = 0
        self._process = os.getpid()
        self._fsync = fsync
        self._databases: dict[str, Any] = {}
        if path.exists() and not path.is_dir():
            raise StoreError(f"{path} is a file, and a folder is needed. Choose another name.")
        make_folder(path)
        self._lock = filelock.FileLock(path / LOCK, thread_local=False)
        try:
            self._lock.acquire(timeout=0)
        except filelock.Timeout:
            raise StoreError(
                f"{path} is in use by another process. Two runs cannot share a folder: wait for "
                f"the other one to end, or choose a new folder."
            ) from None
        try:
            remove_draft(path)
            if (path / DATA).exists():
                sync_folder(path)  # who made it may have been killed before that
            else:
                create(path)
            self._seal, self._is_read = prove(path / DATA)
            self._environment = open_environment(path / DATA, fsync=fsync)
            self._earlier = EarlierStates(path / DATA)
        except BaseException:
            self._lock.release()
            raise

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, fsync: bool = True, keep: int = ALWAYS) -> Store:
        """The store in that folder, made if there is none. Call `close` once for every `open`.

        Args:
            path: The folder.
            fsync: Whether a transaction waits for the disk. Without it a killed process loses
                nothing, but a power failure may cost everything: never a wrong value, but a file
                that is refused as damaged.
            keep: How many states the file holds, to go back to if newer ones are damaged; of
                several users, the one that wants most decides.

        Returns:
            The one store that this process has for the folder.

        Raises:
            StoreError: The folder is damaged, or in use by another process.
        """
        folder = Path(path).resolve()
        if folder not in cls._opened:
            cls._opened[folder] = cls(folder, fsync)
        store = cls._opened[folder]
        store._users += 1
        store._earlier.count = max(store._earlier.count, keep)
        if fsync and not store._fsync:
            store._wait_for_the_disk()
        return store

    @classmethod
    def environment_here(cls, path: Path) -> Any:
        """LMDB's environment of a folder that this process has open; None if it has not.

        Args:
            path: The folder.
        """
        store = cls._opened.get(path.resolve())
        return None if store is None else store._environment

    def close(self) -> None:
        """Gives the folder back when the last of its users has closed it."""
        if self._users == 0:
            return
        self._users -= 1
        if self._users == 0:
            del self._opened[self.path]
            self._close_environment()
            self._lock.release()

    def _close_environment(self) -> None:
        self._earlier.let_go()
        self._environment.close()
        self._databases.clear()

    def _wait_for_the_disk(self) -> None:
        """One of several users wants fsync: from now on all get it."""
        self._close_environment()
        self._environment = open_environment(self.path / DATA, fsync=True)
        self._environment.sync(True)  # what was written without waiting
        self._fsync = True

    def write(
        self, batch: Mapping[tuple[str, str], Tensor | None], emptied: Iterable[str] = ()
    ) -> None:
        """Writes all of {(database, key): tensor} in one transaction, or nothing.

        Args:
            batch: What to write; None deletes what is there.
            emptied: Databases to empty first, in the same transaction.

        Raises:
            StoreError: It could not be written; what was there before is intact.
        """
        if os.getpid() != self._process:
            raise StoreError(
                f"{self.path} was opened before this process was forked off; only the process that "
                f"opened it may write to it. Open it after the fork, or use the spawn start method."
            )
        values = {p: None if t is None else _bytes_of(t) for p, t in batch.items()}
        while True:
            databases = dict(self._databases)  # one that is made in here is there if all of it is
            try:
                self._earlier.hold_newest(self._environment)
                with self._environment.begin(write=True) as transaction:
                    seal = self._write_all(transaction, databases, values, emptied)
                self._databases, self._seal = databases, seal
                return
            except lmdb.MapFullError:
                self._earlier.let_go()  # since the map moves
                self._environment.set_mapsize(2 * self._environment.info()["map_size"])
            except (lmdb.Error, OSError) as reason:
                raise self._cannot_write(reason) from reason

    def _write_all(
        self,
        transaction: Any,
        databases: dict[str, Any],
        values: Mapping[tuple[str, str], _Bytes | None],
        emptied: Iterable[str],
    ) -> Seal:
        for database in {SEAL, CHECKSUMS, *emptied, *(database for database, _ in values)}:
            if database not in databases:
                databases[database] = self._environment.open_db(database.encode(), txn=transaction)
        checksums = databases[CHECKSUMS]
        seal = self._seal or sealed_afresh(transaction, databases, self._environment)
        for database in emptied:
            transaction.drop(databases[database], delete=False)
            for name, recorded in list(with_prefix(transaction, checksums, f"{database}/")):
                transaction.delete(name, db=checksums)
                seal = seal.minus(name, recorded)
        for (database, key), value in values.items():
            db, name = databases[database], f"{database}/{key}".encode()
            before = transaction.get(name, db=checksums)
            if before is not None:
                seal = seal.minus(name, before)
            if value is None:
                transaction.delete(key.encode(), db=db)
                transaction.delete(name, db=checksums)
            else:
                recorded = checksum(value.data)
                transaction.put(key.encode(), value, db=db)
                transaction.put(name, recorded, db=checksums)
                seal = seal.plus(name, recorded)
        transaction.put(SEAL.encode(), seal.packed(transaction.id()), db=databases[SEAL])
        return seal

    def compact(self) -> None:
        """Writes the file anew without what was deleted, which stays in free pages until then.

        Raises:
            StoreError: It could not be written; the old file is intact.
        """
        draft = self.path / DRAFT
        try:
            remove_draft(self.path)
            self._environment.copy(str(draft), compact=True)
            seal_anew(draft, self._seal)
        except (lmdb.Error, OSError) as reason:
            raise WriteError(f"Writing {draft} failed: {reason}. Is the disk full?") from reason
        self._close_environment()
        put_in_place(self.path)
        self._environment = open_environment(self.path / DATA, fsync=self._fsync)

    def read(self, database: str, key: str) -> Tensor | None:
        """Reads one value.

        Args:
            database: Its database.
            key: Its key there.

        Returns:
            The bytes stored there, (n,) uint8, a copy; None if there are none.

        Raises:
            StoreError: They are damaged.
        """
        db, checksums = self._database(database), self._database(CHECKSUMS)
        if db is None:
            return None
        with self._damage_reported(), self._environment.begin(buffers=True) as transaction:
            value = transaction.get(key.encode(), db=db)
            if value is None:
                return None
            found = np.frombuffer(value, dtype=np.uint8).copy()
            self._refuse_unsound(transaction, checksums, database, key, found.data)
            return torch.from_numpy(found)

    def items(self, database: str) -> Iterator[tuple[str, bytes]]:
        """Reads all values of a database, much faster than one by one.

        Args:
            database: It.

        Yields:
            Each key with its bytes.

        Raises:
            StoreError: They are damaged.
        """
        db, checksums = self._database(database), self._database(CHECKSUMS)
        if db is None:
            return
        with self._damage_reported(), self._environment.begin() as transaction:
            for name, value in transaction.cursor(db=db):
                key = name.decode()
                if not self._is_read:  # as the store was opened
                    self._refuse_unsound(transaction, checksums, database, key, value)
                yield key, value

    def _refuse_unsound(
        self, transaction: Any, checksums: Any, database: str, key: str, value: Any
    ) -> None:
        expected = transaction.get(f"{database}/{key}".encode(), db=checksums)
        if expected is None or bytes(expected) != checksum(value):
            raise damaged(self.path / DATA, f"the checksum of {database}/{key} does not match")

    def read_tensor(
        self, database: str, key: str, dtype: torch.dtype, shape: tuple[int, ...]
    ) -> Tensor:
        """Reads one value as the tensor it was.

        Args:
            database: Its database.
            key: Its key there.
            dtype: Of the tensor that was written.
            shape: Of the tensor that was written.

        Returns:
            The tensor, a copy.

        Raises:
            StoreError: It is missing or damaged, or has another size.
        """
        found = self.read(database, key)
        if found is not None and 0 in shape:
            return torch.empty(shape, dtype=dtype)
        size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        if found is None or len(found) != size:
            what = "is missing" if found is None else f"has {len(found)} bytes, not {size}"
            raise damaged(self.path / DATA, f"{database}/{key} {what}")
        return found.view(dtype).reshape(shape)

    def keys(self, database: str) -> list[str]:
        """All keys of a database."""
        db = self._database(database)
        if db is None:
            return []
        with self._damage_reported(), self._environment.begin() as transaction:
            return [bytes(key).decode() for key in transaction.cursor(db=db).iternext(values=False)]

    def contains(self, database: str, key: str) -> bool:
        """Whether the key is there; its value is not read."""
        db = self._database(database)
        if db is None:
            return False
        with self._damage_reported(), self._environment.begin(buffers=True) as transaction:
            return transaction.get(key.encode(), db=db) is not None

    def count(self, database: str) -> int:
        """How many keys a database has; O(1)."""
        db = self._database(database)
        if db is None:
            return 0
        with self._damage_reported(), self._environment.begin() as transaction:
            return int(transaction.stat(db)["entries"])

    def _database(self, name: str) -> Any:
        """Its handle; None where nothing was ever written to it."""
        if name not in self._databases:
            with self._damage_reported():
                try:
                    self._databases[name] = self._environment.open_db(name.encode(), create=False)
                except lmdb.NotFoundError:
                    return None
        return self._databases[name]

    def _damage_reported(self) -> contextlib.AbstractContextManager[None]:
        if self._users == 0:
            raise self._is_closed()
        return damage_reported(self.path / DATA)

    def _is_closed(self) -> StoreError:
        return StoreError(
            f"{self.path} is closed: its run is over, or its table. What it holds is safe; to read "
            f"it, resume the run, or open a DiskTable or Checkpoint of that folder."
        )

    def _cannot_write(self, reason: lmdb.Error | OSError) -> StoreError:
        if self._users == 0:
            return self._is_closed()
        return unless_damaged(
            self.path / DATA,
            reason,
            WriteError(
                f"Writing to {self.path} failed: {reason}. Is the disk full? What was written "
                f"before is intact; make room and start again."
            ),
        )


def as_json(content: Mapping[str, object]) -> Tensor:
    """A JSON object as bytes for a store, (n,) uint8."""
    return torch.frombuffer(bytearray(json.dumps(content).encode()), dtype=torch.uint8)


def from_json(content: Tensor | bytes | None) -> dict[str, Any]:
    """The JSON object that `as_json` made bytes of; empty where nothing is stored."""
    if content is None:
        return {}
    text = content if isinstance(content, bytes) else content.numpy().tobytes()
    found: dict[str, Any] = json.loads(text)
    return found


def refuse_differences(
    saved: Mapping[str, object], present: Mapping[str, object], what: str
) -> None:
    """Refuses what was saved by something else.

    Args:
        saved: What was said of it when it was saved.
        present: What is said of the one that asks now.
        what: How the message begins.

    Raises:
        StoreError: They differ; the message names each difference.
    """
    differences = [
        f"{name}={saved.get(name)} (now {value})"
        for name, value in present.items()
        if saved.get(name) != value
    ]
    if differences:
        raise StoreError(
            f"{what} was made for {', '.join(differences)}. Use the settings it was made with, or "
            f"another folder; nothing was changed."
        )


def _bytes_of(tensor: Tensor) -> _Bytes:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
