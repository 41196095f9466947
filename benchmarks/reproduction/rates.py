"""The client rate that the sweep's rule gives each algorithm, from runs however they were made.

python -m benchmarks.reproduction.rates RUNS --select-on validation
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fedvarp.analysis import Run
from fedvarp.analysis.runs import read_runs
from fedvarp.experiments.sweep_result import SweepResult, SweptRun


def text(arguments: Sequence[str]) -> str:
    """What the command prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", help="directories of runs, or files of compact ones")
    parser.add_argument("--select-on", default="validation", help="as `fedvarp sweep`")
    told = parser.parse_args(arguments)
    runs, _ = read_runs(told.runs)
    rates = sorted({_rate(run) for run in runs})
    swept = [_swept(run) for run in runs]
    result = SweepResult(Path(told.runs[0]), swept, rates, False, told.select_on)
    return f"{result.text()}\n"


def _rate(run: Run) -> float:
    return float(run.settings["local_sgd.lr"])


def _swept(run: Run) -> SweptRun:
    return SweptRun(
        directory=run.path,
        algorithm=run.algorithm,
        client_lr=_rate(run),
        seed=run.seed or 0,
        rounds=run.last_round,
        finished=run.finished,
        error=None,
        metrics=run.metrics,
    )


if __name__ == "__main__":
    print(text(sys.argv[1:]), end="")
