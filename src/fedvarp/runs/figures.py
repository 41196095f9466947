"""The figures of an evaluation, by the names under which a round records them."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

FIGURES: Final = (
    "test_accuracy",
    "test_loss",
    "validation_accuracy",
    "validation_loss",
    "train_loss",
    "train_loss_over_examples",
    "train_loss_over_clients",
)
"""What an evaluation may find, besides metrics of one's own and how unequally clients fare.

Validation examples are those of the test set that were set aside to choose settings by. The
training loss is that of the objective, Σ p_i f_i; where clients hold unequally many examples it is
given over examples too, and where the p_i are unequal, as the plain mean over clients.
"""

DECIDING: Final = (
    "validation_accuracy",
    "test_accuracy",
    "validation_loss",
    "train_loss",
    "test_loss",
)
"""What runs are chosen by unless it is said: the first of these that they recorded."""

MEASURED_ON: Final = ("test_", "validation_", "train_")
"""What the name of a figure begins with, that of a metric of one's own too."""

_LAST: Final = 5  # the last fifth of a run's evaluations


def recorded_figures(records: Iterable[Mapping[str, Any]]) -> list[str]:
    """The names of all figures that evaluations have recorded, those of FIGURES first.

    >>> recorded_figures([{"round": 0, "test_auc": 0.5, "test_loss": 2.3, "bytes_up": 0}])
    ['test_loss', 'test_auc']
    """
    found = {
        name: None
        for record in records
        for name, value in record.items()
        if name.startswith(MEASURED_ON) and is_figure(value)
    }
    return [*(name for name in FIGURES if name in found), *(n for n in found if n not in FIGURES)]


def is_figure(value: object) -> bool:
    """Whether a record's value is a number, or None in place of one that is not finite."""
    return value is None or isinstance(value, int | float)


def higher_is_better(figure: str) -> bool:
    """Whether more of a figure is better: of all but losses, errors and spreads.

    >>> higher_is_better("test_accuracy"), higher_is_better("train_loss_worst_decile")
    (True, False)
    """
    return not re.search(r"(loss|error|spread)(_|$)", figure)


def late_mean(records: Sequence[Mapping[str, Any]], figure: str) -> float | None:
    """What a run is judged by: the mean of a figure over the last fifth of its evaluations.

    Args:
        records: Of the run.
        figure: Such as "test_accuracy".

    Returns:
        The mean; infinite if one of them, or their sum, is not finite; None if none recorded the
        figure.
    """
    values = [record[figure] for record in records if figure in record]
    last = values[-math.ceil(len(values) / _LAST) :]
    if not last:
        return None
    if None in last:  # metrics.jsonl has null for what is not finite
        return math.inf
    try:
        return statistics.fmean(last)
    except OverflowError:
        return math.inf
