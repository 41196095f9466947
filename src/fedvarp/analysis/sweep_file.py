"""What sweep.json says about the runs beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedvarp.analysis.runs import Run
from fedvarp.system.parsing import parse_json


def are_of_sweeps(runs: Sequence[Run]) -> bool:
    """Tells whether each run lies in the directory of a sweep."""
    return all(_file(run).is_file() for run in runs)


def deciding_metric(runs: Sequence[Run]) -> str | None:
    """The metric that rates were chosen by, if all runs are of sweeps that chose by the same."""
    told = {_content(file).get("metric") for file in _files(runs)}
    metric = told.pop()
    return metric if not told and isinstance(metric, str) else None


def tried_settings(runs: Sequence[Run]) -> set[str]:
    """The settings whose values one sweep tried, if all runs are of that one: those of its --grid.

    Algorithms, client rates and seeds are not among them.
    """
    files = _files(runs)
    if len(files) > 1:
        return set()
    entries = _content(files.pop()).get("runs")
    given = entries if isinstance(entries, list) else []
    settings = [entry.get("settings") for entry in given if isinstance(entry, dict)]
    return {name for mine in settings if isinstance(mine, dict) for name in mine}


def _file(run: Run) -> Path:
    return run.path.parent / "sweep.json"


def _files(runs: Sequence[Run]) -> set[Path]:
    return {_file(run) for run in runs}


def _content(file: Path) -> dict[str, Any]:
    """Empty where there is no such file, or somebody has written something else into it."""
    try:
        content = parse_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
