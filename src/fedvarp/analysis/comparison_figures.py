"""A comparison for programs, with every digit: as CSV and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from fedvarp.analysis.comparison import Comparison, Row, Spread
from fedvarp.analysis.paired import Beside
from fedvarp.analysis.tables import Table
from fedvarp.analysis.targets import Reached, SpeedUp

_SPREADS: Final = (
    "final_accuracy", "late_accuracy", "best_accuracy", "validation_accuracy",
    "train_loss", "test_loss", "validation_loss", "seconds",
)  # fmt: skip
_COSTS: Final = {
    "bytes": "sent", "server_bytes": "server_bytes", "replies": "replies", "refused": "refused",
}  # fmt: skip


def comparison_as_csv(comparison: Comparison) -> str:
    """Writes a line for each group, with unrounded means over seeds."""
    return _table_of(_flat_figures(row, comparison) for row in comparison.rows).csv()


def comparison_as_json(comparison: Comparison) -> str:
    """Writes everything, each seed's figures too."""
    target, smooth, baseline = comparison.target, comparison.smooth, comparison.baseline
    groups = [_figures(row, comparison.other_names) for row in comparison.rows]
    for figures, one in zip(groups, comparison.differences, strict=False):
        figures["beside"] = None if one is None else _beside_figures(one)
    return _table_of(groups, comparison.notes).json(
        rows="groups",
        beside=None if baseline is None else baseline.group.label,
        target=None if target is None else {"metric": target.metric, "value": target.value},
        rules={
            "first": "the first evaluation that meets the target",
            "smoothed": f"the first evaluation at which the mean of the last {smooth} evaluations "
            f"meets the target",
        },
    )


def _table_of(objects: Iterable[Mapping[str, Any]], notes: Sequence[str] = ()) -> Table:
    """A table for programs, of objects that have the same names."""
    rows = list(objects)
    return Table("Groups", tuple(rows[0]), [tuple(row.values()) for row in rows], notes)


def _flat_figures(row: Row, comparison: Comparison) -> dict[str, Any]:
    """A row in single numbers."""
    figures: dict[str, Any] = {
        "algorithm": row.group.algorithm,
        "group": row.group.label,
        "client_rate": row.group.client_rate,
        "seeds": len(row.group.runs),
        "unfinished": len(row.unfinished),
        "learned_nothing": len(row.learned_nothing),
        "rounds": row.rounds,
        "target_metric": comparison.target.metric if comparison.target else None,
        "target": comparison.target.value if comparison.target else None,
    }
    for rule, reached, speed_up in (
        ("first", row.first, row.first_speed_up),
        ("smoothed", row.smoothed, row.smoothed_speed_up),
    ):
        figures[f"reached_{rule}"] = reached.count if reached else None
        figures[f"rounds_{rule}"] = reached.mean_rounds if reached else None
        figures[f"bytes_{rule}"] = reached.mean_sent if reached else None
        figures[f"speed_up_{rule}"] = speed_up.factor if speed_up else None
        figures[f"speed_up_{rule}_is_lower_bound"] = speed_up.is_lower_bound if speed_up else None
    for name, spread in _spreads(row, comparison.other_names).items():
        figures[f"{name}_mean"] = spread.mean if spread else None
        figures[f"{name}_std"] = spread.std if spread else None
    return figures | {name: getattr(row, of) for name, of in _COSTS.items()}


def _spreads(row: Row, others: Sequence[str]) -> dict[str, Spread | None]:
    every: dict[str, Spread | None] = {name: getattr(row, name) for name in _SPREADS}
    return every | {name: row.others.get(name) for name in others}


def _figures(row: Row, others: Sequence[str]) -> dict[str, Any]:
    """A row with the figures of each seed."""
    figures: dict[str, Any] = {
        "algorithm": row.group.algorithm,
        "group": row.group.label,
        "client_rate": row.group.client_rate,
        "seeds": [run.seed for run in row.group.runs],
        "runs": [str(run.path) for run in row.group.runs],
        "unfinished": [str(run.path) for run in row.unfinished],
        "learned_nothing": [str(run.path) for run in row.learned_nothing],
        "rounds": row.rounds,
        "first": _reached_figures(row.first, row.first_speed_up),
        "smoothed": _reached_figures(row.smoothed, row.smoothed_speed_up),
    }
    for name, spread in _spreads(row, others).items():
        figures[name] = _each(spread, "mean", "std", "per_seed")
    return figures | {name: getattr(row, of) for name, of in _COSTS.items()}


def _each(of: object | None, *names: str) -> dict[str, Any] | None:
    return None if of is None else {name: getattr(of, name) for name in names}


def _beside_figures(one: Beside) -> dict[str, Any]:
    return {"seeds": one.seeds, "rounds": one.rounds} | {
        name: _each(getattr(one, name), "mean", "interval", "per_seed")
        for name in ("speed_up", "late_accuracy", "half_accuracy")
    }


def _reached_figures(reached: Reached | None, speed_up: SpeedUp | None) -> dict[str, Any] | None:
    if reached is None:
        return None
    return {
        "rounds": reached.mean_rounds,
        "rounds_per_seed": reached.rounds,
        "bytes": reached.mean_sent,
        "bytes_per_seed": reached.sent,
        "speed_up": None if speed_up is None else speed_up.factor,
        "speed_up_is_lower_bound": None if speed_up is None else speed_up.is_lower_bound,
    }
