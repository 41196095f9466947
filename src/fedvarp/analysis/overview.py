"""Which runs there are, and how a single one stands: all that can be said without comparing."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import tomli_w

from fedvarp.analysis.metric_names import METRICS, metric_label, scale_of
from fedvarp.analysis.tables import Table
from fedvarp.analysis.units import in_bytes, in_seconds, in_short
from fedvarp.errors import plain
from fedvarp.runs.directory import RunDirectory
from fedvarp.runs.divergence import judged
from fedvarp.runs.errors import RunError
from fedvarp.runs.figures import recorded_figures
from fedvarp.runs.finished import ending
from fedvarp.runs.identity import flattened

_COLUMNS: Final = ("run", "algorithm", "rate", "seed", "rounds", "last figures", "state")
_NOT_BEGUN: Final = "not begun"


def list_runs(folder: Path) -> Table:
    """Finds all runs in a folder and below it.

    Args:
        folder: Where to look.

    Returns:
        A row for each run: its name below the folder, algorithm, client rate, seed, rounds done of
        those asked for, the figures of its last evaluation, and its state.

    Raises:
        RunError: The folder does not exist, or holds no run.
    """
    if not folder.is_dir():
        raise RunError(f"{folder} is no folder. Name one that holds runs, such as runs.")
    found = sorted(file.parent for file in folder.rglob("config.toml"))
    runs = [RunDirectory(path) for path in found]
    runs = [run for run in runs if run.versions_file.exists() or run.metrics_file.exists()]
    if not runs:
        raise RunError(
            f"{folder} holds no run, nor does a folder below it. `fedvarp run` keeps them in runs/ "
            f"unless --out says otherwise."
        )
    rows = [_row(run, folder) for run in runs]
    words = ("algorithm", "last figures", "state")
    return Table(f"Runs in {folder}", _COLUMNS, rows, words=words)


def about_run(path: Path) -> str:
    """Says of one run what it is, how far it came, and what to do next.

    Args:
        path: Its directory.

    Returns:
        Lines for a terminal, the settings among them as TOML.

    Raises:
        RunError: There is no run, or its files are damaged.
    """
    run = RunDirectory(path)
    settings = run.settings()
    metrics = run.metrics() if run.metrics_file.exists() else []
    verdict = judged(metrics)
    last = _last_figures(metrics)
    lines = [f"{path}: {settings.get('algorithm', 'unknown')}, {_state(settings, metrics)}"]
    if metrics:
        lines.append(f"Rounds     {_rounds(settings, metrics)}")
        lines.append(f"Objective  {metrics[0].get('objective', 'not recorded')}")
        for name, (round, value) in last.items():
            label = metric_label(name).removesuffix(" (%)")
            lines.append(f"           {label} {_figure(name, value)} (round {round})")
        sent = sum(r.get("bytes_up", 0) + r.get("bytes_down", 0) for r in metrics)
        held = max((r.get("server_bytes", 0) for r in metrics), default=0)
        lines.append(
            f"Cost       {in_bytes(sent)} sent, server memory {in_bytes(held)}{_time(run)}"
        )
    if verdict.warning:
        lines.append(f"Beware     {verdict.warning}")
    lines += ["", tomli_w.dumps(settings).rstrip(), "", *_next(run, settings, metrics)]
    return plain("\n".join(lines)) + "\n"


def _row(run: RunDirectory, folder: Path) -> tuple[Any, ...]:
    name = run.path.relative_to(folder).as_posix() if run.path != folder else run.path.name
    try:
        settings = run.settings()
        metrics = run.metrics() if run.metrics_file.exists() else []
    except RunError as error:
        return (name, *[None] * 5, f"damaged: {error}")
    flat = flattened(settings)
    rate = flat.get("local_sgd.lr")
    shown = list(_last_figures(metrics).items())[:2]
    figures = [f"{metric_label(n).lower()} {_figure(n, value)}" for n, (_, value) in shown]
    return (
        name,
        flat.get("algorithm"),
        in_short(rate) if isinstance(rate, (int, float)) else rate,
        flat.get("seed"),
        _rounds(settings, metrics),
        ", ".join(figures).replace(" (%)", "") or None,
        _state(settings, metrics),
    )


def _last_figures(metrics: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int, float | None]]:
    """By figure, the last value and its round: accuracies first, as in tables."""
    names = recorded_figures(metrics)
    order = sorted(names, key=lambda n: (n not in METRICS, n != "test_accuracy", names.index(n)))
    return {
        name: next((r["round"], r[name]) for r in reversed(metrics) if name in r) for name in order
    }


def _figure(name: str, value: float | None) -> str:
    if value is None:
        return "not finite"
    return f"{100 * value:.1f} %" if scale_of(name) == 100 else f"{value:.4g}"


def _rounds(settings: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]]) -> str:
    done = metrics[-1]["round"] if metrics else 0
    return f"{done:,} of {settings['rounds']:,}" if "rounds" in settings else f"{done:,}"


def _state(settings: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]]) -> str:
    if not metrics:
        return _NOT_BEGUN
    finished = {"rounds": "finished", "target": "finished: target reached"}
    state = finished.get(ending(settings, metrics) or "", "unfinished")
    return f"{state}, nothing learned" if judged(metrics).nothing_learned else state


def _time(run: RunDirectory) -> str:
    if not run.timings_file.exists():
        return ""
    return f", {in_seconds(sum(line['seconds'] for line in run.timings()))}"


def _next(
    run: RunDirectory, settings: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]]
) -> list[str]:
    """What can be done with it, as commands."""
    name = shlex.quote(str(run.path))
    if "data" not in settings:
        on = "in the program that made it, with recording=Recording(out=…, resume=True)"
    elif metrics and ending(settings, metrics):
        on = f"fedvarp resume {name} --set rounds=…"
    else:
        on = f"fedvarp resume {name}"
    lines = [f"Go on      {on}"]
    if metrics:
        lines.append(f"Look       fedvarp report {name} --out report.html")
        if "data" in settings:
            lines.append(f"Why        fedvarp diagnose {name}")
    if run.model_file.exists():
        lines.append(f"Model      {run.model_file}")
    return lines
