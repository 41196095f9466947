"""Progress bars: of a run (rounds, their speed, accuracy, time left), and of anything else."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

Item = TypeVar("Item")


class _RoundsPerSecond(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:.2f} rounds/s")


class RunProgress:
    """A bar on standard error.

    Args:
        title: What is running.
        start: Rounds done already.
        rounds: Rounds in all.
        show: Whether to show it; None: if standard error is a terminal.
    """

    def __init__(self, title: str, start: int, rounds: int, show: bool | None = None) -> None:
        visible = sys.stderr.isatty() if show is None else show
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            _RoundsPerSecond(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not visible,
        )
        self._task = self._progress.add_task(title, total=rounds, completed=start, figures="")

    def __enter__(self) -> RunProgress:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def advance(self, record: Mapping[str, Any]) -> None:
        """One round is done; shows the newest figures that its record holds."""
        self._progress.update(self._task, completed=record["round"])
        if record.get("test_accuracy") is not None:
            self._progress.update(self._task, figures=f"accuracy {record['test_accuracy']:.1%}")
        elif record.get("train_loss") is not None:
            self._progress.update(self._task, figures=f"loss {record['train_loss']:.3g}")


def counted(items: Sequence[Item], title: str, show: bool | None = None) -> Iterator[Item]:
    """The items one by one, with a bar on standard error.

    Args:
        items: What is worked through.
        title: What is done with them.
        show: Whether to show it; None: if standard error is a terminal.
    """
    visible = sys.stderr.isatty() if show is None else show
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, TimeRemainingColumn(), console=Console(stderr=True), disable=not visible
    ) as bar:
        yield from bar.track(items, description=title)
