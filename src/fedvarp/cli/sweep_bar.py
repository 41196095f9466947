"""A bar on standard error that shows how far a sweep has come."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedvarp.experiments.sweep import OnProgress, Sweep


@contextmanager
def sweep_bar(sweep: Sweep, show: bool) -> Iterator[OnProgress]:
    """Shows a bar for the rounds of all runs while the `with` block lasts.

    Args:
        sweep: Whose runs.
        show: Whether somebody watches; if not, nothing is printed.

    Yields:
        What `Sweep.run` tells of its progress.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rounds"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), disable=not show) as bar:
        task = bar.add_task("", total=sum(settings.rounds for _, settings in sweep.runs))

        def on_progress(finished: int, rounds: int) -> None:
            bar.update(task, description=f"{finished} of {len(sweep.runs)} runs", completed=rounds)

        yield on_progress
