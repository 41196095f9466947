"""The states of a store before the newest, to go back to where both newest ones are damaged.

LMDB's file names two states, by its two meta pages, and never overwrites their pages. Pages that
older states need are not used again while a reader has them open, and they share with the newest
all that did not change. What their meta pages said is noted in a small file beside. Nobody waits
for that file, and nothing in it is believed: a state is gone back to once it is proven whole.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from fedvarp.tables.pages import IS_KNOWN, META_BYTES, Snapshot, snapshot_of, snapshots

ALWAYS: Final = 2
"""How many states a file holds without further ado."""

_NOTES: Final = "earlier.mdb"


class EarlierStates:
    """Keeps states of one opened file from being overwritten.

    Args:
        file: That of the store.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._readers: deque[Any] = deque()
        self.count = ALWAYS  # states that the file is to hold, the newest included

    def hold_newest(self, environment: Any) -> None:
        """Called before each transaction, which would make the newest state an earlier one.

        Args:
            environment: LMDB's, of the file.

        Raises:
            OSError: The note of it cannot be written.
        """
        if self.count <= ALWAYS or not IS_KNOWN:
            return
        newest = environment.info()["last_txnid"]
        if self._readers and self._readers[-1].id() == newest:
            return  # the transaction after it had failed, and is tried again
        self._note()
        self._readers.append(environment.begin())
        while len(self._readers) > self.count - 1:
            self._readers.popleft().abort()

    def _note(self) -> None:
        with _opened(self._file, os.O_RDONLY) as data:
            newest = snapshots(data)[0]
        place = newest.transaction % self.count * META_BYTES
        with _opened(_notes_beside(self._file), os.O_WRONLY | os.O_CREAT) as notes:
            os.pwrite(notes, newest.meta, place)

    def let_go(self) -> None:
        """Called before the file is closed, replaced, or mapped anew as it has grown.

        From then on there are two states again, and one more with each transaction.
        """
        while self._readers:
            self._readers.pop().abort()


def noted_snapshots(file: Path, *, before: int | None) -> list[Snapshot]:
    """The earlier states that are noted beside a file; whether they are there is to be proven.

    Args:
        file: That of a store.
        before: The number of a transaction that is newer than they; None: any.

    Returns:
        Those that can be meant, the newest first.
    """
    try:
        content = _notes_beside(file).read_bytes()
    except FileNotFoundError:
        return []
    metas = (content[at : at + META_BYTES] for at in range(0, len(content), META_BYTES))
    found = [snapshot for meta in metas if (snapshot := snapshot_of(meta)) is not None]
    older = [each for each in found if before is None or each.transaction < before]
    return sorted(older, key=lambda each: each.transaction, reverse=True)


def forget_notes(file: Path) -> None:
    """Removes what is noted of a file that is replaced by another."""
    _notes_beside(file).unlink(missing_ok=True)


def _notes_beside(file: Path) -> Path:
    return file.with_name(_NOTES)


@contextlib.contextmanager
def _opened(file: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(file, flags | os.O_NOFOLLOW, 0o666)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
