"""Runs as they lie on disk, read for looking at: found, loaded, and their curves as arrays."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedvarp.analysis.setting_kinds import TARGET_ACCURACY
from fedvarp.runs.directory import RunDirectory
from fedvarp.runs.errors import RunError
from fedvarp.runs.finished import ending
from fedvarp.runs.identity import flattened

Record = dict[str, Any]
Floats = NDArray[np.float64]
AnyPath = str | os.PathLike[str]

METRICS: Final = {
    "train_loss": "Training loss",
    "test_accuracy": "Test accuracy (%)",
    "test_loss": "Test loss",
}
"""What an evaluation may record, in the order in which figures show it, and its name there."""


@dataclass(frozen=True, eq=False)
class Run:
    """One run: its settings and what each round recorded.

    Attributes:
        path: Its directory, as it was given.
        settings: config.toml, with dots in the names of nested settings: ``local_sgd.lr``.
        metrics: One record for each round; the first is of the initial model.
        seconds: (rounds + 1,) how long each record took; None where that was not kept.
    """

    path: Path
    settings: Mapping[str, Any]
    metrics: Sequence[Record]
    seconds: Floats | None

    @property
    def algorithm(self) -> str:
        """Its name in the settings, such as "fedvarp"."""
        return str(self.settings.get("algorithm", "unknown"))

    @property
    def seed(self) -> int | None:
        """The seed that keyed every draw."""
        return self.settings.get("seed")

    @property
    def last_round(self) -> int:
        """The newest round on record."""
        return int(self.metrics[-1]["round"])

    @property
    def planned_rounds(self) -> int | None:
        """How many rounds the settings ask for."""
        return self.settings.get("rounds")

    @property
    def target_accuracy(self) -> float | None:
        """The accuracy at which it was told to stop, if any."""
        told: float | None = self.settings.get(
            TARGET_ACCURACY, self.settings.get("target_accuracy")
        )
        return told

    @property
    def finished(self) -> bool:
        """Whether it came to its last round, or to the accuracy at which it was to stop."""
        return ending(self.settings, self.metrics) is not None

    @functools.cached_property
    def evaluated(self) -> Sequence[int]:
        """Positions in `metrics` of the rounds that were evaluated."""
        return [i for i, r in enumerate(self.metrics) if any(name in r for name in METRICS)]

    @functools.cached_property
    def rounds(self) -> NDArray[np.int64]:
        """(E,) the rounds that were evaluated."""
        return np.array([self.metrics[i]["round"] for i in self.evaluated], dtype=np.int64)

    def records(self, name: str) -> bool:
        """Tells whether its evaluations measured a metric."""
        return any(name in self.metrics[i] for i in self.evaluated)

    def values(self, name: str) -> Floats:
        """Returns a metric at the evaluated rounds.

        Args:
            name: The metric, one of METRICS.

        Returns:
            (E,) the values; NaN where it was not finite or not measured.
        """
        found = [self.metrics[i].get(name) for i in self.evaluated]
        return np.array([np.nan if v is None else v for v in found], dtype=np.float64)

    @functools.cached_property
    def sent(self) -> Floats:
        """(E,) bytes up and down, of all clients together, until each evaluation."""
        each = [record.get("bytes_up", 0) + record.get("bytes_down", 0) for record in self.metrics]
        return np.cumsum(np.array(each, dtype=np.float64))[list(self.evaluated)]

    @functools.cached_property
    def elapsed(self) -> Floats | None:
        """(E,) seconds until each evaluation; None where a round's time is missing."""
        if self.seconds is None:
            return None
        return np.cumsum(self.seconds)[list(self.evaluated)]

    @classmethod
    def read(cls, path: AnyPath) -> Run:
        """Reads the run in a directory.

        Args:
            path: The directory.

        Returns:
            The run.

        Raises:
            RunError: There is none, its files are damaged, or it has not got to an evaluation yet.
        """
        directory = RunDirectory(path)
        settings, metrics = flattened(directory.settings()), directory.metrics()
        run = cls(Path(path), settings, metrics, _seconds(directory, metrics))
        if not run.evaluated:
            raise RunError(
                f"The run in {path} has recorded no evaluation yet. Wait until it has, resume it, "
                f"or leave it out."
            )
        return run


def find_runs(paths: Iterable[AnyPath]) -> list[Path]:
    """Finds runs.

    Args:
        paths: Run directories, or directories that hold some.

    Returns:
        The run directories, each once, in the order given.

    Raises:
        RunError: One of them does not exist, or holds no run.
    """
    found: dict[Path, Path] = {}
    for path in map(Path, paths):
        for run in runs_at(path):
            found.setdefault(run.resolve(), run)
    if not found:
        raise RunError("No run was named. Name run directories, or a directory that holds some.")
    return list(found.values())


def read_runs(paths: Iterable[AnyPath]) -> tuple[list[Run], list[str]]:
    """Reads all runs that are found.

    Args:
        paths: Run directories, or directories that hold some.

    Returns:
        The runs, and a note about each that is left out because it has no round yet.

    Raises:
        RunError: There is no run with a round, or one cannot be read.
    """
    runs: list[Run] = []
    notes: list[str] = []
    for path in find_runs(paths):
        if _is_empty(path):
            notes.append(f"{path} is left out: no round of it is recorded yet.")
        else:
            runs.append(Run.read(path))
    if not runs:
        raise RunError(" ".join(notes) + " There is nothing else to look at.")
    return runs, notes


def runs_at(path: Path) -> list[Path]:
    """Finds the run directory that a path is, or those below it.

    Args:
        path: A directory.

    Returns:
        Run directories.

    Raises:
        RunError: It does not exist, or holds no run.
    """
    if not path.is_dir():
        what = "is a file" if path.exists() else "does not exist"
        raise RunError(f"{path} {what}. Name run directories, or a directory that holds some.")
    if RunDirectory(path).metrics_file.exists():
        return [path]
    below = sorted(file.parent for file in path.rglob("metrics.jsonl"))
    below = [folder for folder in below if RunDirectory(folder).exists]
    if below:
        return below
    if RunDirectory(path).exists:
        return [path]
    raise RunError(
        f"{path} holds no run: a run is a directory with a config.toml and a metrics.jsonl, and "
        f"there is none in it nor below it."
    )


def _is_empty(path: Path) -> bool:
    metrics = RunDirectory(path).metrics_file
    return not metrics.exists() or metrics.stat().st_size == 0


def _seconds(directory: RunDirectory, metrics: Sequence[Record]) -> Floats | None:
    """How long each record took, or None unless every one of them was timed."""
    if not directory.timings_file.exists():
        return None
    timed = {line["round"]: float(line["seconds"]) for line in directory.timings()}
    if any(record["round"] not in timed for record in metrics):
        return None
    return np.array([timed[record["round"]] for record in metrics])
