"""The client rate that the sweep's rule gives each algorithm, from runs however they were made.

python -m benchmarks.reproduction.rates RUNS --select-on validation
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from fedvarp.analysis import Run
from fedvarp.analysis.runs import read_runs
from fedvarp.experiments.sweep_result import SweepResult, SweptRun


def text(arguments: Sequence[str]) -> str:
    """What the command prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", help="directories of runs, or files of compact ones")
    kinds = ["validation", "test", "train"]
    parser.add_argument("--select-on", default=kinds[0], choices=kinds, help="as `fedvarp sweep`")
    parser.add_argument("--seeds", help="of the runs to choose by, with commas; all if left out")
    told = parser.parse_args(arguments)
    found, _ = read_runs(told.runs)
    seeds = None if told.seeds is None else {int(seed) for seed in told.seeds.split(",")}
    runs = [_swept(run) for run in found if seeds is None or run.seed in seeds]
    tried = defaultdict[str, set[float]](set)
    for run in runs:
        tried[run.algorithm].add(run.client_lr)
    runs = [run for run in runs if len(tried[run.algorithm]) > 1]
    if not runs:
        parser.error("no algorithm has runs of these seeds with more than one rate")
    _refuse_repeated(runs, parser)
    rates = sorted({run.client_lr for run in runs})
    result = SweepResult(Path(told.runs[0]), runs, rates, False, told.select_on)
    return f"{result.text()}\n"


def _refuse_repeated(runs: Sequence[SweptRun], parser: argparse.ArgumentParser) -> None:
    """Two runs with one rate and seed differ in something else, which must not be averaged over."""
    counts = Counter((run.algorithm, run.client_lr, run.seed) for run in runs)
    (algorithm, rate, seed), count = counts.most_common(1)[0]
    if count > 1:
        parser.error(
            f"{count} runs of {algorithm} have the rate {rate:g} and seed {seed}; name the "
            f"directories or files of those to choose by"
        )


def _swept(run: Run) -> SweptRun:
    return SweptRun(
        directory=run.path,
        algorithm=run.algorithm,
        client_lr=float(run.settings["local_sgd.lr"]),
        seed=run.seed or 0,
        rounds=run.last_round,
        finished=run.finished,
        error=None,
        metrics=run.metrics,
    )


if __name__ == "__main__":
    print(text(sys.argv[1:]), end="")
