"""Metrics of several clients made one: means weighted by examples, as Flower's users expect."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

from flwr.app import MetricRecord, RecordDict
from flwr.app.typing import MetricRecordValues

from fedvarp.flower.replies import NUM_EXAMPLES, examples_in

MetricsAggregator = Callable[[list[RecordDict], str], MetricRecord]
"""Flower's own signature: (contents of the replies, key of the weight) → metrics."""


def weighted_means(contents: Sequence[RecordDict], leave_out: Collection[str]) -> MetricRecord:
    """Each metric averaged over the replies that report it, weighted by their examples.

    A value that is not finite, or a list of another length, is left out; so are the number of
    examples and what says who a client is.

    Args:
        contents: Of replies that have been checked.
        leave_out: Keys that are no metrics.
    """
    reports: dict[str, list[tuple[int, list[float], bool]]] = {}
    for content in contents:
        weight = examples_in(content)
        for record in content.metric_records.values():
            for key, value in record.items():
                if key != NUM_EXAMPLES and key not in leave_out:
                    is_list = isinstance(value, list)
                    listed = value if isinstance(value, list) else [value]
                    numbers = [_as_float(v) for v in listed]
                    if all(map(math.isfinite, numbers)):
                        reports.setdefault(key, []).append((weight, numbers, is_list))
    return MetricRecord({key: _mean(values) for key, values in reports.items()})


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer beyond all floats
        return math.inf


def _mean(reports: list[tuple[int, list[float], bool]]) -> MetricRecordValues:
    _, first, is_list = reports[0]
    alike = [r for r in reports if len(r[1]) == len(first) and r[2] == is_list]
    total = sum(weight for weight, _, _ in alike)
    means = [sum(w * numbers[i] for w, numbers, _ in alike) / total for i in range(len(first))]
    return means if is_list else means[0]
