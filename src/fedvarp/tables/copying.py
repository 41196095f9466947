"""Reads and copies a store that somebody may be writing to, in this process or another."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock

from fedvarp.system.whole_files import make_folder
from fedvarp.tables.data_file import DATA, LOCK, damage_reported, inspect, open_environment
from fedvarp.tables.pages import IS_KNOWN, snapshots
from fedvarp.tables.store import Store, StoreError


@contextlib.contextmanager
def undisturbed(folder: Path) -> Iterator[None]:
    """Keeps the pages of a store as they are while they are read.

    Args:
        folder: Of the store.

    Raises:
        StoreError: Another process writes to it, and LMDB cannot hold it still; or what was read
            seemed damaged while somebody wrote, and nothing could be held.
    """
    with contextlib.ExitStack() as held:
        environment = Store.environment_here(folder)
        is_held = environment is not None
        if environment is None and os.access(folder / LOCK, os.W_OK):
            lock = filelock.FileLock(folder / LOCK, thread_local=False)
            try:
                lock.acquire(timeout=0)
                held.callback(lock.release)
                is_held = True
            except filelock.Timeout:
                environment = held.enter_context(_opened(folder / DATA))
        if environment is not None:  # a reader of LMDB's own: its pages are not used again
            with damage_reported(folder / DATA):
                held.enter_context(environment.begin())
                is_held = True
        before = _transactions(folder / DATA)
        try:
            yield
        except StoreError as error:
            if is_held or _transactions(folder / DATA) == before:
                raise
            raise StoreError(
                f"{folder / DATA} was written to while it was read, and cannot be held still: its "
                f"lock file is not yours to write. Ask again as the user who trains it, or when it "
                f"is not being trained."
            ) from error


def _transactions(file: Path) -> list[int]:
    """The states that a file has right now; none where its layout is not known."""
    if not IS_KNOWN:
        return []
    with file.open("rb") as opened:
        return [snapshot.transaction for snapshot in snapshots(opened.fileno())]


def copy_store(folder: Path, to: Path) -> None:
    """Copies the newest state of a store.

    Args:
        folder: Of the store.
        to: A folder, made if there is none, and without a store.

    Raises:
        StoreError: The store cannot be read, or the copy is not whole.
    """
    with undisturbed(folder):
        # Or LMDB would say of a damaged one what it can.
        found = inspect(folder / DATA, with_values=False)
        if found.wrong is not None:
            raise StoreError(
                f"{folder / DATA} is damaged in its newest transaction ({found.wrong}); one before "
                f"it is whole. Going on with the run goes on from there, and puts it right: "
                f"resume it, then copy it."
            )
    make_folder(to)
    with contextlib.ExitStack() as held:
        environment = Store.environment_here(folder)
        if environment is None:
            environment = held.enter_context(_opened(folder / DATA))
        with damage_reported(folder / DATA):
            environment.copy(str(to / DATA), compact=False)
    inspect(to / DATA, with_values=True)


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[Any]:
    environment = open_environment(file, fsync=True, readonly=True)
    try:
        yield environment
    finally:
        environment.close()
