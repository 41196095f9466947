"""A run in a notebook: its figures in a small table, and their curves if there is matplotlib."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from fedvarp.runs.figures import FIGURES

_TABLE: Final = 'style="border-collapse:collapse;font-variant-numeric:tabular-nums"'
_CELL: Final = 'style="padding:2px 12px 2px 0;text-align:left"'


def result_html(title: str, metrics: Sequence[Mapping[str, Any]]) -> str:
    """A table of the first, best and last figures, and a picture of how they came about.

    Args:
        title: Stands above.
        metrics: One record for each round.

    Returns:
        HTML that needs nothing but itself.
    """
    curves = {name: _curve(metrics, name) for name in FIGURES}
    curves = {name: curve for name, curve in curves.items() if curve[0]}
    head = "".join(f"<th {_CELL}>{text}</th>" for text in ("", "first", "best", "last"))
    lines = "".join(_line(name, values) for name, (_, values) in curves.items())
    table = f"<table {_TABLE}><tr>{head}</tr>{lines}</table>" if curves else ""
    return f"<div><p><b>{escape(title)}</b></p>{table}{_picture(curves)}</div>"


def _curve(metrics: Sequence[Mapping[str, Any]], name: str) -> tuple[list[int], list[float]]:
    found = [(r["round"], r[name]) for r in metrics if r.get(name) is not None]
    return [t for t, _ in found], [value for _, value in found]


def _line(name: str, values: Sequence[float]) -> str:
    best = max(values) if _is_better_higher(name) else min(values)
    cells = "".join(f"<td {_CELL}>{v:.4g}</td>" for v in (values[0], best, values[-1]))
    return f"<tr><td {_CELL}>{escape(name)}</td>{cells}</tr>"


def _picture(curves: Mapping[str, tuple[Sequence[int], Sequence[float]]]) -> str:
    """Losses on the left, accuracies on the right; nothing without matplotlib or without curves."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return ""
    kinds = ("loss", "accuracy")
    panels = {kind: [name for name in curves if name.endswith(kind)] for kind in kinds}
    panels = {kind: names for kind, names in panels.items() if names}
    if not panels:
        return ""
    # Not by pyplot: a notebook would show its figure a second time.
    figure = Figure(figsize=(3.6 * len(panels), 2.4), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (kind, names) in zip(axes, panels.items(), strict=True):
        for name in names:
            axis.plot(*curves[name], label=name, marker="." if len(curves[name][0]) < 20 else "")
        axis.set_xlabel("round")
        axis.set_ylabel(kind)
        axis.legend(frameon=False, fontsize="small")
        axis.spines[["top", "right"]].set_visible(False)
    written = io.BytesIO()
    figure.savefig(written, format="png", dpi=144)
    encoded = base64.b64encode(written.getvalue()).decode()
    width = 346 * len(panels)
    return f'<img alt="curves" width="{width}" src="data:image/png;base64,{encoded}">'


def _is_better_higher(name: str) -> bool:
    return name.endswith("accuracy")
