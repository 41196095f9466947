"""What all figures have in common: style, panels, legend, axes, and how they are saved.

matplotlib is loaded by the first figure that is drawn, not by importing this module.
"""

from __future__ import annotations

import io
import math
import os
import textwrap
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fedvarp.analysis.groups import Group
from fedvarp.analysis.metric_names import metric_label, scale_of
from fedvarp.analysis.styles import Dash, Look, Marker
from fedvarp.runs.errors import RunError
from fedvarp.system.whole_files import write_whole

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS: Final = ("png", "svg", "pdf")
DASHES: Final[dict[Dash, Any]] = {
    "solid": "-",
    "dash": (0, (5, 1.6)),
    "dot": (0, (1.2, 1.2)),
    "dashdot": (0, (5, 1.5, 1.2, 1.5)),
    "longdash": (0, (7, 2.2)),
}
_MOST_ACROSS: Final = 3  # panels beside each other
_MARKERS: Final[dict[Marker, str]] = {
    "circle": "o", "square": "s", "diamond": "D", "triangle-up": "^", "triangle-down": "v",
    "x": "X", "star": "*",
}  # fmt: skip
_STYLE: Final[Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so every machine draws the same figure
    "font.size": 8,
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.5,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "figure.constrained_layout.w_pad": 0.08,
    "savefig.dpi": 200,
    "pdf.fonttype": 42,  # letters stay letters: they can be searched and edited
    "svg.hashsalt": "fedvarp",  # names within the file do not change from one drawing to the next
}


def panels(
    metrics: Sequence[str],
    draw: Callable[[Axes, str], None],
    *,
    log_loss: bool,
    caption: str,
    title: str | None = None,
) -> Figure:
    """Draws a panel for each metric beside the other, a legend above and a caption below.

    Args:
        metrics: What the panels show.
        draw: Draws a metric, and says what the horizontal axis is.
        log_loss: Draws losses on a logarithmic axis.
        caption: In small letters.
        title: Above all; None: no title.

    Returns:
        The figure, to be saved.

    Raises:
        ImportError: matplotlib is not installed.
    """
    need_matplotlib()
    from matplotlib.figure import Figure

    class Drawn(Figure):
        """A figure that a notebook shows, whatever backend there is."""

        def _repr_png_(self) -> bytes:
            return in_bytes_of(self, "png")

    across = min(len(metrics), _MOST_ACROSS)
    down = math.ceil(len(metrics) / _MOST_ACROSS)
    with our_style():
        drawn = Drawn(figsize=(3.4 * across + 0.2, 2.9 * down + 0.2), layout="constrained")
        for place, metric in enumerate(metrics):
            axes = drawn.add_subplot(down, across, place + 1)
            draw(axes, metric)
            is_log = log_loss and scale_of(metric) == 1
            axes.set_ylabel(metric_label(metric) + (", log scale" if is_log else ""))
            if is_log:
                _make_logarithmic(axes)
        _add_legend(drawn, title)
        drawn.supxlabel(_in_lines(caption, drawn, 0.055), fontsize=6.5, color="#555555")
    return drawn


def _in_lines(text: str, drawn: Figure, letter: float) -> str:
    """Breaks lines that are wider than the figure; a letter is as many inches wide."""
    most = int(drawn.get_figwidth() / letter)
    return "\n".join(textwrap.fill(line, most) for line in text.splitlines())


def line_style(look: Look) -> dict[str, Any]:
    """Returns the look of a curve as the keywords of matplotlib."""
    return {
        "color": look.colour,
        "linestyle": DASHES[look.dash],
        "marker": _MARKERS[look.marker],
        "markeredgecolor": "white",
        "markeredgewidth": 0.5,
    }


def our_style() -> AbstractContextManager[None]:
    """Sets the style for as long as it is open, whatever a matplotlibrc on this machine says."""
    import matplotlib as mpl

    return mpl.rc_context(dict(mpl.rcParamsDefault) | _STYLE)


def save(drawn: Figure, file: Path) -> Path:
    """Writes a figure, whole or not at all; the same figure gives the same bytes.

    Args:
        drawn: The figure.
        file: Its ending says PNG, SVG or PDF; its folder is made if need be.

    Returns:
        The file.

    Raises:
        RunError: The file has another ending.
    """
    refuse_format(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, in_bytes_of(drawn, _ending(file)))
    return file


def in_bytes_of(drawn: Figure, format: str) -> bytes:
    """Returns what a file of the figure holds; the same figure gives the same bytes.

    Args:
        drawn: The figure.
        format: One of FORMATS.
    """
    # Dates would make each drawing a different file.
    undated = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    content = io.BytesIO()
    with our_style():
        drawn.savefig(content, format=format, metadata=undated[format])
    return content.getvalue()


def refuse_format(file: Path) -> None:
    """Refuses a file that no figure can be written to because of its ending.

    Raises:
        RunError: The ending is none of FORMATS.
    """
    if _ending(file) not in FORMATS:
        raise RunError(f"{file} does not end in {', '.join(f'.{name}' for name in FORMATS)}.")


def refuse_undrawable(file: Path) -> None:
    """Refuses a file that no figure can be written to, before long work that ends in a figure.

    Raises:
        RunError: Its ending is none of FORMATS, or its place cannot be written to.
        ImportError: matplotlib is not installed.
    """
    refuse_format(file)
    need_matplotlib()
    place = next(place for place in (file, *file.absolute().parents) if place.exists())
    if place.is_dir() != (place != file) or not os.access(place, os.W_OK):
        raise RunError(
            f"{file} cannot be written: {place} is no {'file' if place == file else 'folder'} that "
            f"you may write to. Choose another place."
        )


def refuse_too_few(groups: Sequence[Group], smooth: int) -> None:
    """Refuses groups that cannot be smoothed.

    Args:
        groups: To be drawn.
        smooth: Over how many evaluations means are to be taken.

    Raises:
        RunError: A run has fewer evaluations to draw.
    """
    for group in groups:
        for run in group.runs:
            count = int((run.rounds <= group.rounds[-1]).sum())
            if count < smooth:
                raise RunError(
                    f"{run.path} has {count} evaluations up to round {group.rounds[-1]}, too few "
                    f"for the mean of the last {smooth}. Take a smaller mean (--smooth, in Python "
                    f"smooth=…), or leave it out."
                )


def known_metric(name: str, groups: Sequence[Group]) -> str:
    """Returns the name of a metric that is to be drawn.

    Args:
        name: What rounds record it by.
        groups: To be drawn.

    Raises:
        RunError: No run recorded it; says what there is.
    """
    if any(group.records(name) for group in groups):
        return name
    runs = [run for group in groups for run in group.runs]
    there = list(dict.fromkeys(figure for run in runs for figure in run.figures))
    near = get_close_matches(name, there, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise RunError(f"No run recorded {name!r} as a number.{hint} There are {', '.join(there)}.")


def need_matplotlib() -> None:
    """Loads matplotlib.

    Raises:
        ImportError: It is not installed; the message says how to install it.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError(
            'Figures are drawn by matplotlib, which is not installed: pip install "fedvarp[plots]"'
        ) from error


def _ending(file: Path) -> str:
    return file.suffix.lower().removeprefix(".")


def _make_logarithmic(axes: Axes) -> None:
    """Losses at 1, 2, 5, 10, …, written out; at more of them where they lie close together."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    at: Sequence[float] = (1, 2, 5) if high > 10 * low else (1, 1.5, 2, 3, 4, 5, 6, 7, 8)
    axes.yaxis.set_major_locator(LogLocator(subs=at))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def _add_legend(drawn: Figure, title: str | None) -> None:
    """Above the panels, in reading order, in as few rows as fit; the title of all above it."""
    by_label: dict[str, Artist] = {}
    for axes in drawn.axes:
        handles, labels = axes.get_legend_handles_labels()
        by_label |= dict(zip(labels, handles, strict=True))
    labels = list(by_label)
    widths = [0.6 + 0.065 * len(label) for label in labels]  # inches, at the font size of _STYLE
    across = len(labels)
    while across > 1:
        columns = [max(widths[start::across]) for start in range(across)]
        if sum(columns) <= drawn.get_figwidth():
            break
        across -= 1
    across = math.ceil(len(labels) / math.ceil(len(labels) / across))  # rows of equal length
    # matplotlib fills column after column; people read row after row.
    order = [i for start in range(across) for i in range(start, len(labels), across)]
    drawn.legend(
        [by_label[labels[i]] for i in order],
        [labels[i] for i in order],
        loc="outside upper center",
        ncols=across,
        handlelength=3.4,
        columnspacing=1.4,
        title=None if title is None else _in_lines(title, drawn, 0.09),
        title_fontsize=10,
    )
