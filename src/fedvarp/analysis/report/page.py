"""The page: text and tables in HTML, with every word of the user's escaped."""

from __future__ import annotations

import html
import importlib
import json
import string
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import Any, Final

from fedvarp.analysis.comparison import Comparison
from fedvarp.analysis.formats import Grid, explanations, grids
from fedvarp.analysis.groups import Group, common_settings, setting_differences
from fedvarp.analysis.report.charts import Chart, all_charts, group_styles, is_empty, x_axes
from fedvarp.analysis.report.diagnosed import diagnosed_section
from fedvarp.analysis.styles import Look
from fedvarp.version import __version__

_MOST_REFUSALS: Final = 100
_SVG_DASHES: Final = {
    "solid": "",
    "dash": "7 3",
    "dot": "2 2",
    "dashdot": "7 3 2 3",
    "longdash": "10 4",
}
# Drawn around the middle, (18, 7), of a swatch of 36 × 14.
_SVG_MARKERS: Final = {
    "circle": '<circle cx="18" cy="7" r="4"/>',
    "square": '<rect x="14.5" y="3.5" width="7" height="7"/>',
    "diamond": '<path d="M18 2l5 5l-5 5l-5-5z"/>',
    "triangle-up": '<path d="M18 2l5 9h-10z"/>',
    "triangle-down": '<path d="M18 12l5-9h-10z"/>',
    "x": '<path d="M14 3l8 8m0-8l-8 8" stroke-width="3"/>',
    "star": '<path d="M18 1l1.8 4h4.2l-3.4 2.6l1.3 4.4l-3.9-2.7l-3.9 2.7l1.3-4.4l-3.4-2.6h4.2z"/>',
}


def page(comparison: Comparison, title: str) -> str:
    """One self-contained HTML page."""
    groups = comparison.groups
    charts = [chart for chart in all_charts(groups) if not is_empty(chart)]
    about = explanations(comparison)
    notes = set(comparison.notes)
    parts = {
        "title": html.escape(title),
        "summary": html.escape(_summary(groups)),
        "notes": _list(comparison.notes, "note"),
        "legend": "\n".join(_key(i, group) for i, group in enumerate(groups)),
        "axes": "\n".join(_choice(axis) for axis in x_axes(groups)),
        "curves": _figures(charts, "curves"),
        "clients": _figures(charts, "clients"),
        "memory": _figures(charts, "memory"),
        "tables": "\n".join(_table(grid, "numbers") for grid in grids(comparison)),
        "explanations": "\n".join(
            f'<p class="about">{html.escape(line)}</p>' for line in about if line not in notes
        ),
        "refused": _refused(groups),
        "diagnosis": diagnosed_section(groups, _table),
        "settings": _settings(groups),
        "version": __version__,
        "style": _part("page.css"),
        "script": _part("page.js"),
        "plotly": _plotly(),
        "data": script_data({"groups": group_styles(groups), "charts": charts}),
    }
    return string.Template(_part("page.html")).substitute(parts)


def _part(name: str) -> str:
    return resources.files("fedvarp.analysis.report").joinpath(name).read_text(encoding="utf-8")


def _plotly() -> str:
    try:
        plotly = importlib.import_module("plotly.offline")
    except ImportError as error:
        raise ImportError(
            'The report draws with plotly, which is not installed: pip install "fedvarp[plots]"'
        ) from error
    return str(plotly.get_plotlyjs())


def script_data(value: Any) -> str:
    r"""JSON that cannot end the script element it stands in.

    >>> print(script_data("</script>"))
    "\u003c/script>"
    """
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _summary(groups: Sequence[Group]) -> str:
    runs = sum(len(group.runs) for group in groups)
    rounds = sorted({int(group.rounds[-1]) for group in groups})
    long = f"{rounds[0]}" if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}"
    names = ", ".join(group.label for group in groups)
    return f"{runs} run{'s' if runs != 1 else ''} of {long} rounds: {names}."


def _list(lines: Sequence[str], kind: str) -> str:
    items = "\n".join(f"<li>{html.escape(line)}</li>" for line in lines)
    return f'<ul class="{kind}">\n{items}\n</ul>' if lines else ""


def _key(i: int, group: Group) -> str:
    return (
        f'<button type="button" aria-pressed="true" data-group="{i}">{_swatch(group.look)}'
        f"{html.escape(group.label)}</button>"
    )


def _swatch(look: Look) -> str:
    dash = _SVG_DASHES[look.dash]
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<svg width="36" height="14" aria-hidden="true" stroke="{look.colour}" '
        f'fill="{look.colour}"><path d="M0 7h36" stroke-width="2.5"{dashed}/>'
        f"{_SVG_MARKERS[look.marker]}</svg>"
    )


def _choice(axis: str) -> str:
    checked = " checked" if axis == "rounds" else ""
    return f'<label><input type="radio" name="axis" value="{axis}"{checked}> {axis}</label>'


def _figures(charts: Sequence[Chart], section: str) -> str:
    """Places for the script to draw in; a screen reader is sent to the tables."""
    return "\n".join(
        f"<figure><figcaption><h3>{html.escape(chart['title'])}</h3>"
        f'<p class="about">{html.escape(chart["about"])}</p></figcaption>'
        f'<div class="chart" id="{chart["id"]}" role="img" aria-label="Chart: '
        f'{html.escape(chart["title"])}. Its figures are in the tables."></div></figure>'
        for chart in charts
        if chart["section"] == section
    )


def _table(grid: Grid, kind: str) -> str:
    title = html.escape(grid.title)
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in grid.header)
    body = "\n".join(
        f'<tr><th scope="row">{html.escape(line[0])}</th>'
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in line[1:])
        + "</tr>"
        for line in grid.lines
    )
    # The box can be scrolled by keyboard, and so needs a name.
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{title}">'
        f'<table class="{kind}"><caption>{title}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def _refused(groups: Sequence[Group]) -> str:
    refusals = [
        (str(run.path), str(record["round"]), str(client), str(why))
        for group in groups
        for run in group.runs
        for record in run.metrics
        for client, why in record.get("refused", {}).items()
    ]
    if not any("refused" in record for g in groups for run in g.runs for record in run.metrics):
        return "<p>Not known: these copies of runs leave it out.</p>"
    if not refusals:
        return "<p>None: every reply was finite, and was used.</p>"
    many = len(refusals) > _MOST_REFUSALS
    title = f"The first {_MOST_REFUSALS} of {len(refusals)}" if many else f"{len(refusals)} in all"
    header = ("run", "round", "client", "why")
    return _table(Grid(title, header, tuple(refusals[:_MOST_REFUSALS])), "words")


def _settings(groups: Sequence[Group]) -> str:
    parts = []
    if differences := setting_differences(groups):
        lines = [(name, *map(_value, values)) for name, values in differences.items()]
        header = ("setting", *(group.label for group in groups))
        parts.append(_table(Grid("What differs", header, tuple(lines)), "words"))
    common = [(name, _value(value)) for name, value in common_settings(groups).items()]
    parts.append(
        _folded("What all runs share", Grid("Shared settings", ("setting", "value"), tuple(common)))
    )
    runs = [
        (
            str(run.path),
            group.label,
            _value(run.seed),
            str(run.last_round),
            "yes" if run.finished else f"no, {run.planned_rounds} are planned",
        )
        for group in groups
        for run in group.runs
    ]
    header = ("run", "group", "seed", "rounds", "finished")
    parts.append(_folded("The runs", Grid("Run directories", header, tuple(runs))))
    return "\n".join(parts)


def _folded(summary: str, grid: Grid) -> str:
    table = _table(grid, "words")
    return f"<details><summary>{html.escape(summary)}</summary>{table}</details>"


def _value(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, (list, tuple)) and len(value) > 20:
        return f"{_joined(value[:20])}, … ({len(value)} in all)"
    return _joined(value) if isinstance(value, (list, tuple)) else str(value)


def _joined(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))
