"""versions.json: what a run was made with, and from which round on with something else."""

from __future__ import annotations

import functools
import json
import platform
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from fedvarp.runs.errors import RunError
from fedvarp.runs.identity import changes
from fedvarp.system.parsing import parse_json
from fedvarp.system.whole_files import write_whole
from fedvarp.version import __version__

DRAWS: Final = 2
"""Counts how often the same seed has come to draw other numbers: 2 since clients' batches are
shuffled by hashed words, a whole cohort at once. A run keeps to the draws it was begun with."""

_LATER: Final = "later"


def present() -> dict[str, str]:
    """What a run is made with here and now.

    Returns:
        The versions of this package, its draws, torch, numpy and Python, and the platform.
    """
    return {
        "fedvarp": __version__,
        "draws": str(DRAWS),
        "torch": _installed("torch"),  # the same as torch.__version__, but without loading it
        "numpy": _installed("numpy"),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


_installed = functools.cache(metadata.version)  # each reads and parses a file


def write_versions(file: Path) -> None:
    """Writes versions.json for a run that begins.

    Args:
        file: Where.
    """
    _write(file, present())


def can_be_read(file: Path) -> bool:
    """Whether versions.json is there, and whole as far as can be told.

    Args:
        file: It.
    """
    try:
        return isinstance(parse_json(file.read_text(encoding="utf-8")), dict)
    except (OSError, ValueError):
        return False


def refuse_other_draws(directory: Path, draws: int) -> None:
    """Refuses to go on with a run whose remaining rounds this version would draw otherwise.

    Args:
        directory: The run.
        draws: `DRAWS` when its checkpoint was made.

    Raises:
        RunError: It is another number today.
    """
    if draws != DRAWS:
        raise RunError(
            f"The run in {directory} was begun with another version of fedvarp, in which a seed "
            f"gives clients other batches (draws = {draws}, now {DRAWS}): it would go on with "
            f"rounds that are not its own. Resume it with the version it was begun with, or begin "
            f"it anew in another directory. What it has recorded can be read and compared as ever."
        )


def note_change(file: Path, round: int) -> list[str]:
    """Notes in versions.json what has changed since it was written.

    A file that is missing or damaged is no reason not to go on: it is written anew.

    Args:
        file: versions.json of the run.
        round: The last one that was made with the older versions.

    Returns:
        Each change but that of the platform, as "torch = 2.12 (now 2.13)".
    """
    now = present()
    try:
        kept: dict[str, Any] = parse_json(file.read_text(encoding="utf-8"))
        before = {name: kept.get(name, "unknown") for name in now}
        for entry in kept.get(_LATER, []):
            before |= {name: entry[name] for name in now if name in entry}
    except (OSError, ValueError, AttributeError, TypeError):
        _write(file, now)
        return []
    compared = now.keys() - {"platform"}  # which every update of a kernel changes
    different = changes(before, now, compared)
    if different:
        fresh = {name: now[name] for name in sorted(compared) if now[name] != before[name]}
        later = [*kept.get(_LATER, []), {"after_round": round, **fresh}]
        _write(file, {**kept, _LATER: later})
    return different


def _write(file: Path, content: dict[str, Any]) -> None:
    write_whole(file, json.dumps(content, indent=2) + "\n")
