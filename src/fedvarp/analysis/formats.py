"""A comparison as text for people, CSV for spreadsheets and JSON for programs."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedvarp.analysis.comparison import Comparison, Row, Spread
from fedvarp.analysis.targets import Reached, SpeedUp
from fedvarp.analysis.units import in_bytes, in_digits, in_percent, in_seconds, in_short

_NOTHING: Final = "–"
_SPREADS: Final = (
    "final_accuracy", "late_accuracy", "best_accuracy", "train_loss", "test_loss", "seconds",
)  # fmt: skip


@dataclass(frozen=True)
class Grid:
    """A table in words, ready to be printed anywhere.

    Attributes:
        title: What it shows.
        header: Of each column; the first column names the group.
        lines: One for each group.
    """

    title: str
    header: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]


def grids(comparison: Comparison) -> list[Grid]:
    """The comparison as tables: the way to the target, the end, each seed, the cost."""
    tables = [] if comparison.target is None else [_target_grid(comparison)]
    tables.append(_end_grid(comparison))
    if any(len(row.group.runs) > 1 for row in comparison.rows):
        tables.append(_seeds_grid(comparison))
    return [*tables, _cost_grid(comparison)]


def explanations(comparison: Comparison) -> list[str]:
    """What the columns mean, then what is special about these runs."""
    about = []
    if comparison.target is not None:
        about.append(
            "Rounds to the target: “first” counts to the first evaluation that meets it, “mean of "
            f"{comparison.smooth}” to the first at which the mean of the last {comparison.smooth} "
            "evaluations does; means over seeds. Bytes: up and down, all clients together, by the "
            "first rule. Speed-up: rounds of the quickest FedAvg on the same task over rounds, in "
            "the seeds that both have; > where FedAvg never got there in some seed."
        )
    if any(len(row.group.runs) > 1 for row in comparison.rows):
        about.append("± is the sample standard deviation over seeds.")
    if any(row.unfinished for row in comparison.rows):
        about.append("* marks groups with an unfinished run.")
    return about + list(comparison.notes)


def as_text(comparison: Comparison) -> str:
    """The tables, and the explanations below them."""
    return text_of(grids(comparison), explanations(comparison))


def text_of(tables: Iterable[Grid], below: Iterable[str] = ()) -> str:
    """Tables as text, and paragraphs below them."""
    written = io.StringIO()
    # As wide as the tables need: cut or folded figures are worse than a line that is too long.
    console = Console(file=written, width=1000, color_system=None, highlight=False)
    for grid in tables:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        for i, name in enumerate(grid.header):
            # Text, not str: a name in square brackets is no markup.
            table.add_column(Text(name.replace(", ", ",\n")), justify="right" if i else "left")
        for line in grid.lines:
            table.add_row(*map(Text, line))
        console.print(Text(grid.title), table)
    for paragraph in below:
        console.print(Text(paragraph), width=88)
    return "\n".join(line.rstrip() for line in written.getvalue().splitlines()) + "\n"


def as_json(comparison: Comparison) -> str:
    """Everything, per seed as well; what is not finite or not known is null."""
    target = comparison.target
    content = {
        "target": None if target is None else {"metric": target.metric, "value": target.value},
        "rules": {
            "first": "the first evaluation that meets the target",
            "smoothed": f"the first evaluation at which the mean of the last {comparison.smooth} "
            f"evaluations meets the target",
        },
        "groups": [_as_object(row) for row in comparison.rows],
        "notes": list(comparison.notes),
    }
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False, default=str) + "\n"


def as_csv(comparison: Comparison) -> str:
    """One line for each group, numbers unrounded, empty where there is none."""
    lines = []
    for row in comparison.rows:
        line: dict[str, Any] = {
            "algorithm": row.group.algorithm,
            "group": row.group.label,
            "client_rate": row.group.client_rate,
            "seeds": len(row.group.runs),
            "unfinished": len(row.unfinished),
            "rounds": row.rounds,
            "target_metric": comparison.target.metric if comparison.target else None,
            "target": comparison.target.value if comparison.target else None,
        }
        for rule, reached, speed_up in (
            ("first", row.first, row.first_speed_up),
            ("smoothed", row.smoothed, row.smoothed_speed_up),
        ):
            line[f"reached_{rule}"] = reached.count if reached else None
            line[f"rounds_{rule}"] = reached.mean_rounds if reached else None
            line[f"bytes_{rule}"] = reached.mean_sent if reached else None
            line[f"speed_up_{rule}"] = speed_up.factor if speed_up else None
            line[f"speed_up_{rule}_is_lower_bound"] = speed_up.is_lower_bound if speed_up else None
        for name in _SPREADS:
            spread: Spread | None = getattr(row, name)
            line[f"{name}_mean"] = _finite(spread.mean) if spread else None
            line[f"{name}_std"] = _finite(spread.std) if spread else None
        line |= {"bytes": row.sent, "server_bytes": row.server_bytes}
        lines.append(line)
    file = io.StringIO()
    writer = csv.DictWriter(file, fieldnames=list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return file.getvalue()


def _target_grid(comparison: Comparison) -> Grid:
    return _grid(
        f"To {comparison.target}",
        comparison.rows,
        {
            "rounds, first": lambda row: _reached(row.first),
            "speed-up, first": lambda row: _times(row.first_speed_up),
            f"rounds, mean of {comparison.smooth}": lambda row: _reached(row.smoothed),
            f"speed-up, mean of {comparison.smooth}": lambda row: _times(row.smoothed_speed_up),
            "bytes, first": lambda row: _bytes(row.first.mean_sent if row.first else None),
        },
    )


def _end_grid(comparison: Comparison) -> Grid:
    columns: dict[str, Callable[[Row], str]] = {
        "final accuracy": lambda row: _percent(row.final_accuracy),
        f"accuracy, mean of last {comparison.smooth}": lambda row: _percent(row.late_accuracy),
        "best accuracy": lambda row: _percent(row.best_accuracy),
        "training loss": lambda row: _digits(row.train_loss),
        "test loss": lambda row: _digits(row.test_loss),
    }
    measured = {
        name: cell
        for name, cell in columns.items()
        if any(cell(row) != _NOTHING for row in comparison.rows)
    }
    return _grid("At the end", comparison.rows, measured)


def _seeds_grid(comparison: Comparison) -> Grid:
    columns: dict[str, Callable[[Row], str]] = {
        "seeds": lambda row: ", ".join(str(run.seed) for run in row.group.runs),
    }
    if comparison.target is not None:
        columns |= {
            "rounds, first": lambda row: _each_round(row.first),
            f"rounds, mean of {comparison.smooth}": lambda row: _each_round(row.smoothed),
        }
    if any(row.final_accuracy is not None for row in comparison.rows):
        late = f"accuracy (%), mean of last {comparison.smooth}"
        columns |= {
            "final accuracy (%)": lambda row: _each_percent(row.final_accuracy),
            late: lambda row: _each_percent(row.late_accuracy),
        }
    return _grid("Seed by seed", comparison.rows, columns)


def _cost_grid(comparison: Comparison) -> Grid:
    return _grid(
        "Runs and their cost",
        comparison.rows,
        {
            "client rate": lambda row: _rate(row.group.client_rate),
            "seeds": lambda row: str(len(row.group.runs)),
            "rounds": lambda row: str(row.rounds),
            "bytes": lambda row: _bytes(row.sent),
            "server memory": lambda row: _bytes(row.server_bytes),
            "wall time": lambda row: in_seconds(row.seconds.mean) if row.seconds else _NOTHING,
        },
    )


def _grid(title: str, rows: Sequence[Row], columns: Mapping[str, Callable[[Row], str]]) -> Grid:
    lines = [(_name(row), *(cell(row) for cell in columns.values())) for row in rows]
    return Grid(title, ("algorithm", *columns), tuple(lines))


def _name(row: Row) -> str:
    return f"{row.group.label} *" if row.unfinished else row.group.label


def _rate(rate: object) -> str:
    if rate is None:
        return _NOTHING
    return in_short(rate) if isinstance(rate, (int, float)) else str(rate)


def _reached(reached: Reached | None) -> str:
    if reached is None:
        return _NOTHING
    if reached.mean_rounds is not None:
        return f"{reached.mean_rounds:.1f}".removesuffix(".0")
    if reached.count == 0:
        return "not reached"
    return f"only {reached.count} of {len(reached.rounds)} seeds"


def _each_round(reached: Reached | None) -> str:
    if reached is None:
        return _NOTHING
    return ", ".join(_NOTHING if round is None else str(round) for round in reached.rounds)


def _each_percent(spread: Spread | None) -> str:
    if spread is None:
        return _NOTHING
    return ", ".join(
        f"{100 * value:.1f}" if math.isfinite(value) else "not finite" for value in spread.per_seed
    )


def _times(speed_up: SpeedUp | None) -> str:
    if speed_up is None:
        return _NOTHING
    return f"{'> ' if speed_up.is_lower_bound else ''}{speed_up.factor:.2f}×"


def _bytes(number: float | None) -> str:
    return _NOTHING if number is None else in_bytes(number)


def _percent(spread: Spread | None) -> str:
    return _NOTHING if spread is None else in_percent(spread.mean, spread.std)


def _digits(spread: Spread | None) -> str:
    return _NOTHING if spread is None else in_digits(spread.mean, spread.std)


def _as_object(row: Row) -> dict[str, Any]:
    described: dict[str, Any] = {
        "algorithm": row.group.algorithm,
        "group": row.group.label,
        "client_rate": row.group.client_rate,
        "seeds": [run.seed for run in row.group.runs],
        "runs": [str(run.path) for run in row.group.runs],
        "unfinished": [str(run.path) for run in row.unfinished],
        "rounds": row.rounds,
        "first": _reached_object(row.first, row.first_speed_up),
        "smoothed": _reached_object(row.smoothed, row.smoothed_speed_up),
    }
    for name in _SPREADS:
        spread: Spread | None = getattr(row, name)
        described[name] = None if spread is None else _spread_object(spread)
    return described | {"bytes": row.sent, "server_bytes": row.server_bytes}


def _reached_object(reached: Reached | None, speed_up: SpeedUp | None) -> dict[str, Any] | None:
    if reached is None:
        return None
    return {
        "rounds": reached.mean_rounds,
        "rounds_per_seed": list(reached.rounds),
        "bytes": reached.mean_sent,
        "bytes_per_seed": list(reached.sent),
        "speed_up": None if speed_up is None else speed_up.factor,
        "speed_up_is_lower_bound": None if speed_up is None else speed_up.is_lower_bound,
    }


def _spread_object(spread: Spread) -> dict[str, Any]:
    per_seed: Sequence[float | None] = [_finite(value) for value in spread.per_seed]
    return {"mean": _finite(spread.mean), "std": _finite(spread.std), "per_seed": per_seed}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
