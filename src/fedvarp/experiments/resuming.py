"""Goes on with a run by what its directory says."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fedvarp.experiments.files import settings_of_run
from fedvarp.experiments.settings import Settings
from fedvarp.runs.directory import RunDirectory
from fedvarp.runs.errors import RunError
from fedvarp.runs.finished import is_finished
from fedvarp.runs.identity import refuse_other_settings
from fedvarp.runs.mendable import is_to_be_mended
from fedvarp.settings.problems import SettingsError

if TYPE_CHECKING:
    from fedvarp.experiments.build import DataFolder
    from fedvarp.simulation.callbacks import Callback
    from fedvarp.simulation.result import SimulationResult


def resume(
    run: str | os.PathLike[str],
    overrides: Sequence[str] = (),
    *,
    data_dir: DataFolder = None,
    progress: bool | None = None,
    callbacks: Sequence[Callback] = (),
) -> SimulationResult:
    """Goes on with a run by the settings in its directory; begins it if no round was trained.

    Args:
        run: The run's directory.
        overrides: How long to go on, if not as planned: ``["rounds=2000"]``. The directory keeps
            it, so that the next resume need not be told.
        data_dir: Where the data files are; None: where they were, or else in the folder of
            FEDVARP_DATA.
        progress: Whether to show a bar; None: in a terminal.
        callbacks: Called with each round's record and the server.

    Returns:
        What the run leaves behind, with the records of all its rounds.

    Raises:
        RunError: There is no run, it has no checkpoint, or what it is told anew makes it another.
        SettingsError: The settings cannot be used.
        DataError: The data is not there, or is damaged.
    """
    settings = resumed_settings(run, overrides)
    from fedvarp.experiments.build import build  # not before the settings are right: it loads torch

    experiment = build(settings, data_dir or RunDirectory(run).data_folder)
    with safe_rounds(run):
        return experiment.run(run, resume=True, progress=progress, callbacks=callbacks)


def resumed_settings(run: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Settings:
    """The settings of a run, with what it is told anew.

    Args:
        run: The run's directory.
        overrides: ``key=value`` texts, of what a resumed run may be told anew.

    Returns:
        The settings to go on with. Nothing is written yet.

    Raises:
        RunError: There is no run, it has no checkpoint, or what it is told anew makes it another.
        SettingsError: The settings cannot be used.
    """
    directory = RunDirectory(run)
    mend_if_needed(directory)
    if not directory.exists:
        raise RunError(
            f"There is no run in {directory.path}: it has no config.toml. "
            f"`fedvarp run CONFIG --out {directory.path}` would begin one there."
        )
    recorded = directory.settings()
    settings = settings_of_run(recorded, str(directory.config_file), overrides)
    if settings.trainer.name not in ("auto", recorded.get("trainer", {}).get("name")):
        trainer = settings.trainer.replace(auto=None)  # it spoke for another
        settings = settings.model_copy(update={"trainer": trainer})
    refuse_to_go_on(directory, settings, told_anew=bool(overrides))
    return settings


def mend_if_needed(directory: RunDirectory) -> None:
    """Writes small files of a run that are gone or damaged anew, from its checkpoint.

    Args:
        directory: Of a run, or of none.

    Raises:
        StoreError: The checkpoint is damaged, or in use.
    """
    if is_to_be_mended(directory) or not _are_settings(directory):
        from fedvarp.simulation.mending import mend  # it loads torch

        mend(directory)


def _are_settings(directory: RunDirectory) -> bool:
    """Whether what config.toml holds, if it is there, are settings by their names."""
    if not directory.exists or "data" not in directory.settings():
        return True  # of no run, or of a Python program's
    try:
        settings_of_run(directory.settings(), directory.config_file.name, ())
    except SettingsError:
        return False
    return True


def refuse_to_go_on(directory: RunDirectory, settings: Settings, told_anew: bool = True) -> None:
    """Refuses a run that cannot go on with these settings.

    Args:
        directory: Of a run.
        settings: To go on with.
        told_anew: Whether somebody asks for this number of rounds, besides the run's own file.

    Raises:
        RunError: The run was made with other settings, has trained more rounds than it is told to,
            or is not finished and has no checkpoint.
    """
    refuse_other_settings(directory, settings.as_toml())
    done = directory.rounds_done
    if told_anew and settings.rounds < done:
        raise RunError(
            f"{directory.path} has trained {done} rounds already, more than rounds="
            f"{settings.rounds}. A shorter run needs a directory of its own."
        )
    if not is_finished(directory, settings.as_toml()):  # else the checkpoint may be deleted
        directory.refuse_without_checkpoint()


@contextmanager
def safe_rounds(run: str | os.PathLike[str]) -> Iterator[None]:
    """Adds to the errors of a full or failing disk that no whole round is lost.

    Args:
        run: The directory of the run that is trained in the `with` block.
    """
    from fedvarp.tables.store import WriteError

    try:
        yield
    except (OSError, WriteError) as error:
        if RunDirectory(run).exists:
            error.add_note(f"No whole round is lost: `fedvarp resume {os.fspath(run)}` goes on.")
        raise
