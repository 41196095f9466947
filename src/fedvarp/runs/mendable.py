"""Whether files of a run are gone or damaged that its checkpoint has a copy of."""

from __future__ import annotations

from typing import Final

from fedvarp.runs.directory import RunDirectory
from fedvarp.runs.errors import RunError
from fedvarp.runs.identity import flattened
from fedvarp.runs.versions import can_be_read
from fedvarp.system.parsing import is_text

_WRITTEN_LAST: Final = "recording.fsync"  # in config.toml, which may have been cut off without it


def is_to_be_mended(directory: RunDirectory) -> bool:
    """Whether a run has a checkpoint, and its settings, versions or newest record are damaged.

    Args:
        directory: Of the run.

    Returns:
        Whether `fedvarp.simulation.mending.mend` has something to do, as far as a short look tells.
    """
    if not directory.checkpoint_file.exists():
        return False
    try:
        return (
            _WRITTEN_LAST not in flattened(directory.settings())
            or not can_be_read(directory.versions_file)
            or not directory.metrics_file.exists()
            or (directory.data_folder_file.exists() and not is_text(directory.data_folder_file))
            or directory.rounds_done < 0
        )
    except RunError:
        return True
