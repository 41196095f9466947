"""What the page's script draws, as plain data: curves, bars, and which group each belongs to."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from fedvarp.analysis.groups import X_AXES, Group, XAxis
from fedvarp.analysis.metric_names import (
    METRICS,
    is_of_clients,
    metric_label,
    own_metrics,
    scale_of,
)
from fedvarp.analysis.report.participation import Participation, participation
from fedvarp.analysis.runs import Floats
from fedvarp.analysis.units import in_bytes

Chart = dict[str, Any]

_MOST_POINTS: Final = 400  # of a line with a value for every round
_MOST_BARS: Final = 40
_SHARED_COLOUR: Final = "#444444"  # of lines that stand for several algorithms


def all_charts(groups: Sequence[Group]) -> list[Chart]:
    """Describes every chart of the page that has something to draw, in the page's order.

    Args:
        groups: The runs.

    Returns:
        Plain data for page.js, and for the page: a section, an id, a title and a word about it.
    """
    measured = [name for name in METRICS if any(group.records(name) for group in groups)]
    everything = [name for group in groups for run in group.runs for name in run.figures]
    measured += [n for n in own_metrics(everything) if any(group.records(n) for group in groups)]
    charts = [_metric_chart(groups, name) for name in measured]
    charts += _clients_charts(groups)
    patterns = _patterns(groups)
    if patterns:
        charts += [_times_chart(groups, patterns), _staleness_chart(groups, patterns)]
    charts.append(_memory_chart(groups))
    return [chart for chart in charts if chart["lines"]]


def x_axes(groups: Sequence[Group]) -> list[XAxis]:
    """Returns what all curves can be drawn against: time only where all runs were timed."""
    return [axis for axis in X_AXES if all(group.x(axis) is not None for group in groups)]


def group_styles(groups: Sequence[Group]) -> list[dict[str, str]]:
    """Returns name, colour, dash and marker of each group; plotly reads names as HTML."""
    return [
        {
            "name": html.escape(group.label, quote=False),
            "colour": group.look.colour,
            "dash": group.look.dash,
            "marker": group.look.marker,
        }
        for group in groups
    ]


def _metric_chart(groups: Sequence[Group], metric: str) -> Chart:
    percent = scale_of(metric) == 100
    axes = x_axes(groups)
    lines = []
    for i, group in enumerate(groups):
        if not group.records(metric):
            continue
        per_seed = group.values(metric) * scale_of(metric)
        x = {axis: group.x(axis) for axis in axes}
        line = {
            "groups": [i],
            "x": {axis: _numbers(at) for axis, at in x.items() if at is not None},
            "y": _numbers(per_seed.mean(axis=0)),
        }
        if len(per_seed) > 1:
            line["low"] = _numbers(per_seed.min(axis=0))
            line["high"] = _numbers(per_seed.max(axis=0))
        lines.append(line)
    return {
        "id": metric.replace("_", "-"),
        "section": "fairness" if is_of_clients(metric) else "curves",
        "follows": True,
        "title": metric_label(metric),
        "about": "The mean over seeds, with a band from the lowest to the highest seed.",
        "kind": "line",
        "can_log": not percent,
        "unit": " %" if percent else "",
        "lines": lines,
    }


def _clients_charts(groups: Sequence[Group]) -> list[Chart]:
    """The last evaluation of every cluster, and of every client from the worst to the best."""
    charts = []
    for held, what in (("by_cluster", "cluster"), ("by_client", "client")):
        lines = []
        for i, group in enumerate(groups):
            found = [[r[held] for r in run.metrics if held in r][-1:] for run in group.runs]
            if not all(found):
                continue
            name = "train_accuracy" if "train_accuracy" in found[0][0] else "train_loss"
            values = [last.get(name, []) for (last,) in found]
            if not values[0] or len(set(map(len, values))) > 1:
                continue  # not measured, or the seeds have unequally many: there is no mean
            each = np.array(values, dtype=np.float64) * scale_of(name)
            mean = np.mean(np.sort(each) if what == "client" else each, axis=0)
            line = {"groups": [i], "x": {"rounds": list(range(len(mean)))}, "y": _numbers(mean)}
            lines.append(line | {"label": metric_label(name)})
        charts.append(
            {
                "id": held.replace("_", "-"),
                "section": "fairness",
                "title": f"{lines[0]['label']} of each {what} at the end" if lines else "",
                "about": "On its training data; the mean over seeds."
                + (" Clients in order of it, the lowest first." if what == "client" else ""),
                "kind": "line" if what == "client" else "bar",
                "x_title": "Clients in order" if what == "client" else "Cluster",
                "y_title": lines[0]["label"] if lines else "",
                "lines": lines,
            }
        )
    return charts


def _times_chart(groups: Sequence[Group], patterns: Sequence[_Pattern]) -> Chart:
    most = max(len(pattern.what.counts) for pattern in patterns)
    width = -(-most // _MOST_BARS)  # rounded up
    bars = []
    for pattern in patterns:
        padded = np.zeros(-(-most // width) * width)
        padded[: len(pattern.what.counts)] = pattern.what.counts
        starts = range(0, len(padded), width)
        bars.append(
            _drawn(groups, pattern.groups)
            | {
                "x": {"rounds": [s if width == 1 else f"{s}–{s + width - 1}" for s in starts]},
                "y": _numbers(padded.reshape(-1, width).sum(axis=1)),
            }
        )
    clients = " or ".join(f"{n:,}" for n in sorted({p.what.num_clients for p in patterns}))
    return {
        "id": "participation",
        "section": "clients",
        "title": "Clients by how often they took part",
        "about": f"Of {clients} clients; the mean over seeds. Replies that were refused do not "
        f"count.",
        "kind": "bar",
        "x_title": "Rounds taken part in",
        "y_title": "Clients",
        "bars_are": " clients",
        "lines": bars,
    }


def _staleness_chart(groups: Sequence[Group], patterns: Sequence[_Pattern]) -> Chart:
    lines = []
    for pattern in patterns:
        kept = _thinned(len(pattern.what.mean_staleness))
        for name, values, dash in (
            ("mean", pattern.what.mean_staleness, "solid"),
            ("longest", pattern.what.max_staleness, "dot"),
        ):
            line = _drawn(groups, pattern.groups)
            line["name"] = f"{line['name']}: {name}"
            line |= {"dash": dash, "x": {"rounds": (kept + 1).tolist()}}
            line["y"] = _numbers(values[kept])
            lines.append(line)
    return {
        "id": "staleness",
        "section": "clients",
        "title": "Rounds since a client last took part",
        "about": "How old the server’s memory of its clients is: the mean over all clients, and "
        "the client that waits longest. One that never took part counts from the start.",
        "kind": "line",
        "y_title": "Rounds",
        "lines": lines,
    }


def _memory_chart(groups: Sequence[Group]) -> Chart:
    lines: list[dict[str, Any]] = []
    for i, group in enumerate(groups):
        per_run = [
            {r["round"]: r["server_bytes"] for r in run.metrics if "server_bytes" in r}
            for run in group.runs
        ]
        rounds = sorted(set(per_run[0]).intersection(*per_run[1:]))
        if not rounds:
            continue
        kept = [rounds[k] for k in _thinned(len(rounds))]
        held = np.mean([[run[t] for t in kept] for run in per_run], axis=0)
        y = _numbers(held)
        # Algorithms with equal tables need equal memory: one line for them, or one would hide all.
        same = next((line for line in lines if line["y"] == y), None)
        if same is not None:
            same["groups"].append(i)
            continue
        hover = [in_bytes(value) for value in held.tolist()]
        lines.append({"groups": [i], "x": {"rounds": kept}, "y": y, "hover": hover})
    return {
        "id": "memory",
        "section": "memory",
        "title": "Memory of the server",
        "about": "Model, server optimiser and table of client states; the mean over seeds.",
        "kind": "line",
        "y_bytes": True,
        "lines": [line | _drawn(groups, line["groups"]) for line in lines],
    }


@dataclass(frozen=True)
class _Pattern:
    """One way of taking part, and the groups that share it."""

    what: Participation
    groups: list[int]


def _patterns(groups: Sequence[Group]) -> list[_Pattern]:
    """Groups with the same seeds have met the same cohorts: they are drawn once."""
    patterns: list[_Pattern] = []
    for i, group in enumerate(groups):
        mine = participation(group)
        if mine is None:
            continue
        known = next((pattern for pattern in patterns if pattern.what.same(mine)), None)
        if known is None:
            patterns.append(_Pattern(mine, [i]))
        else:
            known.groups.append(i)
    return patterns


def _drawn(groups: Sequence[Group], members: list[int]) -> dict[str, Any]:
    """Groups, name and colour of a line that stands for `members`."""
    names = html.escape(", ".join(groups[i].label for i in members), quote=False)
    if len(members) == 1:
        return {"groups": members, "name": names, "colour": groups[members[0]].look.colour}
    name = "all algorithms" if len(members) == len(groups) else names
    return {"groups": members, "name": name, "colour": _SHARED_COLOUR, "dash": "solid"}


def _thinned(count: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.unique(np.linspace(0, count - 1, min(count, _MOST_POINTS)).round().astype(np.int64))


def _numbers(values: Floats) -> list[float | None]:
    """For JSON: to seven digits, which no screen shows more of, and null for what is not finite."""
    return [float(f"{v:.7g}") if np.isfinite(v) else None for v in values.tolist()]
