"""Algorithms x client learning rates x seeds, each run in a directory of its own.

A sweep is its directories: they are made first, with their settings, and whatever engine there is
only has to resume them. So a sweep that was interrupted goes on by the same call, and finished runs
are not repeated.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedvarp.experiments.errors import SettingsError
from fedvarp.experiments.files import SHORT_NAMES, load_settings
from fedvarp.experiments.resuming import is_finished
from fedvarp.experiments.settings import Settings
from fedvarp.experiments.sweep_engines import Engine
from fedvarp.experiments.sweep_result import SweepResult, SweptRun
from fedvarp.processes import Interruption
from fedvarp.runs.directory import MAY_CHANGE, RunDirectory

if TYPE_CHECKING:
    from fedvarp.experiments.build import DataFolder

PAPER_GRID: Final = (1e-1, 10**-1.5, 1e-2, 10**-2.5, 1e-3)
_SWEPT: Final = {"algorithm": "--algorithms", "local_sgd.lr": "--client-lrs", "seed": "--seeds"}


@dataclass(frozen=True)
class Grid:
    """What is tried; the product of the three.

    >>> Grid.parse("fedavg,fedvarp", "10^-1,0.03", "0,1").client_lrs
    (0.1, 0.03)
    """

    algorithms: tuple[str, ...]
    client_lrs: tuple[float, ...] = PAPER_GRID
    seeds: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        for name, values in (
            ("algorithms", self.algorithms),
            ("client learning rates", [f"{lr:g}" for lr in self.client_lrs]),
            ("seeds", self.seeds),
        ):
            if not values or len(set(values)) < len(values):
                raise SettingsError(
                    f"A sweep needs {name} that differ, at least one; got {list(values)}."
                )

    @classmethod
    def parse(cls, algorithms: str, client_lrs: str, seeds: str) -> Grid:
        """From texts separated by commas; rates may be powers, as the paper writes its grid."""
        try:
            return cls(
                algorithms=tuple(_parts(algorithms)),
                client_lrs=tuple(_rate(text) for text in _parts(client_lrs)),
                seeds=tuple(int(text) for text in _parts(seeds)),
            )
        except SettingsError:
            raise
        except ValueError as error:
            raise SettingsError(
                f"A sweep takes numbers separated by commas, such as --client-lrs 0.1,10^-1.5 and "
                f"--seeds 0,1,2; {error}."
            ) from error
        except ArithmeticError as error:  # 10^400, 0^-1
            raise SettingsError(
                f"--client-lrs {client_lrs}: a power in it is too large, or one of 0 to less than "
                f"0. Rates are numbers above 0, such as 0.1 or 10^-1.5."
            ) from error


@dataclass(frozen=True)
class Sweep:
    """The runs of a sweep, their directories made."""

    out: Path
    grid: Grid
    runs: Sequence[tuple[Path, Settings]]

    @classmethod
    def prepare(
        cls,
        source: str | os.PathLike[str],
        overrides: Sequence[str],
        grid: Grid,
        out: str | os.PathLike[str] | None = None,
        data_dir: DataFolder = None,
        runs_here: bool = True,
    ) -> Sweep:
        """Checks all settings, then makes the directories that are not there yet.

        What can be known only with the data is checked for one of the runs that are left: all have
        the same federation, cohorts and model.

        Args:
            source: A preset or a config file.
            overrides: ``key=value`` texts for all runs.
            grid: What is tried.
            out: Where the runs go; None: runs/<name>-sweep.
            data_dir: Where the data files are; None: in the folder of FEDVARP_DATA.
            runs_here: Whether this machine will train, and so has the data and the device.

        Raises:
            SettingsError: A run cannot be made so.
            MissingDataError: The data files are not there.
            RunError: A directory holds a run with other settings, or one to go on with and no
                checkpoint.
        """
        _refuse_swept(overrides)
        all_settings = [
            load_settings(
                source,
                [*overrides, f'algorithm="{algorithm}"', f"local_sgd.lr={lr!r}", f"seed={seed}"],
            )
            for algorithm, lr, seed in product(grid.algorithms, grid.client_lrs, grid.seeds)
        ]
        first = all_settings[0]
        if first.target_accuracy is not None:
            raise SettingsError(
                "A sweep compares the last evaluations of runs of one length, and target_accuracy "
                "ends them at different rounds. Add --set target_accuracy=none; `fedvarp compare` "
                "tells the rounds to a target."
            )
        folder = Path("runs") / f"{first.name}-sweep" if out is None else Path(out)
        runs = [(folder / settings.run_name, settings) for settings in all_settings]
        for directory, settings in runs:
            _check_directory(RunDirectory(directory), settings)
        left = [s for directory, s in runs if not is_finished(RunDirectory(directory), s)]
        if left and runs_here:
            _try_with_the_data(left[0], data_dir)
        for directory, settings in runs:
            _make_directory(RunDirectory(directory), settings)
        return cls(folder, grid, runs)

    def run(self, engine: Engine, progress: bool = False) -> SweepResult:
        """Resumes what is not finished; writes sweep.json, whatever happens in between."""
        errors: dict[Path, str] = {}
        left = self._unfinished(dict(self.runs))
        with Interruption() as stop, self._bar(progress) as bar:
            task = bar.add_task("", total=sum(settings.rounds for _, settings in self.runs))
            for outcome in engine.run(list(left), lambda: stop.requested):
                if outcome is not None and outcome.error is not None:
                    errors[outcome.directory] = outcome.error
                left = self._unfinished(left)
                bar.update(
                    task,
                    description=f"{len(self.runs) - len(left)} of {len(self.runs)} runs",
                    completed=sum(
                        RunDirectory(path).rounds_done if path in left else settings.rounds
                        for path, settings in self.runs
                    ),
                )
        result = SweepResult(
            directory=self.out,
            runs=[
                self._swept(path, settings, path not in left, errors.get(path))
                for path, settings in self.runs
            ],
            client_lrs=self.grid.client_lrs,
            interrupted=stop.requested,
        )
        result.write()
        return result

    def _swept(self, path: Path, settings: Settings, finished: bool, error: str | None) -> SweptRun:
        directory = RunDirectory(path)
        return SweptRun(
            directory=path,
            algorithm=settings.algorithm,
            client_lr=settings.local_sgd.lr,
            seed=settings.seed,
            rounds=directory.rounds_done,
            finished=finished,
            error=error,
            metrics=directory.metrics() if directory.metrics_file.exists() else [],
        )

    def _unfinished(self, among: Mapping[Path, Settings]) -> dict[Path, Settings]:
        return {
            path: settings
            for path, settings in among.items()
            if not is_finished(RunDirectory(path), settings)
        }

    def _bar(self, show: bool) -> Progress:
        return Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("rounds"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not show,
        )


def _check_directory(directory: RunDirectory, settings: Settings) -> None:
    if not directory.exists:
        return
    directory.refuse_other_settings(settings.as_toml(), MAY_CHANGE)
    done = directory.rounds_done
    if done > settings.rounds:
        raise SettingsError(
            f"{directory.path} has trained {done} rounds already, more than rounds="
            f"{settings.rounds}. A shorter sweep needs a directory of its own: --out."
        )
    if not is_finished(directory, settings):
        directory.refuse_without_checkpoint()


def _try_with_the_data(settings: Settings, data_dir: DataFolder) -> None:
    """Raises what the run itself would raise before its first round."""
    # Not before everything else is right: they load torch.
    from fedvarp.clusters.names import clusters_by_name
    from fedvarp.experiments.build import build

    dataset = build(settings, data_dir).dataset
    try:
        clusters_by_name(settings.clusters, settings.recluster_every, dataset)
    except ValueError as error:
        raise SettingsError(str(error)) from error


def _make_directory(directory: RunDirectory, settings: Settings) -> None:
    if not directory.exists:
        directory.create(settings.as_toml())
        return
    directory.update_settings(directory.by_the_choice(settings.as_toml()))


def _refuse_swept(overrides: Sequence[str]) -> None:
    for text in overrides:
        key = text.partition("=")[0].strip()
        option = _SWEPT.get(SHORT_NAMES.get(key, key))
        if option is not None:
            raise SettingsError(f"--set {text}: a sweep is told so by {option}.")


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _rate(text: str) -> float:
    base, power, exponent = text.partition("^")
    return float(base) ** float(exponent) if power else float(base)
