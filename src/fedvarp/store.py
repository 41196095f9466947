"""A folder that holds named tensors and changes only by whole transactions (LMDB).

Kill the process at any instant: the folder reopens at the last transaction that was complete. Every
value carries a checksum. Nothing is pickled: values are plain bytes.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import filelock
import lmdb
import numpy as np
import torch
from torch import Tensor

_DATA: Final = "data.mdb"
_FIRST_MAP_SIZE: Final = 64 * 2**20
_MAX_DATABASES: Final = 32
_CHECKSUMS: Final = "checksums"


class StoreError(Exception):
    """The folder cannot be used: damaged, taken by another process, or out of space."""


class Store:
    """Named databases of named tensors in one folder, open in one process at a time.

    Use `Store.open`: within a process everybody who asks for a folder gets the same store, so that
    a table and a checkpoint in one folder share their transactions.
    """

    _opened: Final[dict[Path, Store]] = {}

    def __init__(self, path: Path, fsync: bool) -> None:
        self.path = path
        self.identity = uuid.uuid4().hex  # of this opening: what was saved earlier may be gone
        self.has_checkpoint = False  # then a checkpoint decides when rows are written
        self._users = 0
        self._databases: dict[str, Any] = {}
        path.mkdir(parents=True, exist_ok=True)
        self._lock = filelock.FileLock(path / "lock")
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
        """
        folder = Path(path).resolve()
        if folder not in cls._opened:
            cls._opened[folder] = cls(folder, fsync)
        store = cls._opened[folder]
        store._users += 1
        return store

    def close(self) -> None:
        """Gives the folder back when the last of its users has closed it."""
        self._users -= 1
        if self._users == 0:
            del self._opened[self.path]
            self._environment.close()
            self._lock.release()

    def write(self, batch: Mapping[tuple[str, str], Tensor]) -> None:
        """Writes all of {(database, key): tensor} in one transaction, or nothing."""
        values = {place: _bytes_of(tensor) for place, tensor in batch.items()}
        for database, _ in values:
            self._database(database)
        checksums = self._database(_CHECKSUMS)
        while True:
            try:
                with self._environment.begin(write=True) as transaction:
                    for (database, key), value in values.items():
                        transaction.put(key.encode(), value, db=self._databases[database])
                        transaction.put(
                            f"{database}/{key}".encode(), _checksum(value), db=checksums
                        )
                return
            except lmdb.MapFullError:
                self._environment.set_mapsize(2 * self._environment.info()["map_size"])
            except lmdb.Error as reason:
                raise StoreError(
                    f"Writing to {self.path} failed: {reason}. Is the disk full? What was written "
                    f"before is intact; make room and start again."
                ) from reason

    def read(self, database: str, key: str) -> Tensor | None:
        """The bytes stored there, (n,) uint8, a copy; None if there are none."""
        db, checksums = self._database(database), self._database(_CHECKSUMS)
        with self._environment.begin(buffers=True) as transaction:
            value = transaction.get(key.encode(), db=db)
            if value is None:
                return None
            found = np.frombuffer(value, dtype=np.uint8).copy()
            expected = transaction.get(f"{database}/{key}".encode(), db=checksums)
            if expected is None or bytes(expected) != _checksum(found):
                raise StoreError(
                    f"{self.path} is damaged: the checksum of {database}/{key} does not match. "
                    f"Restore the folder from a copy, or delete it to start from round 0."
                )
        return torch.from_numpy(found)

    def read_tensor(
        self, database: str, key: str, dtype: torch.dtype, shape: tuple[int, ...]
    ) -> Tensor:
        """The tensor stored there, which must be of that dtype and shape."""
        found = self.read(database, key)
        size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        if found is None or len(found) != size:
            what = "is missing" if found is None else f"has {len(found)} bytes, not {size}"
            raise StoreError(f"{self.path}: {database}/{key} {what}. The folder is incomplete.")
        return found.view(dtype).reshape(shape)

    def keys(self, database: str) -> list[str]:
        """All keys of a database."""
        db = self._database(database)
        with self._environment.begin() as transaction:
            return [bytes(key).decode() for key in transaction.cursor(db=db).iternext(values=False)]

    def contains(self, database: str, key: str) -> bool:
        """Whether the key is there; its value is not read."""
        db = self._database(database)
        with self._environment.begin(buffers=True) as transaction:
            return transaction.get(key.encode(), db=db) is not None

    def count(self, database: str) -> int:
        """How many keys a database has; O(1)."""
        db = self._database(database)
        with self._environment.begin() as transaction:
            return int(transaction.stat(db)["entries"])

    def _database(self, name: str) -> Any:
        if name not in self._databases:
            self._databases[name] = self._environment.open_db(name.encode())
        return self._databases[name]


def _open_environment(file: Path, fsync: bool) -> Any:
    if not file.exists():
        _create(file)
    if file.stat().st_size == 0:
        raise StoreError(f"{file} is empty: it was cut off. Restore it, or delete its folder.")
    with _damage_reported(file):
        environment = _open(file, fsync=fsync, map_size=max(_FIRST_MAP_SIZE, file.stat().st_size))
    # LMDB maps the file: reading a page that is not there would kill the process, not raise.
    needed = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
    if file.stat().st_size < needed:
        environment.close()
        raise StoreError(
            f"{file} is damaged: it has {file.stat().st_size} bytes of at least {needed}, so it "
            f"was cut off, perhaps by an incomplete copy. Copy it again, or delete its folder to "
            f"start from round 0."
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
        raise StoreError(
            f"{file} cannot be opened: {reason}. It is damaged or not one of ours; nothing in it "
            f"was changed."
        ) from reason


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
    """Raises StoreError, naming each difference, if what was saved belongs to something else."""
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
    """Length and sum of the 64-bit words: catches damage at the speed of memory."""
    whole = len(value) // 8 * 8
    total = int(value[:whole].view(np.uint64).sum(dtype=np.uint64))
    total += int.from_bytes(value[whole:].tobytes(), "little")
    return (total % 2**64).to_bytes(8, "little") + len(value).to_bytes(8, "little")
