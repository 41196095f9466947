"""The option --tensorboard of the commands that train."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedvarp.simulation.loggers import TensorBoardLogger


def logged(tensorboard: Path | None) -> list[str]:
    """The same for a sweep, as a setting of its runs, which are trained by other processes.

    Args:
        tensorboard: The folder, in which each run has one; None: nothing is logged.

    Returns:
        ``key=value`` texts.
    """
    if tensorboard is None:
        return []
    return [f"recording.tensorboard={json.dumps(str(tensorboard.resolve()))}"]


@contextmanager
def live_view(tensorboard: Path | None) -> Iterator[list[TensorBoardLogger]]:
    """Logs a run for TensorBoard while it goes.

    Args:
        tensorboard: The folder; None: nothing is logged, and nothing loaded for it.

    Yields:
        The callbacks of the run that do so.
    """
    if tensorboard is None:
        yield []
        return
    from fedvarp.simulation.loggers import TensorBoardLogger

    with TensorBoardLogger(tensorboard) as logger:
        yield [logger]
