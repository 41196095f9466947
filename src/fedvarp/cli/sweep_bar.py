"""How far a sweep has come: a bar in a terminal, lines on standard error elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedvarp.experiments.sweep import OnProgress, Sweep
from fedvarp.simulation.progress_lines import Clock, LinesNowAndThen


@contextmanager
def sweep_bar(sweep: Sweep, show: bool, clock: Clock = time.monotonic) -> Iterator[OnProgress]:
    """Shows the rounds of all runs while the `with` block lasts.

    Args:
        sweep: Whose runs.
        show: Whether somebody watches; if not, nothing is printed.
        clock: What time it is.

    Yields:
        What `Sweep.run` tells of its progress.
    """
    total = sum(settings.rounds for _, settings in sweep.runs)
    if show and not sys.stderr.isatty():
        lines = LinesNowAndThen(total, sweep.rounds_done, clock)
        yield lambda finished, rounds: lines.tell(
            rounds,
            f"{finished} of {len(sweep.runs)} runs finished, round {rounds:,} of {total:,} in all",
        )
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rounds"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), disable=not show) as bar:
        task = bar.add_task("", total=total)

        def on_progress(finished: int, rounds: int) -> None:
            bar.update(task, description=f"{finished} of {len(sweep.runs)} runs", completed=rounds)

        yield on_progress
