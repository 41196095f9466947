"""Whether files of a run are gone or damaged that its checkpoint has a copy of."""

from __future__ import annotations

from fedvarp.runs.directory import RunDirectory
from fedvarp.runs.errors import RunError


def is_to_be_mended(directory: RunDirectory) -> bool:
    """Whether a run has a checkpoint, and its settings or newest record cannot be read.

    Args:
        directory: Of the run.

    Returns:
        Whether `fedvarp.simulation.mending.mend` has something to do, as far as a short look tells.
    """
    if not directory.checkpoint_file.exists():
        return False
    try:
        directory.settings()
        return not directory.metrics_file.exists() or directory.rounds_done < 0
    except RunError:
        return True
