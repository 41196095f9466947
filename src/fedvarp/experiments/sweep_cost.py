"""What a sweep will cost: its runs, and for each algorithm the estimate of one of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedvarp.analysis.units import in_bytes, in_seconds
from fedvarp.experiments.build import DataFolder, Experiment, build
from fedvarp.experiments.cost import Estimate, estimate
from fedvarp.experiments.settings import Settings
from fedvarp.experiments.sweep import Sweep
from fedvarp.experiments.sweep_grid import in_words
from fedvarp.runs.directory import RunDirectory


@dataclass(frozen=True)
class PlannedRun:
    """A run of a sweep that has not been made, or not to its end.

    Attributes:
        directory: Where it would be kept.
        settings: Of the run.
        rounds_done: How many are trained already.
        seconds: How long the rest takes.
        table_bytes: What its table takes once all clients have been seen.
    """

    directory: Path
    settings: Settings
    rounds_done: int
    seconds: float
    table_bytes: int


@dataclass(frozen=True)
class SweepEstimate:
    """Figures of a sweep that has not been made.

    Attributes:
        directory: Where it would be kept.
        runs: All of them.
        at_once: How many would train at a time.
        of_each: What a whole run of each algorithm costs, with each of the other settings.
    """

    directory: Path
    runs: Sequence[PlannedRun]
    at_once: int
    of_each: Mapping[str, Estimate]

    @property
    def seconds(self) -> float:
        """Of the whole sweep; its runs leave each other one core."""
        each = [run.seconds for run in self.runs]
        return max(sum(each) / self.at_once, max(each))

    @property
    def table_bytes(self) -> int:
        """The most that the tables of the runs under way take together."""
        return sum(sorted((run.table_bytes for run in self.runs), reverse=True)[: self.at_once])

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "sweep": str(self.directory),
            "seconds": self.seconds,
            "at_once": self.at_once,
            "table_bytes": self.table_bytes,
            "runs": [
                {
                    "run": run.directory.name,
                    "algorithm": run.settings.algorithm,
                    "client_lr": run.settings.local_sgd.lr,
                    "seed": run.settings.seed,
                    "rounds": run.settings.rounds,
                    "rounds_done": run.rounds_done,
                    "seconds": run.seconds,
                    "table_bytes": run.table_bytes,
                }
                for run in self.runs
            ],
            "of_each": {name: figures.as_json() for name, figures in self.of_each.items()},
        }

    def text(self) -> str:
        """For people."""
        width = max(len(run.directory.name) for run in self.runs)
        lines = [
            f"{run.directory.name:{width}}  {run.rounds_done:,} of {run.settings.rounds:,} rounds "
            f"done, {_rest(run)}"
            for run in self.runs
        ]
        where = "on disk" if self.runs[0].settings.table.where == "disk" else "in memory"
        return "\n".join(
            [
                *lines,
                f"Time      about {in_seconds(self.seconds)} for {len(self.runs)} runs, "
                f"{self.at_once} at once (this leaves out the server's own step and the disk)",
                f"Tables    up to {in_bytes(self.table_bytes)} {where} at a time",
                f"Out       {self.directory} (not written: this is a dry run)",
            ]
        )


def estimate_sweep(sweep: Sweep, jobs: int, data_dir: DataFolder = None) -> SweepEstimate:
    """Measures a step of one run of each algorithm, and counts the rest.

    Args:
        sweep: What would be run; its directories need not be there.
        jobs: Runs at once.
        data_dir: Where the data files are; None: in the folder of FEDVARP_DATA.

    Returns:
        The estimate.
    """
    built: dict[str, Experiment] = {}
    of_each: dict[str, Estimate] = {}
    runs = []
    for directory, settings in sweep.runs:
        others = in_words(sweep.others[directory])
        if others not in built:  # the rest of the grid leaves data and model as they are
            built[others] = build(settings, data_dir)
        kind = f"{settings.algorithm}, {others}" if others else settings.algorithm
        if kind not in of_each:
            of_each[kind] = estimate(dataclasses.replace(built[others], settings=settings))
        whole, done = of_each[kind], RunDirectory(directory).rounds_done
        runs.append(
            PlannedRun(
                directory,
                settings,
                done,
                whole.total_seconds * (settings.rounds - done) / settings.rounds,
                whole.table_bytes.get(settings.table.codec, 0),
            )
        )
    return SweepEstimate(sweep.out, runs, min(jobs, len(runs)), of_each)


def _rest(run: PlannedRun) -> str:
    if run.rounds_done >= run.settings.rounds:
        return "nothing left"
    table = f"table of {in_bytes(run.table_bytes)}" if run.table_bytes else "no table"
    return f"about {in_seconds(run.seconds)} left, {table}"
