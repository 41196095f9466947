"""Which client learning rate is best for each algorithm, by one stated rule."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from fedvarp.analysis.units import in_short, in_short_apart
from fedvarp.experiments.sweep_grid import in_words
from fedvarp.runs.divergence import Verdict, judged
from fedvarp.runs.figures import DECIDING, higher_is_better, late_mean
from fedvarp.settings.problems import SettingsError
from fedvarp.simulation.settings import Evaluation
from fedvarp.system.whole_files import write_whole

_KINDS: Final = ("validation", "test", "train")


def refuse_unmeasured(select_on: str, evaluation: Evaluation) -> None:
    """Refuses to choose by what no evaluation records.

    Args:
        select_on: "validation", "test", "train", or the name of a figure.
        evaluation: How the runs are judged.

    Raises:
        SettingsError: There is no such figure, or no validation examples; says what there is.
    """
    kind, _, what = select_on.partition("_")
    if kind == "validation" and evaluation.validation_share is None:
        raise SettingsError(
            f"--select-on {select_on}: no examples are set aside. Add --set "
            f"evaluation.validation_share=0.2, or give --select-on validation, which does."
        )
    own = list(evaluation.metrics or {})
    known = {"", "loss", "accuracy", *own}
    if kind not in _KINDS or (what not in known and not (kind == "train" and what)):
        named = "".join(f", test_{name}" for name in own)
        raise SettingsError(
            f"--select-on {select_on}: runs are chosen by validation, test, train, or a figure "
            f"that they record, such as test_loss{named}."
        )


@dataclass(frozen=True)
class SweptRun:
    """One run of a sweep and what became of it.

    Attributes:
        directory: Where it is kept.
        algorithm: Its name.
        client_lr: η_c.
        seed: Of its draws.
        rounds: How many are trained.
        finished: Whether none is left to train.
        error: Why it failed, in a sentence; None if it did not.
        metrics: Its records.
        others: What it has of the sweep's other settings, by their names.
    """

    directory: Path
    algorithm: str
    client_lr: float
    seed: int
    rounds: int
    finished: bool
    error: str | None
    metrics: Sequence[Mapping[str, Any]]
    others: Mapping[str, str] = field(default_factory=dict)

    @property
    def variant(self) -> str:
        """The algorithm, and what the sweep tries of other settings: each has a best rate."""
        return f"{self.algorithm}, {in_words(self.others)}" if self.others else self.algorithm

    def figure(self, metric: str) -> float | None:
        """What the run is judged by: the mean of a metric over the last fifth of its evaluations.

        Args:
            metric: Such as "test_accuracy".

        Returns:
            The mean; infinite if an evaluation was not finite; None if none recorded the metric.
        """
        return late_mean(self.metrics, metric)

    @cached_property
    def verdict(self) -> Verdict:
        """How many of its replies were refused, and whether it learned anything."""
        return judged(self.metrics)

    @property
    def status(self) -> str:
        """What became of it: "finished", "failed" or "unfinished"."""
        if self.finished:
            return "finished"
        return "failed" if self.error is not None else "unfinished"


@dataclass(frozen=True)
class Best:
    """The best rate of an algorithm.

    Attributes:
        client_lr: η_c.
        mean: The mean over seeds of what its runs are judged by.
        std: Their standard deviation; None for a single seed.
        try_next: A rate one step further out, if the best lies at the edge of the grid.
    """

    client_lr: float
    mean: float
    std: float | None
    try_next: float | None


@dataclass(frozen=True)
class SweepResult:
    """All runs of a sweep, and the best rates.

    Attributes:
        directory: Of the sweep.
        runs: What became of each.
        client_lrs: The rates that were tried.
        interrupted: Whether Ctrl-C ended the sweep.
        select_on: What decides: "validation", "test", "train" or a figure; None: see `metric`.
    """

    directory: Path
    runs: Sequence[SweptRun]
    client_lrs: Sequence[float]
    interrupted: bool
    select_on: str | None = None

    @cached_property
    def metric(self) -> str:
        """The figure that decides: accuracy where it was recorded, else a loss."""
        recorded = {name for run in self.runs for record in run.metrics for name in record}
        asked = self.select_on
        if asked is not None and asked not in _KINDS:
            return asked
        order = [name for name in DECIDING if asked is None or name.startswith(asked)]
        unknown = "test_accuracy" if asked is None else order[0]
        return next((name for name in order if name in recorded), unknown)

    @property
    def rule(self) -> str:
        """How the best rate is found, in a sentence."""
        extreme = "highest" if higher_is_better(self.metric) else "lowest"
        return (
            f"best rate: the {extreme} mean over seeds of {self.metric}, averaged over the last "
            f"fifth of a run's evaluations; only rates whose runs have all finished and learned"
        )

    @property
    def failures(self) -> list[str]:
        """One sentence for each run that failed."""
        return [f"{run.directory} failed: {run.error}" for run in self.runs if run.error]

    def figures(self, algorithm: str, client_lr: float) -> list[float] | None:
        """What the runs of one algorithm and rate are judged by.

        Args:
            algorithm: Its name, as in `algorithms`.
            client_lr: A rate of the grid.

        Returns:
            One number for each seed; None unless there are some, and all have finished.
        """
        mine = [r for r in self.runs if (r.variant, r.client_lr) == (algorithm, client_lr)]
        found = [run.figure(self.metric) for run in mine if run.finished]
        complete = [figure for figure in found if figure is not None]
        return complete if complete and len(complete) == len(mine) else None

    @property
    def learned_nothing(self) -> list[SweptRun]:
        """The finished runs in which nothing was learned."""
        return [run for run in self.runs if run.finished and run.verdict.nothing_learned]

    def _learned(self, algorithm: str, client_lr: float) -> bool:
        return not any(
            (run.variant, run.client_lr) == (algorithm, client_lr) for run in self.learned_nothing
        )

    @cached_property
    def best(self) -> dict[str, Best]:
        """The best rate of each algorithm that has one whose runs have all finished and learned."""
        best: dict[str, Best] = {}
        for algorithm in self.algorithms:
            ranked = {
                lr: statistics.fmean(figures)
                for lr in self.client_lrs
                if (figures := self.figures(algorithm, lr)) is not None
                and self._learned(algorithm, lr)
            }
            usable = {lr: mean for lr, mean in ranked.items() if math.isfinite(mean)}
            if usable:
                pick = max if higher_is_better(self.metric) else min
                lr = pick(usable, key=usable.__getitem__)
                seeds = self.figures(algorithm, lr) or []
                std = statistics.stdev(seeds) if len(seeds) > 1 else None
                best[algorithm] = Best(lr, usable[lr], std, self._beyond(algorithm, lr))
        return best

    @property
    def algorithms(self) -> list[str]:
        """Their names, in the order they were asked for; each with what else was tried of it."""
        return list(dict.fromkeys(run.variant for run in self.runs))

    def _row(self, algorithm: str) -> list[str]:
        cells = [algorithm]
        for lr in self.client_lrs:
            figures = self.figures(algorithm, lr)
            starred = algorithm in self.best and self.best[algorithm].client_lr == lr
            mean = "–" if figures is None else f"{statistics.fmean(figures):.4g}"
            marks = ("*" if starred else "") + ("" if self._learned(algorithm, lr) else "!")
            cells.append(mean + marks)
        return cells

    def _best_of_others(self) -> list[str]:
        """Where other settings were tried, the best of each algorithm over all of them."""
        lines = []
        for algorithm in dict.fromkeys(run.algorithm for run in self.runs if run.others):
            mine = {run.variant for run in self.runs if run.algorithm == algorithm}
            found = {name: best for name, best in self.best.items() if name in mine}
            if found:
                pick = max if higher_is_better(self.metric) else min
                name = pick(found, key=lambda name: found[name].mean)
                lines.append(
                    f"Best of all {algorithm}: {name.removeprefix(f'{algorithm}, ')} at rate "
                    f"{in_short(found[name].client_lr)}, {self.metric} {found[name].mean:.4g}"
                )
        return lines

    def _beyond(self, algorithm: str, lr: float) -> float | None:
        """The next rate outside the grid, as far from `lr` as its neighbour inside."""
        grid = sorted({run.client_lr for run in self.runs if run.variant == algorithm})
        if len(grid) == 1 or lr not in (grid[0], grid[-1]):
            return None
        neighbour = grid[1] if lr == grid[0] else grid[-2]
        return lr * lr / neighbour

    def as_json(self) -> dict[str, Any]:
        """What sweep.json holds.

        Returns:
            The rule, the best rates, and what became of every run, as JSON can hold it.
        """
        return {
            "rule": self.rule,
            "metric": self.metric,
            "interrupted": self.interrupted,
            "best": {
                algorithm: {
                    "client_lr": best.client_lr,
                    "mean": best.mean,
                    "std": best.std,
                    "at_edge": best.try_next is not None,
                    "try_next": best.try_next,
                }
                for algorithm, best in self.best.items()
            },
            "runs": [
                {
                    "run": run.directory.name,
                    "algorithm": run.algorithm,
                    "client_lr": run.client_lr,
                    "seed": run.seed,
                    **({"settings": dict(run.others)} if run.others else {}),
                    "status": run.status,
                    "rounds": run.rounds,
                    "figure": _finite(run.figure(self.metric)) if run.finished else None,
                    "error": run.error,
                    **dataclasses.asdict(run.verdict),
                }
                for run in self.runs
            ],
        }

    def write(self) -> None:
        """Writes sweep.json into the sweep's directory, whole or not at all."""
        content = json.dumps(self.as_json(), indent=2) + "\n"
        write_whole(self.directory / "sweep.json", content)

    def text(self) -> str:
        """The result for a terminal.

        Returns:
            A table of mean figures, the best of each algorithm starred, and the rule; what lies at
            the edge of the grid, what learned nothing, and what is not finished.
        """
        header = ["client rate", *in_short_apart(self.client_lrs)]
        rows = [header, *(self._row(algorithm) for algorithm in self.algorithms)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            row[0].ljust(widths[0])
            + "".join(
                cell.rjust(width + 2) for cell, width in zip(row[1:], widths[1:], strict=True)
            )
            for row in rows
        ]
        lines += ["", f"* {self.rule}", *self._best_of_others()]
        if self.metric.startswith("test_"):
            lines.append(
                "Rates were chosen on the test examples, which flatters them a little; "
                "--select-on validation sets some aside to choose by."
            )
        for algorithm, best in self.best.items():
            if best.try_next is not None:
                lines.append(
                    f"{algorithm}: the best rate, {in_short(best.client_lr)}, lies at the edge of "
                    f"the grid; a better one may lie beyond. Try {in_short(best.try_next)} too."
                )
        if self.learned_nothing:
            lines.append(
                f"! nothing was learned in {len(self.learned_nothing)} of {len(self.runs)} runs, "
                f"which cannot be best: no reply could be used, or the loss only grew. For example "
                f"{self.learned_nothing[0].directory.name}: "
                f"{self.learned_nothing[0].verdict.nothing_learned}."
            )
        left = sum(not run.finished for run in self.runs)
        if left:
            lines.append(f"{left} of {len(self.runs)} runs are not finished.")
        return "\n".join(lines)


def _finite(figure: float | None) -> float | None:
    return figure if figure is not None and math.isfinite(figure) else None
