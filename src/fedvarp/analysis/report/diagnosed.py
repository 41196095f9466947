"""The section about runs that were diagnosed: what `fedvarp diagnose` left in their directories."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from fedvarp.analysis.formats import Grid
from fedvarp.analysis.groups import Group
from fedvarp.analysis.runs import Run
from fedvarp.analysis.styles import look_of
from fedvarp.analysis.units import in_bytes
from fedvarp.diagnosis.result import CAUSES, FILE_NAME
from fedvarp.diagnosis.text import with_rows
from fedvarp.runs.directory import RunError

TableMaker = Callable[[Grid, str], str]

_WIDTH: Final = 640
_NAMES: Final = 180  # pixels for the algorithms' names
_BAR: Final = 22
_STEP: Final = 32


def diagnosed_section(groups: Sequence[Group], table: TableMaker) -> str:
    """The section; empty if no run was diagnosed."""
    parts = [
        _one(run, found, table)
        for group in groups
        for run in group.runs
        if (found := _read(run)) is not None
    ]
    if not parts:
        return ""
    return (
        '<section aria-labelledby="diagnosis-title">\n'
        '<h2 id="diagnosis-title">What holds training back</h2>\n'
        + "\n".join(parts)
        + "\n</section>"
    )


def _read(run: Run) -> Mapping[str, Any] | None:
    file = run.path / FILE_NAME
    if not file.exists():
        return None
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise RunError(
            f"{file} is damaged ({error}). `fedvarp diagnose {run.path}` writes it anew; or delete "
            f"it."
        ) from error
    return found


def _one(run: Run, found: Mapping[str, Any], table: TableMaker) -> str:
    measured = found["measured"]
    whom = f"{measured['measured_clients']:,} of {measured['num_clients']:,} clients"
    parts = [
        f"<h3>{html.escape(str(run.path))}</h3>",
        f'<p class="about">Measured after round {found["round"]} over {whom}, at a client rate of '
        f"{found['client_lr']:.3g}.</p>",
    ]
    if found["step_errors"]:
        errors = dict(found["step_errors"])
        if (own := found.get("step_errors_with_rows")) is not None:
            errors[with_rows(look_of(own["algorithm"]).label)] = own
        parts.append(_figure("Error of one step, E‖v − ∇f‖², measured", errors))
        parts.append(table(_errors("Error of one step", errors), "numbers"))
    bounds = found["terms_at_allowed_lr"]
    rate = min(found["allowed_client_lr"].values())
    title = f"Error floor by the theorems at a client rate of {rate:.2g}, which they all allow"
    parts.append(_figure(title, bounds))
    parts.append(table(_errors(title, bounds), "numbers"))
    if found["curve"]:
        parts.append(table(_curve(found), "numbers"))
    advised = "\n".join(f"<li>{html.escape(str(line))}</li>" for line in found["advice"])
    parts.append(f'<ul class="advice">\n{advised}\n</ul>')
    return "\n".join(parts)


def _errors(title: str, errors: Mapping[str, Mapping[str, Any]]) -> Grid:
    lines = tuple(
        (
            look_of(name).label + ("" if one.get("exact", True) else " (approx.)"),
            *(f"{one[cause]:.3g}" for cause in CAUSES),
            f"{_total(one):.3g}",
        )
        for name, one in errors.items()
    )
    return Grid(title, ("", *(look.label for look in CAUSES.values()), "together"), lines)


def _curve(found: Mapping[str, Any]) -> Grid:
    lines = tuple(
        (
            f"{point['num_clusters']:,}",
            f"{point['sigma_K2']:.3g}",
            f"{point['share_removed']:.0%}",
            in_bytes(found["table_bytes"][str(point["num_clusters"])]["float32"]),
            in_bytes(found["table_bytes"][str(point["num_clusters"])]["int8"]),
        )
        for point in found["curve"]
    )
    header = ("clusters K", "σ_K²", "variance removed", "rows as float32", "as int8")
    return Grid("Clusters found by k-means on sketched gradients", header, lines)


def _figure(title: str, errors: Mapping[str, Mapping[str, Any]]) -> str:
    """Stacked bars, drawn here: they need no script."""
    longest = max(max(_total(one), 0.0) for one in errors.values()) or 1.0
    scale = (_WIDTH - _NAMES) / longest
    shapes = []
    for row, (name, one) in enumerate(errors.items()):
        top, left = row * _STEP, float(_NAMES)
        shapes.append(
            f'<text x="0" y="{top + _BAR * 0.7:g}">{html.escape(look_of(name).label)}</text>'
        )
        for cause, look in CAUSES.items():
            width = max(float(one[cause]), 0.0) * scale
            shapes.append(
                f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{_BAR}" '
                f'fill="{look.colour}"><title>{look.label}: {one[cause]:.3g}</title></rect>'
            )
            left += width
    keys = " ".join(
        f'<span class="key"><svg width="14" height="14" aria-hidden="true"><rect width="14" '
        f'height="14" fill="{look.colour}"/></svg> {look.label}</span>'
        for look in CAUSES.values()
    )
    height = len(errors) * _STEP
    return (
        f'<figure class="bars"><figcaption><h4>{html.escape(title)}</h4><p>{keys}</p></figcaption>'
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{html.escape(title)}. The '
        f'figures are in the table below.">{"".join(shapes)}</svg></figure>'
    )


def _total(one: Mapping[str, Any]) -> float:
    return sum(max(float(one[cause]), 0.0) for cause in CAUSES)
