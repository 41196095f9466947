"""Of groups that differ in the client rate alone, the best: a sweep has one for each rate."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

import numpy as np

from fedvarp.analysis.groups import Group, group_runs
from fedvarp.analysis.metric_names import metric_label
from fedvarp.analysis.runs import Run
from fedvarp.analysis.setting_kinds import CLIENT_RATE
from fedvarp.analysis.sweep_file import are_of_sweeps, deciding_metric
from fedvarp.analysis.units import in_short
from fedvarp.runs.figures import DECIDING, higher_is_better, late_mean

Rates = Literal["best", "all"]


def at_best_rates(
    groups: Sequence[Group], rates: Rates | None = None
) -> tuple[list[Group], str | None]:
    """Leaves out groups that another with the same settings but for the client rate is better than.

    The rule is that of a sweep: the mean over seeds of the metric it chose by, averaged over the
    last fifth of a run's evaluations; runs that have not finished or learned nothing stand back.

    Args:
        groups: Of any runs.
        rates: "best" or "all"; None: the best of sweeps, and all of others.

    Returns:
        The groups that are left, with their rates in their labels; and a sentence that says by
        what they were chosen, None if none was left out.
    """
    runs = [run for group in groups for run in group.runs]
    alike: dict[str, list[Group]] = defaultdict(list)
    for group in groups:
        alike[_key(group)].append(group)
    several = [same for same in alike.values() if len(same) > 1]
    wanted = rates == "best" or (rates is None and are_of_sweeps(runs))
    metric = _deciding(runs) if several and wanted else None
    if metric is None:
        return list(groups), None
    kept = [run for same in alike.values() for run in _best(same, metric).runs]
    tried = {run.path: len(same) > 1 for same in alike.values() for g in same for run in g.runs}
    left = [
        dataclasses.replace(group, label=_with_rate(group))
        if tried[group.runs[0].path] and group.runs[0].label is None
        else group
        for group in group_runs(kept)
    ]
    return left, (
        f"Each at the best rate of those tried, by {metric_label(metric).lower().split(' (')[0]} "
        f"(mean of the last fifth of evaluations)"
    )


def _with_rate(group: Group) -> str:
    rate = f"lr={in_short(group.client_rate)}"
    told_apart = group.label.endswith(")")  # by settings in brackets, which the rate joins
    return f"{group.label[:-1]}, {rate})" if told_apart else f"{group.label} ({rate})"


def _key(group: Group) -> str:
    rate = group.client_rate
    if not isinstance(rate, (int, float)) or group.runs[0].label is not None:
        return group.label
    return repr(sorted((n, repr(v)) for n, v in group.settings.items() if n != CLIENT_RATE))


def _best(groups: Sequence[Group], metric: str) -> Group:
    def rank(group: Group) -> tuple[bool, float]:
        found = [late_mean(run.metrics, metric) for run in group.runs]
        figure = float(np.mean([math.inf if one is None else one for one in found]))
        usable = math.isfinite(figure) and all(
            run.finished and not run.verdict.nothing_learned for run in group.runs
        )
        return not usable, -figure if higher_is_better(metric) else figure

    return min(groups, key=rank)


def _deciding(runs: Sequence[Run]) -> str | None:
    """What the sweep chose by, if all are of one that says so; else by what all recorded."""
    common = set.intersection(*(set(run.figures) for run in runs))
    return next((name for name in (deciding_metric(runs), *DECIDING) if name in common), None)
