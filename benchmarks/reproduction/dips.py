"""Whether accuracy falls in rounds whose clients take many local steps.

    python -m benchmarks.reproduction.dips RUN ... --from-round 100 --many 40

Reads whole runs: the compact copies keep sums over several rounds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import numpy as np

from fedvarp.analysis.runs import Floats, Run
from fedvarp.analysis.tables import Table


def text(arguments: Sequence[str]) -> str:
    """What the command prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", help="directories of runs")
    parser.add_argument("--from-round", type=int, default=100, help="the first to look at")
    parser.add_argument("--many", type=float, default=40.0, help="steps of a client, on average")
    told = parser.parse_args(arguments)
    header = (
        "run",
        "mean steps of a round, lowest to highest",
        "correlation of steps, and accuracy",
        f"accuracy (points), above {told.many:g} steps",
        "accuracy (points), else",
    )
    lines = [_line(Run.read(path), told.from_round, told.many) for path in told.runs]
    below = "Accuracy: of an evaluated round, less the mean of the evaluations before and after it."
    return Table("Local steps and dips", header, lines, [below]).text()


def _line(run: Run, first: int, many: float) -> tuple[str, ...]:
    trained = [r for r in run.metrics if r.get("clients")]
    if not trained:
        raise SystemExit(f"{run.path} does not say who took part in each round: it is a copy.")
    steps_of = {r["round"]: r["num_steps"] / len(r["clients"]) for r in trained}
    late = run.rounds >= first
    dips = _beside_neighbours(100 * run.values("test_accuracy")[late])
    steps = np.array([steps_of[round] for round in run.rounds[late][1:-1].tolist()])
    return (
        run.path.name,
        f"{min(steps_of.values()):.0f} to {max(steps_of.values()):.0f}",
        f"{np.corrcoef(steps, dips)[0, 1]:+.2f}",
        f"{dips[steps > many].mean():+.1f}",
        f"{dips[steps <= many].mean():+.1f}",
    )


def _beside_neighbours(curve: Floats) -> Floats:
    """Each value but the first and the last, less the mean of those beside it."""
    difference: Floats = curve[1:-1] - (curve[:-2] + curve[2:]) / 2
    return difference


if __name__ == "__main__":
    print(text(sys.argv[1:]), end="")
