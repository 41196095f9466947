"""The paper's figures: training loss and test accuracy, a mean over seeds with a band.

The band runs from the lowest to the highest seed: with two or three of them a standard deviation
would claim a precision that nobody has.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import Field

from fedvarp.analysis.best_rates import Rates, at_best_rates
from fedvarp.analysis.figures import (
    known_metric,
    line_style,
    panels,
    refuse_format,
    refuse_too_few,
    save,
)
from fedvarp.analysis.groups import Group, XAxis, group_runs, refuse_different_tasks
from fedvarp.analysis.metric_names import METRICS, scale_of
from fedvarp.analysis.runs import Paths, read_runs
from fedvarp.analysis.units import byte_unit
from fedvarp.runs.errors import RunError
from fedvarp.settings.bounds import Count
from fedvarp.settings.checked import checked

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKERS_PER_CURVE: Final = 8
_FAINT: Final[Any] = {"alpha": 0.25, "linewidth": 0.6, "zorder": 1.5}


@checked
def plot(
    paths: Paths,
    out: str | os.PathLike[str] | None = None,
    *,
    x: XAxis = "rounds",
    metrics: Annotated[
        Sequence[str] | None, Field(examples=['["test_accuracy", "train_loss"]'])
    ] = None,
    rates: Rates | None = None,
    title: str | None = None,
    smooth: Count = 1,
    log_loss: bool = False,
    allow_different: bool = False,
    ignore: str | Sequence[str] = (),
    on_note: Callable[[str], object] = warnings.warn,
) -> Any:
    """Draws the curves of some runs; drawing the same runs again gives the same bytes.

    Args:
        paths: Run directories, directories that hold some, or what `simulate` returned; in a
            mapping, by what to call them.
        out: The file; its ending says PNG, SVG or PDF. None: the figure is returned.
        x: What to draw against: rounds, bytes sent up and down, or wall time.
        metrics: What to draw, a panel each: any numbers that rounds record, such as "test_auc".
            None: the training loss and the test accuracy, or what was measured.
        rates: "best" draws each algorithm at its best client rate only, "all" at all of them.
            None: at the best for the runs of a sweep, and at all for others.
        title: Above the figure; None: no title.
        smooth: Draws the running mean over as many evaluations.
        log_loss: Draws losses on a logarithmic axis.
        allow_different: Draws runs of different tasks into one figure.
        ignore: Settings in which runs may differ and still be the same but for the seed.
        on_note: Told of each run that is left out, and of what is ignored.

    Returns:
        The file, or the figure of matplotlib, which a notebook shows.

    Raises:
        RunError: There is nothing to draw, the runs are of different tasks, no run has such a
            metric, or one has fewer evaluations than `smooth`.
        ImportError: matplotlib is not installed.
    """
    if out is not None:
        refuse_format(Path(out))
    runs, notes = read_runs(paths, ignore)
    for note in notes:
        on_note(note)
    if not allow_different:
        refuse_different_tasks(runs)
    groups, chosen = at_best_rates(group_runs(runs), rates)
    drawn = curves_figure(
        groups, x=x, metrics=metrics, smooth=smooth, log_loss=log_loss, title=title, about=chosen
    )
    return drawn if out is None else save(drawn, Path(out))


def curves_figure(
    groups: Sequence[Group],
    *,
    x: XAxis = "rounds",
    metrics: Sequence[str] | None = None,
    smooth: int = 1,
    log_loss: bool = False,
    title: str | None = None,
    about: str | None = None,
) -> Figure:
    """Draws a panel for the training loss and one for the test accuracy.

    Without an accuracy the second shows the test loss; what no run measured has no panel.

    Args:
        groups: One curve each.
        x: What to draw against.
        metrics: Draws these instead.
        smooth: Draws the running mean over as many evaluations.
        log_loss: Draws losses on a logarithmic axis.
        title: Above the figure; None: no title.
        about: A sentence for the caption; None: none.

    Returns:
        The figure, to be saved.

    Raises:
        RunError: No run has such a metric, one has fewer evaluations than `smooth`, or was not
            timed and is to be drawn against time.
    """
    refuse_too_few(groups, smooth)
    measured = [name for name in METRICS if any(group.records(name) for group in groups)][:2]
    if metrics is not None:
        measured = [known_metric(name, groups) for name in metrics] or measured
    size, label = _x_unit(groups, x)

    def draw(axes: Axes, metric: str) -> None:
        for place, group in enumerate(groups):
            if group.records(metric):
                _draw(axes, group, metric, x, size, smooth, place / len(groups))
        axes.set_xlabel(label)
        axes.set_xlim(left=0)

    caption = ".\n".join(part for part in (about, _caption(groups, smooth)) if part)
    return panels(measured, draw, log_loss=log_loss, caption=caption, title=title)


def _draw(
    axes: Axes, group: Group, metric: str, x: XAxis, size: float, smooth: int, offset: float
) -> None:
    at = group.x(x)
    assert at is not None  # _x_unit has refused runs without times
    unit = scale_of(metric)
    per_seed = group.values(metric, smooth) * unit
    colour = group.look.colour
    if len(per_seed) > 1:
        low, high = per_seed.min(axis=0), per_seed.max(axis=0)
        axes.fill_between(at / size, low, high, color=colour, alpha=0.15, linewidth=0)
    if smooth > 1:  # what was smoothed away, faintly: the first evaluations, and the swings
        axes.plot(at / size, group.values(metric).mean(axis=0) * unit, **_FAINT, color=colour)
    between = max(1, len(at) // _MARKERS_PER_CURVE)
    axes.plot(
        at / size,
        per_seed.mean(axis=0),
        **line_style(group.look),
        # Each curve starts at another evaluation, so that markers do not cover each other.
        markevery=(int(offset * between), between),
        label=group.label,
    )


def _x_unit(groups: Sequence[Group], x: XAxis) -> tuple[float, str]:
    """How many of what was recorded make one on the axis, and the axis's label."""
    if x == "rounds":
        return 1.0, "Communication rounds"
    longest = 0.0
    for group in groups:
        at = group.x(x)
        if at is None:
            raise RunError(
                f"The rounds of {group.label} were not all timed, so they cannot be drawn against "
                f"time. Draw them against rounds or bytes."
            )
        longest = max(longest, float(at[-1]))
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
