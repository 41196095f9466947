"""versions.json: what a run was made with, and from which round on with something else."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any, Final

from fedvarp.runs.directory import changes
from fedvarp.version import __version__

_LATER: Final = "later"


def present() -> dict[str, str]:
    """What runs are made with here and now."""
    import numpy as np
    import torch

    return {
        "fedvarp": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def write(file: Path) -> None:
    """For a run that begins."""
    _write(file, present())


def note_change(file: Path, round: int) -> list[str]:
    """Notes what has changed after this round, and returns it, as "torch = 2.12 (now 2.13)".

    A file that is missing or damaged is no reason not to go on: it is written anew.
    """
    now = present()
    try:
        kept: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
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
    draft = file.with_name(file.name + ".part")
    draft.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    draft.replace(file)
