"""Runs as they lie on disk, read for looking at: found, loaded, and their curves as arrays.

A run is a directory, or one line of a file that `fedvarp compact` wrote.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol, Self, TypeGuard

import numpy as np
from numpy.typing import NDArray
from pydantic import SkipValidation

from fedvarp.analysis.ignored import ignoring
from fedvarp.analysis.metric_names import METRICS
from fedvarp.analysis.setting_kinds import TARGET_ACCURACY
from fedvarp.runs.directory import RunDirectory
from fedvarp.runs.divergence import Verdict, judged
from fedvarp.runs.errors import RunError
from fedvarp.runs.figures import is_figure, recorded_figures
from fedvarp.runs.finished import ending
from fedvarp.runs.identity import flattened, nested, with_later_settings
from fedvarp.runs.record_kinds import refuse_other_kinds, refuse_other_place
from fedvarp.settings.problems import shown
from fedvarp.system.parsing import parse_json

Record = dict[str, Any]
Floats = NDArray[np.float64]
AnyPath = str | os.PathLike[str]


class Trained(Protocol):
    """What `simulate` returns, as far as it is looked at here: a run that need not lie on disk."""

    @property
    def metrics(self) -> Sequence[Record]:
        """One record for each round."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """What it was made with, nested as in config.toml."""


Paths = Annotated[
    Iterable[AnyPath | Trained] | Mapping[str, AnyPath | Trained] | AnyPath | Trained,
    SkipValidation,
]
"""What `read_runs` takes: paths of runs or results, a single one, or some by name."""


@dataclass(frozen=True, eq=False)
class Run:
    """One run: its settings and what each round recorded.

    Attributes:
        path: Its directory, as it was given; of a compacted run, the file and its name there.
        settings: config.toml, with dots in the names of nested settings: ``local_sgd.lr``.
        metrics: One record for each round; the first is of the initial model. A compacted run has
            records of its evaluated rounds only.
        seconds: (records,) how long each record took; None where that was not kept.
        versions: What it was run with; None where that was not kept.
        label: What whoever looks at it calls it; None: by its algorithm and settings.
    """

    path: Path
    settings: Mapping[str, Any]
    metrics: Sequence[Record]
    seconds: Floats | None
    versions: Mapping[str, Any] | None = None
    label: str | None = None

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
    def verdict(self) -> Verdict:
        """How many replies were refused, and whether anything was learned."""
        return judged(self.metrics)

    @functools.cached_property
    def evaluated(self) -> Sequence[int]:
        """Positions in `metrics` of the rounds that were evaluated."""
        return [i for i, r in enumerate(self.metrics) if any(name in r for name in METRICS)]

    @functools.cached_property
    def figures(self) -> list[str]:
        """The names of all figures that its evaluations recorded."""
        return recorded_figures(self.metrics[i] for i in self.evaluated)

    @functools.cached_property
    def rounds(self) -> NDArray[np.int64]:
        """(E,) the rounds that were evaluated."""
        return np.array([self.metrics[i]["round"] for i in self.evaluated], dtype=np.int64)

    def records(self, name: str) -> bool:
        """Tells whether its evaluations measured a metric."""
        values = [self.metrics[i][name] for i in self.evaluated if name in self.metrics[i]]
        return any(is_figure(value) for value in values)

    def values(self, name: str) -> Floats:
        """Returns a metric at the evaluated rounds.

        Args:
            name: The metric: any number that a round records.

        Returns:
            (E,) the values; NaN where it was not finite or not measured.
        """
        found = [self.metrics[i].get(name) for i in self.evaluated]
        numbers = [v if isinstance(v, int | float) else np.nan for v in found]
        return np.array(numbers, dtype=np.float64)

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
        seconds, versions = _seconds(directory, metrics), _versions(directory)
        return cls(Path(path), settings, metrics, seconds, versions)._evaluated_or_refused()

    @classmethod
    def of_result(cls, result: Trained, name: str) -> Run:
        """Takes what `simulate` returned.

        Args:
            result: Of a run, recorded or not.
            name: Stands for its directory in messages.

        Returns:
            The run; its rounds were not timed.

        Raises:
            RunError: It has no evaluation.
        """
        settings = flattened(result.settings)
        return cls(Path(name), settings, result.metrics, None)._evaluated_or_refused()

    def _evaluated_or_refused(self) -> Self:
        if not self.evaluated:
            raise RunError(
                f"The run in {self.path} has recorded no evaluation yet. Wait until it has, resume "
                f"it, or leave it out."
            )
        return self


def read_runs(paths: Paths, ignore: str | Sequence[str] = ()) -> tuple[list[Run], list[str]]:
    """All runs among `paths` and below them, each once, and notes: what is empty or ignored.

    Args:
        paths: Run directories, directories that hold some, files of compacted runs, or what
            `simulate` returned; in a mapping, by what to call them.
        ignore: Settings, or sections of them, that the runs are read without.

    Raises:
        RunError: A path does not exist or holds no run, a run cannot be read, there is nothing
            to look at, or a setting cannot be ignored.
    """
    runs: dict[Path, Run] = {}
    notes: dict[str, None] = {}
    for number, (label, given) in enumerate(_named(paths), start=1):
        if isinstance(given, Path):
            places = runs_at(given)
            empty = [place for place in places if place.is_dir() and _is_empty(place)]
            for place in empty:
                notes[f"{place} is left out: no round of it is recorded yet."] = None
            found = [run for place in places if place not in empty for run in read_at(place)]
        else:
            found = [Run.of_result(given, f"result {number}")]
        for run in found:
            runs.setdefault(run.path.resolve(), dataclasses.replace(run, label=label))
    if not runs:
        raise RunError(
            f"{' '.join(notes)} There is nothing else to look at."
            if notes
            else "No run was named. Name run directories, or a directory that holds some."
        )
    told, kept = ignoring([run.settings for run in runs.values()], ignore)
    pairs = zip(runs.values(), kept, strict=True)
    return [dataclasses.replace(one, settings=some) for one, some in pairs], [*notes, *told]


def is_result(given: object) -> TypeGuard[Trained]:
    """Whether it is what `simulate` returned, and no path."""
    return hasattr(given, "metrics") and hasattr(given, "settings")


def listed(paths: Paths) -> list[Path]:
    """The paths of runs; a single one may stand for a list of one.

    Raises:
        RunError: They are no paths.
    """
    named = [path for _, path in _named(paths)]
    if any(is_result(path) for path in named):
        raise RunError("A result lies on no disk: name the directory that its run was recorded in.")
    return [path for path in named if isinstance(path, Path)]


def _named(given: Any) -> list[tuple[str | None, Path | Trained]]:
    """Each path or result, with what it is called if that was said."""
    if isinstance(given, str | os.PathLike) or is_result(given):
        given = [given]
    try:
        named = list(given.items()) if isinstance(given, Mapping) else [(None, g) for g in given]
        return [(name, one if is_result(one) else Path(one)) for name, one in named]
    except TypeError as error:
        raise RunError(
            f"{shown(given)} names no runs. Name run directories, or a directory that holds some; "
            f"or give what simulate() returned."
        ) from error


def runs_at(path: AnyPath) -> list[Path]:
    """The run directory that `path` is, or those below it; a file of compacted runs as it is.

    Raises:
        RunError: It does not exist, or holds no run.
    """
    path = Path(path)
    if file_of(path) is not None:
        return [path]
    if not path.is_dir():
        raise RunError(
            f"{path} does not exist. Name run directories, or a directory that holds some."
        )
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


def file_of(path: Path) -> Path | None:
    """The file of compacted runs that `path` is or leads into, as `runs.jsonl/fedavg-seed0` does.

    None: it is a path of directories.
    """
    return next((part for part in (path, *path.parents) if part.is_file()), None)


def read_at(place: Path) -> list[Run]:
    """The run in a directory, or the runs of a file that `fedvarp compact` wrote.

    Args:
        place: The directory, the file, or a path into the file: the runs of that name or below it.

    Raises:
        RunError: The directory or the file cannot be read as such, or has no such run.
    """
    file = file_of(place)
    if file is None:
        return [Run.read(place)]
    try:
        lines = file.read_text(encoding="utf-8").splitlines() or [""]
        runs = [_compacted(file, parse_json(line)) for line in lines]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise RunError(
            f"{file} is not a file of compacted runs, or is damaged ({error!r}). Name run "
            f"directories, or files that `fedvarp compact` wrote."
        ) from error
    found = [run for run in runs if run.path.is_relative_to(place)]
    if not found:
        raise RunError(f"{place} does not exist: {file} holds no run of that name, nor below it.")
    return found


def _compacted(file: Path, line: Mapping[str, Any]) -> Run:
    """The run of one line; compact.py says what is in it."""
    columns: Mapping[str, Sequence[Any]] = line["metrics"]
    metrics = [
        {
            name: column[i]
            for name, column in columns.items()
            # An evaluation that was not finite is null; elsewhere null is a record without it.
            if i < len(column) and (column[i] is not None or name in METRICS)
        }
        for i in range(len(columns["round"]))
    ]
    for record in metrics:
        refuse_other_kinds(record)
    for before, record in itertools.pairwise(metrics):
        refuse_other_place(record, metrics[0], before)
    seconds = None if line["seconds"] is None else np.array(line["seconds"], dtype=np.float64)
    settings = flattened(with_later_settings(nested(line["settings"])))
    return Run(file / line["run"], settings, metrics, seconds, line["versions"])


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


def _versions(directory: RunDirectory) -> Record | None:
    """versions.json, or None where it is missing or damaged: no figure depends on it."""
    try:
        versions: Record = parse_json(directory.versions_file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return versions
