"""Folders that are made for a file, and said to be."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import typer


@contextlib.contextmanager
def telling_new_folders(file: Path) -> Iterator[None]:
    """Says which folder was made for a file that is written in the `with` block."""
    folder, is_new = file.parent, not file.parent.exists()
    yield
    if is_new:
        typer.echo(f"Made the folder {folder}.", err=True)
