"""Algorithms x client learning rates x seeds x any setting, each run in a directory of its own.

A sweep is its directories: they are made first, with their settings, and whatever engine there is
only has to resume them. So a sweep that was interrupted goes on by the same call, and finished runs
are not repeated.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fedvarp.experiments.files import load_settings
from fedvarp.experiments.resuming import mend_if_needed, refuse_to_go_on
from fedvarp.experiments.settings import Settings
from fedvarp.experiments.sweep_engines import Engine
from fedvarp.experiments.sweep_grid import Grid, in_a_file_name, in_words
from fedvarp.experiments.sweep_result import SweepResult, SweptRun, refuse_unmeasured
from fedvarp.runs.directory import RunDirectory
from fedvarp.runs.finished import is_finished
from fedvarp.runs.identity import with_choice_of_auto
from fedvarp.settings.problems import SettingsError
from fedvarp.system.processes import Interruption

if TYPE_CHECKING:
    from fedvarp.experiments.build import DataFolder

_SET_ASIDE: Final = 0.2  # of the test examples, to choose by

OnProgress = Callable[[int, int], None]
"""Told now and then how many runs are finished, and how many rounds are trained in all."""


@dataclass(frozen=True)
class Sweep:
    """The runs of a sweep.

    Attributes:
        out: The directory that holds them all.
        grid: What is tried.
        runs: The directory of each run, and its settings.
        others: Of each run, what it has of the grid's other settings.
        select_on: What the best rates are chosen by; see `prepare`.
    """

    out: Path
    grid: Grid
    runs: Sequence[tuple[Path, Settings]]
    others: Mapping[Path, Mapping[str, str]]
    select_on: str | None = None

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
        select_on: str | None = None,
    ) -> Sweep:
        """Checks all settings, then makes the directories that are not there yet.

        What can be known only with the data is checked for one of the runs that are left, of each
        algorithm and combination of the grid's other settings: the rest have the same federation.

        Args:
            source: A preset or a config file.
            overrides: ``key=value`` texts for all runs.
            grid: What is tried.
            out: Where the runs go; None: runs/<name>-sweep.
            data_dir: Where the data files are; None: in the folder of FEDVARP_DATA.
            runs_here: Whether this machine will train, and so has the data and the device.
            write: Whether to make directories; without them it can be looked at, but not run.
            select_on: What the best rates are chosen by: "validation", for which a fifth of the
                test examples is set aside unless evaluation.validation_share says how many;
                "test", "train", or a figure such as "test_auc". None: as `SweepResult.metric`.

        Returns:
            The sweep, ready to run.

        Raises:
            SettingsError: A run cannot be made so.
            MissingDataError: The data files are not there.
            RunError: A directory holds a run with other settings or more rounds, or one to go on
                with and no checkpoint.
        """
        grid.refuse_set(overrides)
        points = list(grid.points())
        all_settings = [_settings(source, [*overrides, *told], grid) for _, told in points]
        if select_on == "validation" and all_settings[0].evaluation.validation_share is None:
            shared = [*overrides, f"evaluation.validation_share={_SET_ASIDE}"]
            all_settings = [_settings(source, [*shared, *told], grid) for _, told in points]
        first = all_settings[0]
        if first.evaluation.target_accuracy is not None:
            raise SettingsError(
                "A sweep compares the last evaluations of runs of one length, and target_accuracy "
                "ends them at different rounds. Add --set evaluation.target_accuracy=none; "
                "`fedvarp compare` tells the rounds to a target."
            )
        if select_on is not None:
            refuse_unmeasured(select_on, first.evaluation)
        folder = Path("runs") / f"{first.name}-sweep" if out is None else Path(out)
        runs = [
            (folder / (settings.run_name + in_a_file_name(told)), settings)
            for settings, (told, _) in zip(all_settings, points, strict=True)
        ]
        others = {path: told for (path, _), (told, _) in zip(runs, points, strict=True)}
        if len(others) < len(runs):
            raise SettingsError(
                "Two runs of this sweep would have the same directory: values of --grid differ in "
                "signs that no file name has. Choose others, or sweep them one after the other."
            )
        for directory, settings in runs:
            mend_if_needed(RunDirectory(directory))
            if RunDirectory(directory).exists:
                refuse_to_go_on(RunDirectory(directory), settings)
            else:
                RunDirectory(directory).refuse_if_taken()
        left = _unfinished(dict(runs))
        if runs_here:
            first_of_each: dict[str, dict[str, Settings]] = {}
            for path, settings in left.items():
                of_algorithm = first_of_each.setdefault(in_words(others[path]), {})
                of_algorithm.setdefault(settings.algorithm, settings)
            for combination in first_of_each.values():
                _try_with_the_data(list(combination.values()), data_dir)
        for directory, settings in runs if write else ():
            _make_directory(RunDirectory(directory), settings)
        return cls(folder, grid, runs, others, select_on)

    def run(self, engine: Engine, on_progress: OnProgress | None = None) -> SweepResult:
        """Resumes the runs that are not finished, and writes sweep.json: before them and after.

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
        self._result(left, errors).write()  # whoever looks meanwhile sees what is tried
        with Interruption() as stop:
            for outcome in engine.run(list(left), lambda: stop.requested):
                if outcome is not None and outcome.error is not None:
                    errors[outcome.directory] = outcome.error
                left = _unfinished(left)
                if on_progress is not None:
                    on_progress(len(self.runs) - len(left), self._rounds_done(left))
        result = self._result(left, errors, stop.requested)
        result.write()
        return result

    def _result(
        self,
        left: Collection[Path],
        errors: Mapping[Path, str],
        interrupted: bool = False,
    ) -> SweepResult:
        return SweepResult(
            directory=self.out,
            runs=[
                _swept(path, settings, path not in left, errors.get(path), self.others[path])
                for path, settings in self.runs
            ],
            client_lrs=self.grid.client_lrs,
            interrupted=interrupted,
            select_on=self.select_on,
        )

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


def _settings(source: str | os.PathLike[str], overrides: Sequence[str], grid: Grid) -> Settings:
    try:
        return load_settings(source, overrides)
    except SettingsError as error:
        said = str(error)
        for name, _ in grid.others:  # which nobody has given by --set
            said = said.replace(f"--set {name}=", f"--grid {name}=")
        raise SettingsError(said) from error


def _swept(
    path: Path,
    settings: Settings,
    finished: bool,
    error: str | None,
    others: Mapping[str, str],
) -> SweptRun:
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
        others=others,
    )


def _try_with_the_data(of_algorithms: Sequence[Settings], data_dir: DataFolder) -> None:
    """Raises what runs that differ in their algorithms would raise before their first round."""
    # Not before everything else is right: they load torch.
    from fedvarp.clusters.names import clusters_by_name
    from fedvarp.experiments.build import build
    from fedvarp.simulation.checks import refuse_impossible

    experiment = build(of_algorithms[0], data_dir)
    table = experiment.settings.table
    try:
        for settings in of_algorithms:
            refuse_impossible(replace(experiment, settings=settings).task(settings.run_name))
        clusters_by_name(table.clusters, table.recluster_every, experiment.dataset)
    except ValueError as error:
        raise SettingsError(str(error)) from error


def _make_directory(directory: RunDirectory, settings: Settings) -> None:
    if directory.exists:
        told = with_choice_of_auto(settings.as_toml(), directory.settings())
        directory.update_settings(told)
    else:
        directory.create(settings.as_toml())
