"""A comparison on paper: as tables for people, and with every digit for programs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal

from fedvarp.analysis.comparison import Comparison, Row, Spread
from fedvarp.analysis.comparison_figures import comparison_as_csv, comparison_as_json
from fedvarp.analysis.headline import headline
from fedvarp.analysis.metric_names import is_of_clients, metric_label, scale_of
from fedvarp.analysis.paired import Difference
from fedvarp.analysis.tables import Table, markdown_text, paragraphs
from fedvarp.analysis.targets import Reached, SpeedUp
from fedvarp.analysis.templating import render
from fedvarp.analysis.units import in_bytes, in_digits, in_percent, in_seconds, in_short

Format = Literal["text", "markdown", "csv", "json", "html"]
Cell = Callable[[Row], str | None]  # what a column shows of a row; None: nothing is known


def tables(comparison: Comparison) -> list[Table]:
    """Lays the comparison out: the way to the target, the end, seed by seed, the cost."""
    made = [] if comparison.target is None else [_target_table(comparison)]
    made.append(_end_table(comparison))
    made += _other_tables(comparison)
    if any(len(row.group.runs) > 1 for row in comparison.rows):
        made.append(_seeds_table(comparison))
    if comparison.baseline is not None:
        made.append(_beside_table(comparison, comparison.baseline))
    return [*made, _cost_table(comparison)]


def _brief_tables(comparison: Comparison) -> list[Table]:
    first = _end_table if comparison.target is None else _target_table
    beside = comparison.baseline
    return [first(comparison), *([] if beside is None else [_beside_table(comparison, beside)])]


def explanations(comparison: Comparison) -> list[str]:
    """Says what the columns of the tables mean, in a paragraph each."""
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
    if comparison.baseline is not None:
        about.append(
            "Beside another: means over the seeds that both have, with 95 % intervals by Student's "
            "t over seeds; accuracies in points, up to the last round that both were evaluated at."
        )
    if any(map(is_of_clients, comparison.other_names)):
        about.append(
            "How clients fare: on their training data, each client by itself. The worst tenth is "
            "the mean over the tenth of clients that fare worst; the spread, the standard "
            "deviation over clients."
        )
    if any(row.unfinished for row in comparison.rows):
        about.append("* marks groups with an unfinished run.")
    return about


def formatted(comparison: Comparison, format: Format = "text", *, brief: bool = False) -> str:
    """Writes a comparison.

    Args:
        comparison: What to write.
        brief: Whether only the headline, the way to the target (or else the end) and the
            differences from another algorithm are written, with what is special about these runs.
        format: "text", "markdown" and "html" have the tables, what their columns mean, and what is
            special about these runs. "csv" has a line for each group, with unrounded means over
            seeds. "json" has everything, each seed's figures too.

    Returns:
        The text, which ends with the end of a line.
    """
    if format == "csv":
        return comparison_as_csv(comparison)
    if format == "json":
        return comparison_as_json(comparison)
    shown = _brief_tables(comparison) if brief else tables(comparison)
    below = [*([] if brief else explanations(comparison)), *comparison.notes]
    above = [sentences] if (sentences := headline(comparison)) else []
    if format == "text":
        first = paragraphs(above) + "\n" if above else ""
        return first + "".join(table.text() for table in shown) + paragraphs(below)
    if format == "markdown":
        return "\n".join(
            [
                *(f"{markdown_text(p)}\n" for p in above),
                *(t.markdown() for t in shown),
                *(f"{markdown_text(p)}\n" for p in below),
            ]
        )
    return render("comparison.html", tables=shown, paragraphs=[*above, *below]) + "\n"


def _target_table(comparison: Comparison) -> Table:
    return _table(
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


def _end_table(comparison: Comparison) -> Table:
    columns: dict[str, Cell] = {
        "final accuracy": lambda row: _percent(row.final_accuracy),
        f"accuracy, mean of last {comparison.smooth}": lambda row: _percent(row.late_accuracy),
        "best accuracy": lambda row: _percent(row.best_accuracy),
        "validation accuracy": lambda row: _percent(row.validation_accuracy),
        "training loss": lambda row: _digits(row.train_loss),
        "test loss": lambda row: _digits(row.test_loss),
        "validation loss": lambda row: _digits(row.validation_loss),
    }
    measured = {
        name: cell
        for name, cell in columns.items()
        if any(cell(row) is not None for row in comparison.rows)
    }
    return _table("At the end", comparison.rows, measured)


def _other_tables(comparison: Comparison) -> list[Table]:
    """Metrics of one's own, and how single clients fare; none for runs that recorded neither."""
    names = comparison.other_names
    of_clients = [name for name in names if is_of_clients(name)]
    whole = [name for name in names if name not in of_clients]
    titles = {"Own metrics at the end": whole, "How clients fare at the end": of_clients}
    return [
        _table(
            title,
            comparison.rows,
            {metric_label(name).removesuffix(" (%)"): partial(_other, name) for name in some},
        )
        for title, some in titles.items()
        if some
    ]


def _other(name: str, row: Row) -> str | None:
    in_unit = _percent if scale_of(name) == 100 else _digits
    return in_unit(row.others.get(name))


def _seeds_table(comparison: Comparison) -> Table:
    columns: dict[str, Cell] = {
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
    return _table("Seed by seed", comparison.rows, columns)


def _beside_table(comparison: Comparison, baseline: Row) -> Table:
    others = [
        (row, one)
        for row, one in zip(comparison.rows, comparison.differences, strict=True)
        if row is not baseline and one is not None
    ]
    lines = [
        (
            _name(row),
            ", ".join(map(str, one.seeds)),
            f"{one.rounds}",
            _difference(one.speed_up, "{:.2f}×"),
            _difference(one.late_accuracy, "{:+.1f}", 100),
            _difference(one.half_accuracy, "{:+.1f}", 100),
        )
        for row, one in others
    ]
    header = (
        "algorithm",
        "seeds",
        "up to round",
        f"speed-up, mean of {comparison.smooth}",
        f"accuracy, mean of last {comparison.smooth}",
        "accuracy, second half",
    )
    return Table(f"Beside {baseline.group.label}, seed by seed", header, lines)


def _difference(one: Difference | None, form: str, unit: float = 1) -> str | None:
    if one is None:
        return None
    mean = form.format(unit * one.mean)
    if one.interval is None:
        return mean
    low, high = (form.format(unit * end) for end in one.interval)
    return f"{mean} ({low} to {high})"


def _cost_table(comparison: Comparison) -> Table:
    return _table(
        "Runs and their cost",
        comparison.rows,
        {
            "client rate": lambda row: _rate(row.group.client_rate),
            "seeds": lambda row: str(len(row.group.runs)),
            "rounds": lambda row: str(row.rounds),
            "replies refused": _refused,
            "bytes": lambda row: _bytes(row.sent),
            "server memory": lambda row: _bytes(row.server_bytes),
            "wall time": lambda row: in_seconds(row.seconds.mean) if row.seconds else None,
        },
    )


def _table(title: str, rows: Sequence[Row], columns: Mapping[str, Cell]) -> Table:
    lines = [(_name(row), *(cell(row) for cell in columns.values())) for row in rows]
    return Table(title, ("algorithm", *columns), lines)


def _name(row: Row) -> str:
    return f"{row.group.label} *" if row.unfinished else row.group.label


def _refused(row: Row) -> str | None:
    if row.replies is None:
        return None
    return f"{row.refused:,} of {row.replies:,}" if row.refused else "0"


def _rate(rate: object) -> str | None:
    if rate is None:
        return None
    return in_short(rate) if isinstance(rate, (int, float)) else str(rate)


def _reached(reached: Reached | None) -> str | None:
    if reached is None:
        return None
    if reached.mean_rounds is not None:
        return f"{reached.mean_rounds:.1f}".removesuffix(".0")
    if reached.count == 0:
        return "not reached"
    return f"only {reached.count} of {len(reached.rounds)} seeds"


def _each_round(reached: Reached | None) -> str | None:
    return (
        None if reached is None else ", ".join("–" if t is None else str(t) for t in reached.rounds)
    )


def _each_percent(spread: Spread | None) -> str | None:
    return (
        None
        if spread is None
        else ", ".join(
            f"{100 * value:.1f}" if math.isfinite(value) else "not finite"
            for value in spread.per_seed
        )
    )


def _times(speed_up: SpeedUp | None) -> str | None:
    return (
        None
        if speed_up is None
        else f"{'> ' if speed_up.is_lower_bound else ''}{speed_up.factor:.2f}×"
    )


def _bytes(number: float | None) -> str | None:
    return None if number is None else in_bytes(number)


def _percent(spread: Spread | None) -> str | None:
    return None if spread is None else in_percent(spread.mean, spread.std)


def _digits(spread: Spread | None) -> str | None:
    return None if spread is None else in_digits(spread.mean, spread.std)
