"""Algorithms x client learning rates x seeds, each run in a directory of its own.

A sweep is its directories: they are made first, with their settings, and whatever engine there is
only has to resume them. So a sweep that was interrupted goes on by the same call, and finished runs
are not repeated.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fedvarp.experiments.files import SHORT_NAMES, load_settings
from fedvarp.experiments.resuming import mend_if_needed, refuse_to_go_on
from fedvarp.experiments.settings import Settings
from fedvarp.experiments.sweep_engines import Engine
from fedvarp.experiments.sweep_result import SweepResult, SweptRun
from fedvarp.processes import Interruption
from fedvarp.runs.directory import RunDirectory
from fedvarp.runs.finished import is_finished
from fedvarp.runs.identity import with_choice_of_auto
from fedvarp.settings.calls import split_calls
from fedvarp.settings.problems import SettingsError

if TYPE_CHECKING:
    from fedvarp.experiments.build import DataFolder

OnProgress = Callable[[int, int], None]
"""Told now and then how many runs are finished, and how many rounds are trained in all."""

PAPER_GRID: Final = (1e-1, 10**-1.5, 1e-2, 10**-2.5, 1e-3)
_SWEPT: Final = {"algorithm": "--algorithms", "local_sgd.lr": "--client-lrs", "seed": "--seeds"}


@dataclass(frozen=True)
class Grid:
    """What a sweep tries: each algorithm with each rate and each seed.

    Attributes:
        algorithms: Their names.
        client_lrs: η_c; by default the paper's grid.
        seeds: Of the draws; the same seed gives all algorithms the same cohorts and batches.

    Raises:
        SettingsError: One of them is empty, or has a value twice.

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
        """Reads a grid from texts separated by commas.

        Args:
            algorithms: Such as "fedavg,fedvarp".
            client_lrs: Such as "0.1,10^-1.5": rates may be powers, as the paper writes its grid.
            seeds: Such as "0,1,2".

        Returns:
            The grid.

        Raises:
            SettingsError: A text is no number, or the grid is empty or repeats itself.
        """
        try:
            return cls(
                algorithms=tuple(split_calls(algorithms)),
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
    """The runs of a sweep.

    Attributes:
        out: The directory that holds them all.
        grid: What is tried.
        runs: The directory of each run, and its settings.
    """

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
        write: bool = True,
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
            write: Whether to make directories; without them it can be looked at, but not run.

        Returns:
            The sweep, ready to run.

        Raises:
            SettingsError: A run cannot be made so.
            MissingDataError: The data files are not there.
            RunError: A directory holds a run with other settings or more rounds, or one to go on
                with and no checkpoint.
        """
        _refuse_swept(overrides)
        all_settings = [
            load_settings(
                source,
                [
                    *overrides,
                    f"algorithm={json.dumps(algorithm)}",
                    f"local_sgd.lr={lr!r}",
                    f"seed={seed}",
                ],
            )
            for algorithm, lr, seed in product(grid.algorithms, grid.client_lrs, grid.seeds)
        ]
        first = all_settings[0]
        if first.evaluation.target_accuracy is not None:
            raise SettingsError(
                "A sweep compares the last evaluations of runs of one length, and target_accuracy "
                "ends them at different rounds. Add --set evaluation.target_accuracy=none; "
                "`fedvarp compare` tells the rounds to a target."
            )
        folder = Path("runs") / f"{first.name}-sweep" if out is None else Path(out)
        runs = [(folder / settings.run_name, settings) for settings in all_settings]
        for directory, settings in runs:
            mend_if_needed(RunDirectory(directory))
            if RunDirectory(directory).exists:
                refuse_to_go_on(RunDirectory(directory), settings)
            else:
                RunDirectory(directory).refuse_if_taken()
        left = _unfinished(dict(runs))
        if left and runs_here:
            _try_with_the_data(next(iter(left.values())), data_dir)
        for directory, settings in runs if write else ():
            _make_directory(RunDirectory(directory), settings)
        return cls(folder, grid, runs)

    def run(self, engine: Engine, on_progress: OnProgress | None = None) -> SweepResult:
        """Resumes the runs that are not finished, and writes sweep.json.

        The first Ctrl-C lets the runs under way finish their round and ends the sweep; the same
        call goes on.

        Args:
            engine: Who resumes them.
            on_progress: Told how far the sweep has come; None: it runs in silence.

        Returns:
            What became of each run, and the best rates. A run that failed is told there.
        """
        errors: dict[Path, str] = {}
        left = _unfinished(dict(self.runs))
        with Interruption() as stop:
            for outcome in engine.run(list(left), lambda: stop.requested):
                if outcome is not None and outcome.error is not None:
                    errors[outcome.directory] = outcome.error
                left = _unfinished(left)
                if on_progress is not None:
                    on_progress(len(self.runs) - len(left), self._rounds_done(left))
        result = SweepResult(
            directory=self.out,
            runs=[
                _swept(path, settings, path not in left, errors.get(path))
                for path, settings in self.runs
            ],
            client_lrs=self.grid.client_lrs,
            interrupted=stop.requested,
        )
        result.write()
        return result

    @property
    def rounds_done(self) -> int:
        """How many rounds of all runs are trained."""
        return self._rounds_done(dict(self.runs))

    def _rounds_done(self, left: Mapping[Path, Settings]) -> int:
        return sum(
            RunDirectory(path).rounds_done if path in left else settings.rounds
            for path, settings in self.runs
        )


def _unfinished(among: Mapping[Path, Settings]) -> dict[Path, Settings]:
    return {
        path: settings
        for path, settings in among.items()
        if not is_finished(RunDirectory(path), settings.as_toml())
    }


def _swept(path: Path, settings: Settings, finished: bool, error: str | None) -> SweptRun:
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


def _try_with_the_data(settings: Settings, data_dir: DataFolder) -> None:
    """Raises what the run itself would raise before its first round."""
    # Not before everything else is right: they load torch.
    from fedvarp.clusters.names import clusters_by_name
    from fedvarp.experiments.build import build
    from fedvarp.simulation.checks import refuse_impossible

    experiment = build(settings, data_dir)
    try:
        refuse_impossible(experiment.task(settings.run_name))
        table = settings.table
        clusters_by_name(table.clusters, table.recluster_every, experiment.dataset)
    except ValueError as error:
        raise SettingsError(str(error)) from error


def _make_directory(directory: RunDirectory, settings: Settings) -> None:
    if directory.exists:
        told = with_choice_of_auto(settings.as_toml(), directory.settings())
        directory.update_settings(told)
    else:
        directory.create(settings.as_toml())


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
