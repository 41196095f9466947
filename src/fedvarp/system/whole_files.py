"""Writes a file whole or not at all, so that no reader and no crash ever finds half of it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write_whole(file: Path, content: str | bytes) -> None:
    """Writes a file, whole or not at all, in place of an older one of that name.

    The content goes to a file beside it first, with ``.part`` behind its name, which then takes
    its place in one step. When this returns, a power failure does not undo it.

    Args:
        file: Where; its folder must exist.
        content: Bytes, or a text that is written in UTF-8 with its line ends as they are.

    Raises:
        OSError: The disk is full or the place cannot be written to. The older file is as it was,
            and nothing is left beside it.
    """
    draft = file.with_name(f"{file.name}.part")
    draft.unlink(missing_ok=True)  # of a process that was killed, or a link to somewhere else
    try:
        with draft.open("xb") as opened:
            opened.write(content.encode("utf-8") if isinstance(content, str) else content)
            opened.flush()
            os.fsync(opened.fileno())  # or a power failure could leave the new name without content
        draft.replace(file)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    sync_folder(file.parent)


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
