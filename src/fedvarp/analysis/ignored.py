"""Settings that runs are compared without, because somebody said that they do not matter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedvarp.analysis.labels import shown_value
from fedvarp.analysis.setting_kinds import belongs, is_of_the_running
from fedvarp.runs.errors import RunError

Settings = Mapping[str, Any]  # under dotted names


def ignoring(
    runs: Sequence[Settings], names: str | Sequence[str]
) -> tuple[list[str], list[Settings]]:
    """Leaves settings of some runs out.

    Args:
        runs: The settings of each.
        names: Settings, or sections of them. Those of the running stay: they keep no runs apart
            anyway, and say when a run ends.

    Returns:
        Notes on what the runs differ in that is ignored; and what is left of their settings.

    Raises:
        RunError: One cannot be ignored.
    """
    each = [names] if isinstance(names, str) else list(dict.fromkeys(names))
    notes = [_note(name, runs) for name in each]
    return notes, [{n: v for n, v in run.items() if not _is_ignored(n, each)} for run in runs]


def _is_ignored(setting: str, names: Sequence[str]) -> bool:
    return belongs(setting, names) and not is_of_the_running(setting)


def _note(name: str, runs: Sequence[Settings]) -> str:
    if name in ("algorithm", "seed"):
        raise RunError(f"{name} cannot be ignored: runs that differ in it are different runs.")
    if is_of_the_running(name):
        raise RunError(f"{name} need not be ignored: runs that differ in it may be compared.")
    settings = sorted({setting for run in runs for setting in run if _is_ignored(setting, [name])})
    if not settings:
        raise RunError(
            f"{name!r} cannot be ignored: no run has such a setting. Settings have their full "
            f"names, such as local_sgd.lr; `fedvarp show RUN` tells those of a run."
        )
    values = {n: dict.fromkeys(shown_value(run.get(n)) for run in runs) for n in settings}
    apart = [f"{n} ({', '.join(found)})" for n, found in values.items() if len(found) > 1]
    return f"Ignored: {', '.join(apart) if apart else f'{name}, in which no runs differ'}."
