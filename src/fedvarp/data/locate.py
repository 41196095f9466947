"""Where the data files are: the folder a caller names, or the one FEDVARP_DATA names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from fedvarp.data.federated_dataset import DataError

DATA_VARIABLE: Final = "FEDVARP_DATA"
"""The environment variable that names the folder with the data files."""


class MissingDataError(DataError):
    """There is no such file: the one case in which a download helps."""


def data_root(root: str | os.PathLike[str] | None, *, download: str) -> Path:
    """Finds the folder with the data files: the given one, else that of FEDVARP_DATA.

    Args:
        root: A folder or a file; None to look at the environment.
        download: The function of `fedvarp.data.download` that would fetch this data set.

    Returns:
        A path that exists.

    Raises:
        MissingDataError: No folder was named, or it does not exist.
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
    """Finds the first of several files in a folder.

    Args:
        root: The folder; or the file itself, which is then taken whatever its name.
        candidates: Names of files or folders, the preferred first.
        download: The function of `fedvarp.data.download` that would fetch this data set.

    Returns:
        A path that exists.

    Raises:
        MissingDataError: The folder holds none of them.
    """
    if root.is_file():
        return root
    for name in candidates:
        if (root / name).exists():
            return root / name
    raise MissingDataError(
        f"{root} holds none of {', '.join(candidates)}. Point root= or {DATA_VARIABLE} to the "
        f"folder that does, or let fedvarp.data.download.{download}({str(root)!r}) download it."
    )
