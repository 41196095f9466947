"""The paper's figures: training loss and test accuracy, a mean over seeds with a band.

The band runs from the lowest to the highest seed: with two or three of them a standard deviation
would claim a precision that nobody has.
"""

from __future__ import annotations

import io
import math
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from fedvarp.analysis.groups import Group, XAxis, group_runs, refuse_different_tasks
from fedvarp.analysis.runs import METRICS, AnyPath, Floats, read_runs
from fedvarp.analysis.styles import Dash, Marker
from fedvarp.analysis.units import byte_unit
from fedvarp.runs.errors import RunError
from fedvarp.runs.whole_files import write_whole

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS: Final = ("png", "svg", "pdf")
X_AXES: Final[tuple[XAxis, ...]] = ("rounds", "bytes", "time")
Y_LABELS: Final = {
    "train_loss": "Training loss",
    "test_accuracy": "Test accuracy (%)",
    "test_loss": "Test loss",
}

DASHES: Final[dict[Dash, Any]] = {
    "solid": "-",
    "dash": (0, (5, 1.6)),
    "dot": (0, (1.2, 1.2)),
    "dashdot": (0, (5, 1.5, 1.2, 1.5)),
    "longdash": (0, (7, 2.2)),
}
MARKERS: Final[dict[Marker, str]] = {
    "circle": "o", "square": "s", "diamond": "D", "triangle-up": "^", "triangle-down": "v",
    "x": "X", "star": "*",
}  # fmt: skip
_MARKERS_PER_CURVE: Final = 8
_FAINT: Final[Any] = {"alpha": 0.25, "linewidth": 0.6, "zorder": 1.5}
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


def plot(
    paths: Iterable[AnyPath],
    out: str | os.PathLike[str],
    *,
    x: XAxis = "rounds",
    smooth: int = 1,
    log_loss: bool = False,
    allow_different: bool = False,
    on_note: Callable[[str], object] = warnings.warn,
) -> Path:
    """Draws the runs, and returns the file; drawing the same runs again gives the same bytes.

    Args:
        paths: Run directories, or directories that hold some.
        out: The file; its ending says PNG, SVG or PDF.
        x: What to draw against: rounds, bytes sent up and down, or wall time.
        smooth: Draws the running mean over as many evaluations.
        log_loss: Draws losses on a logarithmic axis.
        allow_different: Draws runs of different tasks into one figure.
        on_note: Told of each run that is left out.

    Raises:
        RunError: There is nothing to draw, the runs are of different tasks, or one has fewer
            evaluations than `smooth`.
    """
    refuse_format(Path(out))
    runs, notes = read_runs(paths)
    for note in notes:
        on_note(note)
    if not allow_different:
        refuse_different_tasks(runs)
    return save(figure(group_runs(runs), x=x, smooth=smooth, log_loss=log_loss), Path(out))


def refuse_format(file: Path) -> None:
    """Raises RunError unless the file's ending is one that can be drawn."""
    if _ending(file) not in FORMATS:
        raise RunError(f"{file} does not end in {', '.join(f'.{name}' for name in FORMATS)}.")


def refuse_undrawable(file: Path) -> None:
    """Raises RunError or ImportError where a figure could not be drawn into that file.

    For those who have long to work before they draw.
    """
    refuse_format(file)
    need_matplotlib()
    place = next(place for place in (file, *file.absolute().parents) if place.exists())
    if place.is_dir() != (place != file) or not os.access(place, os.W_OK):
        raise RunError(
            f"{file} cannot be written: {place} is no {'file' if place == file else 'folder'} that "
            f"you may write to. Choose another place."
        )


def save(drawn: Figure, file: Path) -> Path:
    """Writes a figure, whole or not at all; the same figure gives the same bytes."""
    refuse_format(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    # Dates would make each drawing a different file.
    undated = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    content = io.BytesIO()
    with our_style():
        drawn.savefig(content, format=_ending(file), metadata=undated[_ending(file)])
    write_whole(file, content.getvalue())
    return file


def _ending(file: Path) -> str:
    return file.suffix.lower().removeprefix(".")


def figure(
    groups: Sequence[Group], *, x: XAxis = "rounds", smooth: int = 1, log_loss: bool = False
) -> Figure:
    """A figure with a panel for the training loss and one for the test accuracy.

    Without an accuracy the second shows the test loss; what no run measured has no panel.
    """
    refuse_too_few(groups, smooth)
    measured = [name for name in METRICS if any(group.records(name) for group in groups)][:2]
    size, label = _x_unit(groups, x)

    def draw(axes: Axes, metric: str) -> None:
        for place, group in enumerate(groups):
            if group.records(metric):
                _draw(axes, group, metric, x, size, smooth, place / len(groups))
        axes.set_xlabel(label)
        axes.set_xlim(left=0)

    return panels(measured, draw, log_loss=log_loss, caption=_caption(groups, smooth))


def refuse_too_few(groups: Sequence[Group], smooth: int) -> None:
    """Raises RunError where a run has fewer evaluations to draw than the mean is taken over."""
    for group in groups:
        for run in group.runs:
            count = int((run.rounds <= group.rounds[-1]).sum())
            if count < smooth:
                raise RunError(
                    f"{run.path} has {count} evaluations up to round {group.rounds[-1]}, too few "
                    f"for the mean of the last {smooth}. Take a smaller mean (--smooth, in Python "
                    f"smooth=…), or leave it out."
                )


def panels(
    metrics: Sequence[str], draw: Callable[[Axes, str], None], *, log_loss: bool, caption: str
) -> Figure:
    """A panel for each metric beside the other, a legend above them and a caption below.

    Args:
        metrics: What the panels show.
        draw: Draws a metric, and says what the horizontal axis is.
        log_loss: Draws losses on a logarithmic axis.
        caption: In small letters.
    """
    need_matplotlib()
    from matplotlib.figure import Figure

    with our_style():
        drawn = Figure(figsize=(3.4 * len(metrics) + 0.2, 3.1), layout="constrained")
        for column, metric in enumerate(metrics):
            axes = drawn.add_subplot(1, len(metrics), column + 1)
            draw(axes, metric)
            is_log = log_loss and metric != "test_accuracy"
            axes.set_ylabel(Y_LABELS[metric] + (", log scale" if is_log else ""))
            if is_log:
                logarithmic(axes)
        legend(drawn)
        drawn.supxlabel(caption, fontsize=6.5, color="#555555")
    return drawn


def our_style() -> AbstractContextManager[None]:
    """Whatever a matplotlibrc on this machine says, figures look the same."""
    import matplotlib as mpl

    return mpl.rc_context(dict(mpl.rcParamsDefault) | _STYLE)


def logarithmic(axes: Axes) -> None:
    """Losses at 1, 2, 5, 10, …, written out; at more of them where they lie close together."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    at: Sequence[float] = (1, 2, 5) if high > 10 * low else (1, 1.5, 2, 3, 4, 5, 6, 7, 8)
    axes.yaxis.set_major_locator(LogLocator(subs=at))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def _draw(
    axes: Axes, group: Group, metric: str, x: XAxis, size: float, smooth: int, offset: float
) -> None:
    at = group.x(x)
    assert at is not None  # _x_unit has refused runs without times
    unit = 100 if metric == "test_accuracy" else 1
    per_seed = group.values(metric, smooth) * unit
    look = group.look
    if len(per_seed) > 1:
        low, high = per_seed.min(axis=0), per_seed.max(axis=0)
        axes.fill_between(at / size, low, high, color=look.colour, alpha=0.15, linewidth=0)
    if smooth > 1:  # what was smoothed away, faintly: the first evaluations, and the swings
        axes.plot(at / size, group.values(metric).mean(axis=0) * unit, **_FAINT, color=look.colour)
    between = max(1, len(at) // _MARKERS_PER_CURVE)
    axes.plot(
        at / size,
        per_seed.mean(axis=0),
        color=look.colour,
        linestyle=DASHES[look.dash],
        marker=MARKERS[look.marker],
        # Each curve starts at another evaluation, so that markers do not cover each other.
        markevery=(int(offset * between), between),
        markeredgecolor="white",
        markeredgewidth=0.5,
        label=group.label,
    )


def legend(drawn: Figure) -> None:
    """Above the panels, in reading order, in as few rows as fit."""
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
    )


def _x_unit(groups: Sequence[Group], x: XAxis) -> tuple[float, str]:
    if x == "rounds":
        return 1.0, "Communication rounds"
    ends: list[Floats] = []
    for group in groups:
        at = group.x(x)
        if at is None:
            raise RunError(
                f"The rounds of {group.label} were not all timed, so they cannot be drawn against "
                f"time. Draw them against rounds or bytes."
            )
        ends.append(at[-1:])
    longest = float(np.max(ends))
    if x == "bytes":
        size, unit = byte_unit(longest)
        return size, f"Sent by server and clients ({unit})"
    for size, unit in ((3600.0, "hours"), (60.0, "minutes")):
        if longest >= 2 * size:
            return size, f"Wall time ({unit})"
    return 1.0, "Wall time (seconds)"


def _caption(groups: Sequence[Group], smooth: int) -> str:
    parts = []
    if seeds := _several_seeds(groups):
        parts.append(f"Lines: mean over {seeds}; bands: lowest to highest seed")
    if smooth > 1:
        parts.append(f"Running mean over {smooth} evaluations; faint: each evaluation")
    return ".\n".join(parts)


def _several_seeds(groups: Sequence[Group]) -> str | None:
    """How many seeds the groups have, such as "3 seeds (MIFA: 1)"; None: one each."""
    counts = {group.label: len(group.runs) for group in groups}
    most = max(counts.values())
    if most == 1:
        return None
    fewer: dict[int, list[str]] = {}
    for label, count in counts.items():
        if count < most:
            fewer.setdefault(count, []).append(label)
    others = "; ".join(f"{', '.join(labels)}: {count}" for count, labels in fewer.items())
    return f"{most} seeds" + (f" ({others})" if others else "")


def need_matplotlib() -> None:
    """Raises ImportError, with the way out, where matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError(
            'Figures are drawn by matplotlib, which is not installed: pip install "fedvarp[plots]"'
        ) from error
