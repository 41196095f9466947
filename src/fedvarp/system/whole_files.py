"""Writes a file whole or not at all, so that no reader and no crash ever finds half of it."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from pathlib import Path
from typing import Final

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_PATIENCE: Final = 10.0  # seconds for another process that writes the same file
_LOOK_EVERY: Final = 0.01
_NO_LINKS: Final = getattr(os, "O_NOFOLLOW", 0)


def write_whole(file: Path, content: str | bytes) -> None:
    """Writes a file, whole or not at all, in place of an older one of that name.

    The content goes to a file beside it first, with ``.part`` behind its name, which then takes
    its place in one step. When this returns, a power failure does not undo it. Of two processes
    that write the same file at once one waits for the other, where the system can lock files.

    Args:
        file: Where; its folder must exist.
        content: Bytes, or a text that is written in UTF-8 with its line ends as they are.

    Raises:
        OSError: The disk is full, the place cannot be written to, or another process is at it and
            does not come to an end. The older file is as it was, and nothing is left beside it.
    """
    draft = file.with_name(f"{file.name}.part")
    descriptor = _open_alone(draft)
    try:
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(content.encode("utf-8") if isinstance(content, str) else content)
            opened.flush()
            os.fsync(descriptor)  # or a power failure could leave the new name without content
            if fcntl is None:
                opened.close()  # Windows renames no open file
            draft.replace(file)  # while it is locked
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    sync_folder(file.parent)


def _open_alone(draft: Path) -> int:
    """Opens a draft, empty: perhaps that of a process that was killed, never that of one at work.

    The lock is on the draft itself, and goes with the process: no file is left that says so.
    """
    deadline = time.monotonic() + _PATIENCE
    while True:
        with contextlib.suppress(FileNotFoundError):
            found = draft.stat(follow_symlinks=False)
            if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
                draft.unlink()  # a link to somewhere else, or no file
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | _NO_LINKS, 0o666)
        try:
            if _is_locked(descriptor) and _is_still(draft, descriptor):
                os.ftruncate(descriptor, 0)
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        if time.monotonic() > deadline:
            said = f"another process has been writing it for {_PATIENCE:g} seconds"
            raise BlockingIOError(errno.EAGAIN, said, str(draft))
        time.sleep(_LOOK_EVERY)


def _is_locked(descriptor: int) -> bool:
    """Locks a file, if nobody else has; true as well where there are no locks."""
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return not isinstance(error, BlockingIOError)  # some network drives know no locks
    return True


def _is_still(draft: Path, descriptor: int) -> bool:
    """Whether a draft is the one that was opened: whoever had it may have put it in its place."""
    opened = os.fstat(descriptor)
    try:
        found = draft.stat(follow_symlinks=False)
    except FileNotFoundError:
        return False
    return (found.st_dev, found.st_ino) == (opened.st_dev, opened.st_ino)


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
