"""Writes a file whole or not at all, so that no reader and no crash ever finds half of it."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(file: Path, content: str | bytes) -> None:
    """Writes a file, whole or not at all, in place of an older one of that name.

    The content goes to a file beside it first, with ``.part`` behind its name, which then takes
    its place in one step.

    Args:
        file: Where; its folder must exist.
        content: Bytes, or a text that is written in UTF-8 with its line ends as they are.

    Raises:
        OSError: The disk is full or the place cannot be written to. The older file is as it was,
            and nothing is left beside it.
    """
    draft = file.with_name(f"{file.name}.part")
    try:
        with draft.open("wb") as opened:
            opened.write(content.encode("utf-8") if isinstance(content, str) else content)
            opened.flush()
            os.fsync(opened.fileno())  # or a power failure could leave the new name without content
        draft.replace(file)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
