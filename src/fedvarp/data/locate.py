"""Where the data files are: the folder a caller names, or the one FEDVARP_DATA names."""

from __future__ import annotations

import os
from pathlib import Path

from fedvarp.data.errors import MissingDataError

DATA_VARIABLE = "FEDVARP_DATA"


def data_root(root: str | os.PathLike[str] | None, *, download: str) -> Path:
    """The given folder (or file), else the folder of FEDVARP_DATA; it must exist.

    Args:
        root: What the caller was given; None to look at the environment.
        download: The function of `fedvarp.data.download` that would fetch this data set.
    """
    chosen = root if root is not None else os.environ.get(DATA_VARIABLE)
    way_out = f"fedvarp.data.download.{download}(folder) downloads the data into a folder."
    if not chosen:
        raise MissingDataError(
            f"No data folder was given: root is None and the environment variable {DATA_VARIABLE} "
            f"is not set. Set it, or pass root=. {way_out}"
        )
    path = Path(chosen).expanduser()
    if not path.exists():
        origin = "root" if root is not None else DATA_VARIABLE
        raise MissingDataError(f"{origin} names {path}, which does not exist. {way_out}")
    return path


def first_existing(root: Path, candidates: tuple[str, ...], *, download: str) -> Path:
    """The first of the candidates that exists under root; root itself if it is a file."""
    if root.is_file():
        return root
    for name in candidates:
        if (root / name).exists():
            return root / name
    raise MissingDataError(
        f"{root} holds none of {', '.join(candidates)}. Point root= or {DATA_VARIABLE} to the "
        f"folder that does, or let fedvarp.data.download.{download}({str(root)!r}) download it."
    )
