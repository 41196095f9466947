"""Figures for ablations: how good runs are in the end, against a setting in which they differ."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from fedvarp.analysis.figures import (
    DASHES,
    known_metric,
    line_style,
    panels,
    refuse_format,
    refuse_too_few,
    save,
)
from fedvarp.analysis.groups import Group, group_runs, refuse_different_tasks
from fedvarp.analysis.metric_names import METRICS, scale_of
from fedvarp.analysis.runs import Floats, Paths, Run, read_runs
from fedvarp.analysis.setting_kinds import NO_AXIS, axis_label, belongs, shown_name
from fedvarp.analysis.styles import Look
from fedvarp.analysis.units import in_short
from fedvarp.runs.errors import RunError
from fedvarp.settings.bounds import Count
from fedvarp.settings.checked import checked

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LOGARITHMIC_FROM: Final = 10.0  # largest value over smallest
_LONGEST_LIST: Final = 8  # of settings, in an error message
_LONGEST_VALUE: Final = 24  # letters, below the axis

_VALUE: Final = "against"  # what the setting is called while runs are grouped, whatever its kind


@dataclass(frozen=True, eq=False)
class Line:
    """Groups that differ in the one setting alone.

    Attributes:
        label: What to call it.
        look: How to draw it.
        at: The group at each value of the setting; None: those that do not have it.
    """

    label: str
    look: Look
    at: dict[Any, Group]


@checked
def plot_against(
    paths: Paths,
    setting: str,
    out: str | os.PathLike[str],
    *,
    metrics: Sequence[str] | None = None,
    title: str | None = None,
    smooth: Count = 1,
    log_loss: bool = False,
    allow_different: bool = False,
    ignore: str | Sequence[str] = (),
    on_note: Callable[[str], object] = warnings.warn,
) -> Path:
    """Draws the last evaluations of the runs against a setting.

    Args:
        paths: Run directories, or directories that hold some.
        setting: Its dotted name, such as "local_sgd.epochs". Runs that do not have it are drawn as
            a line across the figure.
        out: The file; its ending says PNG, SVG or PDF.
        metrics: What to draw, a panel each; None: the training loss and the test accuracy.
        title: Above the figure; None: no title.
        smooth: Evaluations at the end of each run to take the mean of.
        log_loss: Draws losses on a logarithmic axis.
        allow_different: Takes runs that differ in their task beyond that setting.
        ignore: Settings in which runs may differ and still be the same but for the seed.
        on_note: Told of each run that is left out, and of what is ignored.

    Returns:
        The file.

    Raises:
        RunError: There is nothing to draw, no run has the setting, the runs differ in more, or one
            has fewer evaluations than `smooth`.
        ImportError: matplotlib is not installed.
    """
    refuse_format(Path(out))
    lines = read_lines(paths, setting, allow_different, on_note, ignore)
    drawn = ablation_figure(
        lines, setting, metrics=metrics, smooth=smooth, log_loss=log_loss, title=title
    )
    return save(drawn, Path(out))


def read_lines(
    paths: Paths,
    setting: str,
    allow_different: bool,
    on_note: Callable[[str], object] = warnings.warn,
    ignore: str | Sequence[str] = (),
) -> list[Line]:
    """Reads runs, and makes one line of all that differ in the setting and the seed alone.

    Args:
        paths: Run directories, or directories that hold some.
        setting: Its dotted name.
        allow_different: Takes runs that differ in their task beyond that setting.
        on_note: Told of each run that is left out, and of what is ignored.
        ignore: Settings that the runs are read without.

    Returns:
        The lines, in the order of the paper's legends.

    Raises:
        RunError: There is no run, none has the setting, all have the same value of it, or the runs
            differ in more.
    """
    if setting in NO_AXIS:
        raise RunError(f"{NO_AXIS[setting]}: draw runs against another setting than {setting}.")
    if belongs(setting, [ignore] if isinstance(ignore, str) else ignore):
        raise RunError(f"{setting} is ignored, so runs cannot be drawn against it.")
    runs, notes = read_runs(paths, ignore)
    for note in notes:
        on_note(note)
    values = [_value(run, setting) for run in runs]
    if len(set(values)) < 2:
        raise RunError(_nothing_to_compare(runs, setting))
    bare = [_without(run, setting) for run in runs]
    if not allow_different:
        # Another split of the data has another loss from the start.
        refuse_different_tasks(bare, same_start=False)
        by_value: dict[Any, list[Run]] = defaultdict(list)
        for run, value in zip(bare, values, strict=True):
            by_value[value].append(run)
        for same in by_value.values():
            refuse_different_tasks(same)
    return _lines(bare, values)


def ablation_figure(
    lines: Sequence[Line],
    setting: str,
    *,
    metrics: Sequence[str] | None = None,
    smooth: int = 1,
    log_loss: bool = False,
    title: str | None = None,
) -> Figure:
    """Draws a panel for the training loss and one for the test accuracy, or what was measured.

    Args:
        lines: What `read_lines` made.
        setting: What the horizontal axis shows.
        metrics: Draws these instead.
        smooth: Evaluations at the end of each run to take the mean of.
        log_loss: Draws losses on a logarithmic axis.
        title: Above the figure; None: no title.

    Returns:
        The figure, to be saved.

    Raises:
        RunError: No metric was measured by all runs, or one has fewer evaluations than `smooth`.
    """
    groups = [group for line in lines for group in line.at.values()]
    measured = [name for name in METRICS if all(group.records(name) for group in groups)][:2]
    if metrics:
        measured = [known_metric(name, groups) for name in metrics]
    if not measured:
        raise RunError(
            "These runs have no loss and no accuracy in common: some measured the one, some the "
            "other. Leave some out."
        )
    refuse_too_few(groups, smooth)
    places = _places({value for line in lines for value in line.at if value is not None})

    def draw(axes: Axes, metric: str) -> None:
        for line in lines:
            _draw(axes, line, setting, metric, places, smooth)
        _label_values(axes, places)
        axes.set_xlabel(axis_label(setting))

    caption = _caption(groups, smooth)
    if not all(np.isfinite(_ends(g, name, smooth)).all() for g in groups for name in measured):
        caption += ". No point where a seed diverged"
    return panels(measured, draw, log_loss=log_loss, caption=caption, title=title)


def _lines(runs: Sequence[Run], values: Sequence[Any]) -> list[Line]:
    """Lines in the order of the paper's legends, of runs without the setting and its values."""
    found: dict[tuple[str, ...], dict[Any, Group]] = defaultdict(dict)
    # All at once: which settings follow the seed, only all the runs together can say.
    for group in group_runs([_with(run, v) for run, v in zip(runs, values, strict=True)]):
        same = {name: v for name, v in group.settings.items() if name != _VALUE}
        key = tuple(sorted(f"{name}={v!r}" for name, v in same.items()))
        found[key][group.settings.get(_VALUE)] = group
    # A run of each line stands for it, so that labels say in what the lines differ.
    firsts = [_without(next(iter(at.values())).runs[0], _VALUE) for at in found.values()]
    at_of = {first.path: at for first, at in zip(firsts, found.values(), strict=True)}
    return [
        Line(named.label, named.look, at_of[first.path])
        for named in group_runs(firsts)
        for first in named.runs
    ]


def _draw(
    axes: Axes, line: Line, setting: str, metric: str, places: dict[Any, float], smooth: int
) -> None:
    size = scale_of(metric)
    known = sorted((places[value], group) for value, group in line.at.items() if value is not None)
    if None in line.at:
        across = {"color": line.look.colour, "linestyle": DASHES[line.look.dash]}
        label = line.label
        if known:  # not to be taken for the line through the points
            label += f", {shown_name(setting, line.at[None].settings)} unset"
            across |= {"linestyle": DASHES["dot"], "linewidth": 1.0}
        axes.axhline(_ends(line.at[None], metric, smooth).mean() * size, label=label, **across)
    if not known:
        return
    ends = [_ends(group, metric, smooth) * size for _, group in known]
    means = [end.mean() for end in ends]
    bars = [
        [mean - end.min() for mean, end in zip(means, ends, strict=True)],
        [end.max() - mean for mean, end in zip(means, ends, strict=True)],
    ]
    axes.errorbar(
        [place for place, _ in known],
        means,
        yerr=bars if any(len(end) > 1 for end in ends) else None,
        elinewidth=0.8,
        capsize=2,
        label=line.label,
        **line_style(line.look),
    )


def _ends(group: Group, metric: str, smooth: int) -> Floats:
    """(seeds,) the mean of the last evaluations of each run; NaN where it diverged."""
    ends: Floats = group.values(metric, smooth)[:, -1]
    return ends


def _places(values: Iterable[Any]) -> dict[Any, float]:
    """Where each value stands: numbers and names with a number (auto:8) by it, others in a row."""
    numbers = {value: _number(value) for value in values}
    known = {value: number for value, number in numbers.items() if number is not None}
    if len(known) == len(numbers) == len(set(known.values())):
        return dict(sorted(known.items(), key=lambda item: item[1]))
    return {value: float(place) for place, value in enumerate(sorted(numbers, key=str))}


def _number(value: Any) -> float | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value) if math.isfinite(value) else None
    of_name = re.fullmatch(r"[A-Za-z_]+:(\d+)(?::\w+)?", str(value))
    return float(of_name[1]) if of_name else None


def _label_values(axes: Axes, places: dict[Any, float]) -> None:
    from matplotlib.ticker import NullLocator

    if min(places.values()) > 0 and (
        max(places.values()) >= _LOGARITHMIC_FROM * min(places.values())
    ):
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(list(places.values()), [_text(value) for value in places])


def _text(value: Any) -> str:
    text = in_short(value) if isinstance(value, float) else str(value).removeprefix("auto:")
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"


def _caption(groups: Sequence[Group], smooth: int) -> str:
    ends = f"the last {smooth} evaluations" if smooth > 1 else "the last evaluation"
    rounds = sorted({int(group.rounds[-1]) for group in groups})
    after = f"{rounds[0]}" if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}"
    caption = f"After {after} rounds: {ends} of each run"
    fewest, most = (pick(len(group.runs) for group in groups) for pick in (min, max))
    if most == 1:
        return f"{caption}, one seed"
    seeds = str(most) if fewest == most else f"{fewest} to {most}"
    return f"{caption}. Mean over {seeds} seeds; bars: lowest to highest seed"


def _value(run: Run, setting: str) -> Any:
    """Its value in a run, as something that can be looked up; None: not set."""
    value = run.settings.get(setting)
    return str(value) if isinstance(value, list) else value


def _with(run: Run, value: Any) -> Run:
    if value is None:
        return run
    return dataclasses.replace(run, settings={**run.settings, _VALUE: value})


def _without(run: Run, setting: str) -> Run:
    kept = {name: value for name, value in run.settings.items() if name != setting}
    return dataclasses.replace(run, settings=kept)


def _nothing_to_compare(runs: Sequence[Run], setting: str) -> str:
    names = {name for run in runs for name in run.settings}
    differing = sorted(n for n in names if len({repr(r.settings.get(n)) for r in runs}) > 1)
    listed = ", ".join(differing[:_LONGEST_LIST]) or "nothing"
    if setting in names:
        return f"All these runs have the same {setting}. They differ in {listed}."
    return f"No run has a setting {setting}; in config.toml they differ in {listed}."
