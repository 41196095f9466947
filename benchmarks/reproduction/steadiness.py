"""How much a result depends on the rule by which it is counted.

Speed-ups at several targets; and how far curves swing, seed by seed beside FedAvg.

    python -m benchmarks.reproduction.steadiness RUNS --targets 0.45,0.5 --smooth 5
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fedvarp.analysis import Comparison, Run, compare
from fedvarp.analysis.comparison import BASELINE
from fedvarp.analysis.runs import Floats
from fedvarp.analysis.tables import Table
from fedvarp.analysis.targets import SpeedUp, Target


def text(arguments: Sequence[str]) -> str:
    """What the command prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", help="directories of runs, or that hold some")
    parser.add_argument("--targets", required=True, help="accuracies, with commas between them")
    parser.add_argument("--smooth", type=int, default=5, help="evaluations of a mean")
    parser.add_argument("--ignore", action="append", default=[], help="as `fedvarp compare`")
    told = parser.parse_args(arguments)
    targets = [float(one) for one in told.targets.split(",")]
    how: dict[str, Any] = {"smooth": told.smooth, "ignore": told.ignore}
    compared = {one: compare(told.runs, target=one, **how) for one in targets}
    return _by_target(compared).text() + _by_seed(compared[targets[-1]]).text()


def _by_target(compared: dict[float, Comparison]) -> Table:
    some = next(iter(compared.values()))
    shown = [row.group.label for row in some.rows if row.group.algorithm != BASELINE]
    header = ("algorithm", *(f"{100 * t:g} %, {rule}" for t in compared for rule in _rules(some)))
    lines = []
    for label in shown:
        row_at = [next(r for r in one.rows if r.group.label == label) for one in compared.values()]
        cells = [cell for r in row_at for cell in (r.first_speed_up, r.smoothed_speed_up)]
        lines.append((label, *map(_times, cells)))
    return Table("Speed-up over the quickest FedAvg, by target and rule", header, lines)


def _rules(comparison: Comparison) -> tuple[str, str]:
    return "first", f"mean of {comparison.smooth}"


def _times(one: SpeedUp | None) -> str:
    return "–" if one is None else f"{'> ' if one.is_lower_bound else ''}{one.factor:.2f}"


def _by_seed(comparison: Comparison) -> Table:
    """Each algorithm beside the FedAvg that ends best, over the seeds that it has too."""
    assert comparison.target is not None
    smooth, aim = comparison.smooth, 100 * comparison.target.value
    of_fedavg = [row for row in comparison.rows if row.group.algorithm == BASELINE]
    if not of_fedavg:
        raise SystemExit("There is no run of FedAvg to look at the others beside.")
    best = max(of_fedavg, key=lambda row: row.late_accuracy.mean if row.late_accuracy else 0.0)
    fedavg = {run.seed: run for run in best.group.runs}
    lines = []
    for row in comparison.rows:
        runs = [run for run in row.group.runs if run.seed in fedavg]
        curves = [_accuracy(run) for run in runs]
        pairs = [_at_common_rounds(run, fedavg[run.seed]) for run in runs]
        lines.append(
            (
                row.group.label,
                _listed("{}", [run.seed for run in runs]),
                _listed("{:.1f}", [np.abs(np.diff(curve)).mean() for curve in curves]),
                _listed("{:.0f}", [_share_above(run, comparison.target) for run in runs]),
                _listed("{:+.1f}", [(a - b)[-smooth:].mean() for a, b in pairs]),
                _listed("{:.0f}", [100 * (a > b)[1:].mean() for a, b in pairs]),
            )
        )
    header = (
        "algorithm",
        "seeds",
        "change from one evaluation, to the next (points)",
        f"evaluations at {aim:g} % or more, once reached (%)",
        f"last {smooth} evaluations, minus FedAvg's (points)",
        "evaluations, above FedAvg's (%)",
    )
    return Table(f"Seed by seed, beside {best.group.label}", header, lines)


def _accuracy(run: Run) -> Floats:
    return 100 * run.values("test_accuracy")


def _at_common_rounds(one: Run, other: Run) -> tuple[Floats, Floats]:
    mine, theirs = np.isin(one.rounds, other.rounds), np.isin(other.rounds, one.rounds)
    return _accuracy(one)[mine], _accuracy(other)[theirs]


def _share_above(run: Run, target: Target) -> float:
    """Of the evaluations from the first that reaches the target on; NaN where none does."""
    above = target.met(run.values(target.metric))
    return float(100 * above[above.argmax() :].mean()) if above.any() else float("nan")


def _listed(form: str, values: Iterable[Any]) -> str:
    return ", ".join("–" if value != value else form.format(value) for value in values)


if __name__ == "__main__":
    print(text(sys.argv[1:]), end="")
