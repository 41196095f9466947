"""A folder that holds named tensors and changes only by whole transactions (LMDB).

Kill the process at any instant: the folder reopens at the last transaction that was complete. Every
value carries a checksum. Nothing is pickled: values are plain bytes.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import filelock
import lmdb
import numpy as np
import torch
from torch import Tensor

from fedvarp.errors import FedvarpError

_DATA: Final = "data.mdb"
_FIRST_MAP_SIZE: Final = 64 * 2**20
_MAX_DATABASES: Final = 32
_CHECKSUMS: Final = "checksums"
_DAMAGES: Final = (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError)
_IF_DAMAGED: Final = (
    "Restore it from a copy. Without one there is only round 0 to start from: delete the folder, "
    "or, if it is the checkpoint of a run directory, the whole directory."
)


class StoreError(FedvarpError):
    """The folder cannot be used: damaged, taken by another process, or out of space."""


class WriteError(StoreError):
    """A transaction could not be written; those before it are whole, and can be gone on from."""


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
        path.mkdir(parents=True, exist_ok=True)
        self._lock = filelock.FileLock(path / "lock", thread_local=False)
        try:
            self._lock.acquire(timeout=0)
        except filelock.Timeout:
            raise StoreError(
                f"{path} is in use by another process. Two runs cannot share a folder: wait for "
                f"the other one to end, or choose a new folder."
            ) from None
        try:
            self._environment = _open_environment(path / _DATA, fsync)
        except BaseException:
            self._lock.release()
            raise

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, fsync: bool = True) -> Store:
        """The store in that folder, made if there is none. Call `close` once for every `open`.

        Args:
            path: The folder.
            fsync: Whether a transaction waits for the disk. Without it a killed process loses
                nothing, but a power failure may cost the last transactions.

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
        if fsync and not store._fsync:
            store._wait_for_the_disk()
        return store

    def close(self) -> None:
        """Gives the folder back when the last of its users has closed it."""
        if self._users == 0:
            return
        self._users -= 1
        if self._users == 0:
            del self._opened[self.path]
            self._environment.close()
            self._lock.release()

    def _wait_for_the_disk(self) -> None:
        """One of several users wants fsync: from now on all get it."""
        self._environment.close()
        self._databases.clear()
        self._environment = _open_environment(self.path / _DATA, fsync=True)
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
        for database in {*emptied, *(database for database, _ in values)}:
            self._database(database)
        checksums = self._database(_CHECKSUMS)
        while True:
            try:
                with self._environment.begin(write=True) as transaction:
                    for database in emptied:
                        transaction.drop(self._databases[database], delete=False)
                    for (database, key), value in values.items():
                        db, name, sum_name = (
                            self._databases[database],
                            key.encode(),
                            f"{database}/{key}".encode(),
                        )
                        if value is None:
                            transaction.delete(name, db=db)
                            transaction.delete(sum_name, db=checksums)
                        else:
                            transaction.put(name, value, db=db)
                            transaction.put(sum_name, _checksum(value), db=checksums)
                return
            except lmdb.MapFullError:
                self._environment.set_mapsize(2 * self._environment.info()["map_size"])
            except lmdb.Error as reason:
                raise self._cannot_write(reason) from reason

    def compact(self) -> None:
        """Writes the file anew without what was deleted, which stays in free pages until then.

        Raises:
            StoreError: It could not be written; the old file is intact.
        """
        file, draft = self.path / _DATA, self.path / "new.mdb"
        try:
            draft.unlink(missing_ok=True)
            self._environment.copy(str(draft), compact=True)
        except (lmdb.Error, OSError) as reason:
            raise WriteError(f"Writing {draft} failed: {reason}. Is the disk full?") from reason
        self._environment.close()
        self._databases.clear()
        draft.replace(file)
        self._environment = _open_environment(file, self._fsync)

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
        db, checksums = self._database(database), self._database(_CHECKSUMS)
        with self._damage_reported(), self._environment.begin(buffers=True) as transaction:
            value = transaction.get(key.encode(), db=db)
            if value is None:
                return None
            found = np.frombuffer(value, dtype=np.uint8).copy()
            expected = transaction.get(f"{database}/{key}".encode(), db=checksums)
            if expected is None or bytes(expected) != _checksum(found):
                raise StoreError(
                    f"{self.path} is damaged: the checksum of {database}/{key} does not match. "
                    f"{_IF_DAMAGED}"
                )
        return torch.from_numpy(found)

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
            raise StoreError(f"{self.path} is damaged: {database}/{key} {what}. {_IF_DAMAGED}")
        return found.view(dtype).reshape(shape)

    def keys(self, database: str) -> list[str]:
        """All keys of a database."""
        db = self._database(database)
        with self._damage_reported(), self._environment.begin() as transaction:
            return [bytes(key).decode() for key in transaction.cursor(db=db).iternext(values=False)]

    def contains(self, database: str, key: str) -> bool:
        """Whether the key is there; its value is not read."""
        db = self._database(database)
        with self._damage_reported(), self._environment.begin(buffers=True) as transaction:
            return transaction.get(key.encode(), db=db) is not None

    def count(self, database: str) -> int:
        """How many keys a database has; O(1)."""
        db = self._database(database)
        with self._damage_reported(), self._environment.begin() as transaction:
            return int(transaction.stat(db)["entries"])

    def _database(self, name: str) -> Any:
        if name not in self._databases:
            try:
                self._databases[name] = self._environment.open_db(name.encode())
            except lmdb.Error as reason:  # making a database is a write
                raise self._cannot_write(reason) from reason
        return self._databases[name]

    def _damage_reported(self) -> contextlib.AbstractContextManager[None]:
        return _damage_reported(self.path / _DATA)

    def _cannot_write(self, reason: lmdb.Error) -> StoreError:
        if isinstance(reason, _DAMAGES):
            return _unreadable(self.path / _DATA, reason)
        return WriteError(
            f"Writing to {self.path} failed: {reason}. Is the disk full? What was written before "
            f"is intact; make room and start again."
        )


def _open_environment(file: Path, fsync: bool) -> Any:
    if not file.exists():
        _create(file)
    if file.stat().st_size == 0:
        raise StoreError(f"{file} is empty: it was cut off. {_IF_DAMAGED}")
    with _damage_reported(file):
        environment = _open(file, fsync=fsync, map_size=max(_FIRST_MAP_SIZE, file.stat().st_size))
    # LMDB maps the file: reading a page that is not there would kill the process, not raise.
    needed = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
    if file.stat().st_size < needed:
        environment.close()
        raise StoreError(
            f"{file} is damaged: it has {file.stat().st_size} bytes of at least {needed}, so it "
            f"was cut off, perhaps by an incomplete copy. {_IF_DAMAGED}"
        )
    return environment


def _open(file: Path, *, fsync: bool, map_size: int) -> Any:
    return lmdb.open(str(file), subdir=False, map_size=map_size, max_dbs=_MAX_DATABASES, sync=fsync)


def _create(file: Path) -> None:
    """Makes an empty environment under another name first: a file at `file` is always whole."""
    draft = file.with_name("new.mdb")
    _open(draft, fsync=True, map_size=_FIRST_MAP_SIZE).close()
    draft.replace(file)
    draft.with_name("new.mdb-lock").unlink(missing_ok=True)


@contextlib.contextmanager
def _damage_reported(file: Path) -> Iterator[None]:
    try:
        yield
    except lmdb.Error as reason:
        raise _unreadable(file, reason) from reason


def _unreadable(file: Path, reason: lmdb.Error) -> StoreError:
    return StoreError(
        f"{file} cannot be read: {reason}. It is damaged, or not one of ours, and then another "
        f"folder is the way out; nothing in it was changed. If it is ours: {_IF_DAMAGED}"
    )


def as_json(content: Mapping[str, object]) -> Tensor:
    """A JSON object as bytes for a store, (n,) uint8."""
    return torch.frombuffer(bytearray(json.dumps(content).encode()), dtype=torch.uint8)


def from_json(content: Tensor | None) -> dict[str, Any]:
    """The JSON object that `as_json` made bytes of; empty where nothing is stored."""
    if content is None:
        return {}
    found: dict[str, Any] = json.loads(content.numpy().tobytes())
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


def _bytes_of(tensor: Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def _checksum(value: np.ndarray[Any, np.dtype[np.uint8]]) -> bytes:
    """CRC-32 and length."""
    return zlib.crc32(value.data).to_bytes(4, "little") + len(value).to_bytes(8, "little")
