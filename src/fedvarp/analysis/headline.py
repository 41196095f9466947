"""What a comparison comes to, in two or three sentences."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from fedvarp.analysis.comparison import BASELINE, Comparison, Row
from fedvarp.analysis.units import in_bytes, in_digits, in_percent

_CHANGES_CLIENTS: Final = "scaffold"  # it corrects every local gradient
_TOLD: Final = 0.05  # a share of bytes or rounds below which two groups are called the same


def headline(comparison: Comparison) -> str:
    """Says who got to the target first, by how much, at what cost, and who ends best.

    Args:
        comparison: Of at least one group.

    Returns:
        Sentences; empty where there is nothing to compare.
    """
    rows = _best_of_each(comparison.rows, _by_arrival)
    if len(rows) < 2:
        return ""
    at_the_end = _best_of_each(comparison.rows, _by_end)
    among = "" if len(at_the_end) == len(comparison.rows) else ", of the best of each algorithm,"
    end = _of_the_end(at_the_end, among)
    sentences = [_of_the_first(comparison, rows), end, _of_costs(rows, comparison.rows)]
    return " ".join(sentence for sentence in sentences if sentence)


def _best_of_each(rows: Sequence[Row], rank: Callable[[Row], tuple[float, float]]) -> list[Row]:
    """One row for each algorithm, however many rates were tried: that of the lowest rank."""
    best: dict[str, Row] = {}
    for row in rows:
        name = row.group.algorithm
        if name not in best or rank(row) < rank(best[name]):
            best[name] = row
    return list(best.values())


def _by_arrival(row: Row) -> tuple[float, float]:
    """Who gets to the target first, then who ends best."""
    rounds = row.smoothed.mean_rounds if row.smoothed is not None else None
    return math.inf if rounds is None else rounds, _end(row)


def _by_end(row: Row) -> tuple[float, float]:
    """Who ends best, then who got to the target first."""
    rounds, end = _by_arrival(row)
    return end, rounds


def _end(row: Row) -> float:
    """Lower is better: a loss, where there is no accuracy."""
    accuracy, loss = row.late_accuracy or row.final_accuracy, row.train_loss or row.test_loss
    end = -accuracy.mean if accuracy is not None else math.inf if loss is None else loss.mean
    return math.inf if math.isnan(end) else end  # it has diverged


def _of_the_first(comparison: Comparison, rows: Sequence[Row]) -> str:
    """Who stays at the target soonest, and the others after it."""
    there = sorted(_arrived(rows), key=lambda pair: pair[1])
    if not there:
        return ""
    first, rounds = there[0]
    together = [row for row, later in there if later == rounds]
    others = there[len(together) :]
    if len(together) > 1:
        *names, last = (row.group.label for row in together)
        who = f"{', '.join(names)} and {last}"
        line = f"{who} get to {comparison.target} together, in {rounds:.0f} rounds"
    else:
        line = f"{first.group.label} gets to {comparison.target} first, in {rounds:.0f} rounds"
    of_fedavg = any(row.group.algorithm == BASELINE for row in together)
    if (speed_up := first.smoothed_speed_up) is not None and not of_fedavg:
        more = "more than " if speed_up.is_lower_bound else ""
        line += f", {more}{speed_up.factor:.1f} times as soon as FedAvg"
    if others:
        after = ", ".join(f"{row.group.label} in {later:.0f}" for row, later in others)
        line += f"; then {after}"
    late = [row.group.label for row in rows if row not in [one for one, _ in there]]
    if late:
        line += f"; not in every seed: {', '.join(late)}"
    rule = f" (mean of {comparison.smooth} evaluations)" if comparison.smooth > 1 else ""
    return f"{line}{rule}."


def _arrived(rows: Sequence[Row]) -> list[tuple[Row, float]]:
    return [
        (row, row.smoothed.mean_rounds)
        for row in rows
        if row.smoothed is not None and row.smoothed.mean_rounds is not None
    ]


def _of_the_end(rows: Sequence[Row], among: str) -> str:
    """Who ends best and who worst; `among` says of whom, if others are left out."""
    if len({row.rounds for row in rows}) > 1:
        return ""  # curves of unequal lengths do not end at the same place
    for what, spreads, written in (
        ("accuracy", [row.late_accuracy for row in rows], _percent),
        ("accuracy in the last evaluation", [row.final_accuracy for row in rows], _percent),
        ("training loss", [row.train_loss for row in rows], _digits),
        ("test loss", [row.test_loss for row in rows], _digits),
    ):
        ends = [
            (spread.mean, row.group.label)
            for row, spread in zip(rows, spreads, strict=True)
            if spread is not None and math.isfinite(spread.mean)
        ]
        if len(ends) > 1:
            most, least = max(ends, key=lambda end: end[0]), min(ends, key=lambda end: end[0])
            best, worst = (least, most) if what.endswith("loss") else (most, least)
            words = ("least", "most") if what.endswith("loss") else ("most", "least")
            if written(best[0]) == written(worst[0]):
                return f"At the end{among} all have the same {what}, {written(best[0])}."
            return (
                f"At the end{among} {best[1]} has the {words[0]} {what}, {written(best[0])}, and "
                f"{worst[1]} the {words[1]}, {written(worst[0])}."
            )
    return ""


def _percent(mean: float) -> str:
    return in_percent(mean, None)


def _digits(mean: float) -> str:
    return in_digits(mean, None)


def _of_costs(rows: Sequence[Row], of_all: Sequence[Row]) -> str:
    """Who of the best sends more than the others, and what the servers of all hold."""
    if len({row.rounds for row in rows}) > 1:
        return ""
    least = min(row.sent for row in rows)
    costly = [row for row in rows if row.sent > (1 + _TOLD) * least > 0]
    told = [
        f"{row.group.label} sends {row.sent / least:.2g} times the bytes"
        + (" and changes what clients do" if row.group.algorithm == _CHANGES_CLIENTS else "")
        for row in costly
    ]
    held = [(row.server_bytes, row.group.label) for row in of_all if row.server_bytes is not None]
    if held and max(held)[0] > (1 + _TOLD) * min(held)[0]:
        few, many = (f"{in_bytes(size)} ({whose})" for size, whose in (min(held), max(held)))
        told.append(f"{'the' if told else 'The'} server holds from {few} to {many}")
    return f"{'; '.join(told)}." if told else ""
