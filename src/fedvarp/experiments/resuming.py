"""Goes on with a run by what its directory says."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedvarp.experiments.files import settings_of_run
from fedvarp.experiments.settings import Settings
from fedvarp.runs.directory import MAY_CHANGE, RunDirectory, RunError, reached
from fedvarp.settings.problems import SettingsError

if TYPE_CHECKING:
    from fedvarp.experiments.build import DataFolder
    from fedvarp.simulation.callbacks import Callback
    from fedvarp.simulation.round_loop import SimulationResult


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
        data_dir: Where the data files are; None: in the folder of FEDVARP_DATA.
        progress: Whether to show a bar; None: in a terminal.
        callbacks: Called with each round's record and the server.
    """
    settings = resumed_settings(run, overrides)
    from fedvarp.experiments.build import (
        build,  # not before the settings are known to be right: torch
    )

    experiment = build(settings, data_dir)
    return experiment.run(run, resume=True, progress=progress, callbacks=callbacks)


def resumed_settings(run: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Settings:
    """The settings of a run, with what it is told anew.

    Raises:
        RunError: There is no run, it has no checkpoint, or what it is told anew makes it another.
        SettingsError: The settings cannot be used.
    """
    directory = RunDirectory(run)
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
    directory.refuse_other_settings(settings.as_toml(), MAY_CHANGE)
    done = directory.rounds_done
    if overrides and settings.rounds < done:
        raise SettingsError(
            f"{directory.path} has trained {done} rounds already; rounds={settings.rounds} lies "
            f"behind it. A shorter run needs a directory of its own."
        )
    if not is_finished(directory, settings):  # whose checkpoint may be deleted to save space
        directory.refuse_without_checkpoint()
    return settings


def is_finished(directory: RunDirectory, settings: Settings) -> bool:
    """Whether nothing is left to do, and the model is exported."""
    if not directory.has_the_newest_model:
        return False
    if directory.rounds_done >= settings.rounds:
        return True
    target = settings.evaluation.target_accuracy
    return target is not None and reached(target, directory.metrics())
