"""Writes a file whole or not at all, so that no reader and no crash ever finds half of it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


def write_whole(file: Path, content: str | bytes) -> None:
    """Writes a file, whole or not at all, in place of an older one of that name.

    The content goes to a file beside it first, with ``.part`` behind its name, which then takes
    its place in one step. When this returns, a power failure does not undo it. Of two processes
    that write the same file at once the later one waits for the other.

    Args:
        file: Where; its folder must exist.
        content: Bytes, or a text that is written in UTF-8 with its line ends as they are.

    Raises:
        OSError: The disk is full or the place cannot be written to. The older file is as it was,
            and nothing is left beside it.
    """
    draft = file.with_name(f"{file.name}.part")
    with _alone_in(file.parent):
        draft.unlink(missing_ok=True)  # of a process that was killed, or a link to somewhere else
        try:
            with draft.open("xb") as opened:
                opened.write(content.encode("utf-8") if isinstance(content, str) else content)
                opened.flush()
                os.fsync(opened.fileno())  # or after a power failure the new name could be empty
            draft.replace(file)
        except OSError:
            draft.unlink(missing_ok=True)
            raise
    sync_folder(file.parent)


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """One writer at a time, where the system can lock folders: no file is left that says so."""
    with contextlib.ExitStack() as held:
        if fcntl is not None:
            with contextlib.suppress(OSError):  # not to be read, or a drive that locks no folders
                opened = os.open(folder, os.O_RDONLY)
                held.callback(os.close, opened)
                fcntl.flock(opened, fcntl.LOCK_EX)
                held.callback(fcntl.flock, opened, fcntl.LOCK_UN)  # or forked ones would keep it
        yield


def make_folder(folder: Path) -> None:
    """Makes a folder and those above it, so that a power failure does not undo it.

    Args:
        folder: It may be there already, made by a process that was killed before the disk had it.

    Raises:
        OSError: It cannot be made.
    """
    new = [place for place in folder.parents if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for place in (folder, *new):
        sync_folder(place.parent)


def sync_folder(folder: Path) -> None:
    """Waits until the disk has the names of the files in a folder.

    Where a folder cannot be opened for that, as on Windows, the file system sees to it itself.

    Args:
        folder: It.
    """
    with contextlib.suppress(PermissionError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
