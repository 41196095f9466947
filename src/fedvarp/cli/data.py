"""`fedvarp data`: is the data set there and sound, and if not, its download."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from fedvarp.data import DataError, FederatedDataset, cifar10, download, shakespeare
from fedvarp.data.locate import DATA_VARIABLE, MissingDataError


def fetch_and_verify(name: str, data_dir: Path | None, show: bool) -> Iterator[str]:
    """Says what is there; downloads what is missing or damaged, going on with an earlier attempt.

    Args:
        name: "cifar10" or "shakespeare".
        data_dir: The folder; None: that of FEDVARP_DATA.
        show: Whether to show a bar.

    Raises:
        DataError: The download failed, or the folder holds a damaged copy of another name besides.
    """
    folder = _folder(name, data_dir)
    load = _LOADERS[name]
    try:
        yield f"{name} in {folder} is complete and verified: {load(folder)!r}"
        return
    except MissingDataError:
        yield f"{name} is not in {folder} yet; downloading it."
    except DataError as damaged:
        yield f"{damaged} Downloading it again."
    folder.mkdir(parents=True, exist_ok=True)
    with _bar(name, show) as progress:
        file = _DOWNLOADS[name](folder, progress=progress)
    yield f"Downloaded {file} ({file.stat().st_size:,} bytes)."
    try:
        yield f"{name} in {folder} is complete and verified: {load(folder)!r}"
    except DataError as error:  # of another copy in the folder, which comes first
        raise DataError(f"{error} {file} is sound: delete the damaged copy.") from error
    if data_dir is not None:
        yield f"Runs find it by --data-dir {folder}, or by {DATA_VARIABLE}={folder}."


_LOADERS: dict[str, Callable[[Path], FederatedDataset]] = {
    "cifar10": cifar10,
    "shakespeare": shakespeare,
}
_DOWNLOADS: dict[str, Callable[..., Path]] = {
    "cifar10": download.download_cifar10,
    "shakespeare": download.download_shakespeare,
}


def _folder(name: str, data_dir: Path | None) -> Path:
    chosen = data_dir or os.environ.get(DATA_VARIABLE)
    if not chosen:
        raise DataError(
            f"No folder was named. `fedvarp data {name} --data-dir DIR` looks for the data in DIR "
            f"and downloads it there; the environment variable {DATA_VARIABLE} names one for good."
        )
    return Path(chosen).expanduser()


@contextmanager
def _bar(name: str, show: bool) -> Iterator[download.Progress]:
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not show,
    ) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
