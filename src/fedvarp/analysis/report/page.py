"""The page: what stands on it, put into its template, where every word is escaped."""

from __future__ import annotations

import base64
import hashlib
import importlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fedvarp.analysis.best_rates import at_best_rates
from fedvarp.analysis.comparison import DEFAULT_SMOOTH, Comparison, compare
from fedvarp.analysis.comparison_tables import explanations, tables
from fedvarp.analysis.groups import Group, common_settings, setting_differences
from fedvarp.analysis.headline import headline
from fedvarp.analysis.report.charts import all_charts, group_styles, x_axes
from fedvarp.analysis.report.diagnosed import read_diagnoses
from fedvarp.analysis.runs import Paths
from fedvarp.analysis.styles import CAUSES
from fedvarp.analysis.tables import Table
from fedvarp.analysis.templating import fixed_part, render
from fedvarp.analysis.units import in_short
from fedvarp.runs.errors import RunError
from fedvarp.settings.bounds import Count
from fedvarp.settings.checked import checked
from fedvarp.system.whole_files import write_whole
from fedvarp.version import __version__

# Plotly brings the styles of maps along, unless there is an element that has their id already.
_STYLES_OF_MAPS: Final = re.compile(r'document\.getElementById\("([0-9a-f]{64})"\)')
_ENDINGS: Final = (".html", ".htm")
_MOST_REFUSALS: Final = 100
_LONGEST_LIST: Final = 20  # entries of a setting
_SVG_DASHES: Final = {
    "solid": "",
    "dash": "7 3",
    "dot": "2 2",
    "dashdot": "7 3 2 3",
    "longdash": "10 4",
}
# Paths around the middle, (18, 7), of a swatch of 36 × 14.
_SVG_MARKERS: Final = {
    "circle": "M14 7a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "square": "M14.5 3.5h7v7h-7z",
    "diamond": "M18 2l5 5l-5 5l-5-5z",
    "triangle-up": "M18 2l5 9h-10z",
    "triangle-down": "M18 12l5-9h-10z",
    "x": "M14 3l8 8m0-8l-8 8",
    "star": "M18 1l1.8 4h4.2l-3.4 2.6l1.3 4.4l-3.9-2.7l-3.9 2.7l1.3-4.4l-3.4-2.6h4.2z",
}


@dataclass(frozen=True)
class Inline:
    """A script or style of the page, and the digest by which browsers tell it from any other.

    Attributes:
        text: As it stands between its tags.
    """

    text: str

    @property
    def digest(self) -> str:
        """Its source expression for a content security policy."""
        return f"sha256-{base64.b64encode(hashlib.sha256(self.text.encode()).digest()).decode()}"


@checked
def write_report(
    paths: Paths,
    out: str | os.PathLike[str],
    *,
    title: str = "Federated learning runs",
    target: float | None = None,
    target_loss: float | None = None,
    smooth: Count = DEFAULT_SMOOTH,
    allow_different: bool = False,
    ignore: str | Sequence[str] = (),
) -> Path:
    """Writes the page about some runs, whole or not at all.

    The page loads nothing from anywhere, so it can be mailed and archived. The same runs give
    the same page, byte for byte.

    Args:
        paths: Run directories, or directories that hold some.
        out: The file, an .html one.
        title: Its headline.
        target: The test accuracy to count rounds to, as for `fedvarp.analysis.compare`.
        target_loss: A loss to count rounds to.
        smooth: Evaluations in the running mean of the second rule.
        allow_different: Takes runs of different tasks too.
        ignore: Settings in which runs may differ and still be the same but for the seed.

    Returns:
        The file.

    Raises:
        RunError: There is no run, the runs are of different tasks, a file of theirs is damaged, or
            the page's name does not end in .html.
        ImportError: plotly is not installed.
    """
    _refuse_ending(Path(out))
    comparison = compare(
        paths,
        target=target,
        target_loss=target_loss,
        smooth=smooth,
        allow_different=allow_different,
        ignore=ignore,
    )
    return write_page(comparison, Path(out), title)


def write_page(comparison: Comparison, file: Path, title: str) -> Path:
    """Writes the page about runs that are compared already, whole or not at all.

    Args:
        comparison: Of the runs that the page is about.
        file: An .html file.
        title: The headline.

    Returns:
        The file.

    Raises:
        RunError: A file of the runs is damaged, or the page's name does not end in .html.
        ImportError: plotly is not installed.
    """
    _refuse_ending(file)
    text = page(comparison, title)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, text)
    return file


def _refuse_ending(file: Path) -> None:
    if file.suffix.lower() not in _ENDINGS:
        raise RunError(f"{file} does not end in .html, as a page that browsers open does.")


def page(comparison: Comparison, title: str, *, live: str | None = None, whole: bool = True) -> str:
    """Makes one self-contained HTML page.

    Args:
        comparison: Of the runs that the page is about.
        title: The headline.
        live: For a page that is served and renews itself, by what to know its version.
        whole: Whether it has its scripts; one that only brings new figures needs none.

    Returns:
        The HTML.

    Raises:
        RunError: The diagnosis of a run cannot be read.
        ImportError: plotly is not installed.
    """
    groups = comparison.groups
    charts = all_charts(groups)
    best, chosen = at_best_rates(groups)
    shown = {run.path for group in best for run in group.runs}
    plotly = _plotly() if whole else ""
    return render(
        "page.html",
        title=title,
        headline=headline(comparison),
        summary=_summary(groups),
        notes=comparison.notes,
        groups=groups,
        dashes=_SVG_DASHES,
        markers=_SVG_MARKERS,
        axes=x_axes(groups),
        charts=charts,
        tables=tables(comparison),
        explanations=explanations(comparison),
        refused=_refused(groups),
        diagnoses=read_diagnoses(groups),
        causes=CAUSES,
        differences=_differences(groups),
        shared=_shared(groups),
        runs=_runs(groups),
        version=__version__,
        styles=[Inline(fixed_part("page.css")), Inline("")],  # plotly adds rules to an empty one
        not_added=_STYLES_OF_MAPS.findall(plotly),
        scripts=[Inline(plotly), Inline(fixed_part("page.js"))] if whole else [],
        live=live,
        chosen=chosen,
        data={
            "groups": [
                style | {"shown": group.runs[0].path in shown}
                for style, group in zip(group_styles(groups), groups, strict=True)
            ],
            "charts": charts,
        },
    )


def _plotly() -> str:
    try:
        plotly = importlib.import_module("plotly.offline")
    except ImportError as error:
        raise ImportError(
            'The report draws with plotly, which is not installed: pip install "fedvarp[plots]"'
        ) from error
    return str(plotly.get_plotlyjs()).replace("\r", "")  # browsers hash ends of lines as "\n"


def _summary(groups: Sequence[Group]) -> str:
    runs = sum(len(group.runs) for group in groups)
    rounds = sorted({int(group.rounds[-1]) for group in groups})
    long = f"{rounds[0]}" if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}"
    names = ", ".join(group.label for group in groups)
    return f"{runs} run{'s' if runs != 1 else ''} of {long} rounds: {names}."


def _refused(groups: Sequence[Group]) -> Table | str:
    """The replies that were refused; a sentence where there is no table to show."""
    records = [(run, record) for group in groups for run in group.runs for record in run.metrics]
    if not any("refused" in record for _, record in records):
        refused = sum(run.verdict.refused for group in groups for run in group.runs)
        replies = sum(run.verdict.replies for group in groups for run in group.runs)
        counted = f"{refused:,} of {replies:,}. " if replies else ""
        return f"{counted}Which ones is not known: these copies of runs leave it out."
    refusals = [
        (run.path, record["round"], client, why)
        for run, record in records
        for client, why in record.get("refused", {}).items()
    ]
    if not refusals:
        return "None: every reply was finite, and was used."
    many = len(refusals) > _MOST_REFUSALS
    title = f"The first {_MOST_REFUSALS} of {len(refusals)}" if many else f"{len(refusals)} in all"
    return _in_words(title, ("run", "round", "client", "why"), refusals[:_MOST_REFUSALS])


def _differences(groups: Sequence[Group]) -> Table | None:
    rows = [(name, *map(_value, values)) for name, values in setting_differences(groups).items()]
    header = ("setting", *(group.label for group in groups))
    return _in_words("What differs", header, rows) if rows else None


def _shared(groups: Sequence[Group]) -> Table:
    rows = [(name, _value(value)) for name, value in common_settings(groups).items()]
    return _in_words("Shared settings", ("setting", "value"), rows)


def _runs(groups: Sequence[Group]) -> Table:
    rows = [
        (
            run.path,
            group.label,
            run.seed,
            run.last_round,
            "yes" if run.finished else f"no, {run.planned_rounds} are planned",
        )
        for group in groups
        for run in group.runs
    ]
    return _in_words("Run directories", ("run", "group", "seed", "rounds", "finished"), rows)


def _in_words(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    return Table(title, columns, rows, words=columns)


def _value(value: object) -> object:
    """A setting as it is shown: long lists by their beginning, rates as powers of ten."""
    if isinstance(value, float):
        return in_short(value)
    if not isinstance(value, (list, tuple)):
        return value
    text = ", ".join(map(str, value[:_LONGEST_LIST]))
    return text if len(value) <= _LONGEST_LIST else f"{text}, … ({len(value)} in all)"
