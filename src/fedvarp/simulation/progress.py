"""How far a run has come: a bar in a terminal, a changing line in a notebook, lines in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

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

from fedvarp.runs.divergence import counted as counted_replies
from fedvarp.simulation.progress_lines import Clock, LinesNowAndThen

Item = TypeVar("Item")

_REDRAW_EVERY: Final = 0.2  # seconds, in a notebook
_BAR_WIDTH: Final = 30  # letters, in a notebook


class RunProgress:
    """How far a run has come, with its newest figures.

    In a terminal it is a bar on standard error, in a notebook a line below the cell that changes,
    and elsewhere, if it is asked for, a line on standard error now and then.

    Args:
        title: What is running.
        start: Rounds done already.
        rounds: Rounds in all.
        show: Whether to show it; None: in a terminal or a notebook.
        clock: What time it is.
    """

    def __init__(
        self,
        title: str,
        start: int,
        rounds: int,
        show: bool | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._view: _View | None = None
        if show is not False and sys.stderr.isatty():
            self._view = _Bar(title, start, rounds)
        elif show is not False and (display := _notebook()) is not None:
            self._view = _LineInNotebook(display, title, start, rounds, clock)
        elif show:
            self._view = _LinesInLog(title, start, rounds, clock)
        self._figure = ""
        self._replies = self._refused = 0

    def __enter__(self) -> RunProgress:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._view is not None:
            self._view.close()

    def advance(self, record: Mapping[str, Any]) -> None:
        """One round is done; shows the newest figures and how many replies were refused so far."""
        if self._view is None:
            return
        if record.get("test_accuracy") is not None:
            self._figure = f"accuracy {record['test_accuracy']:.1%}"
        elif record.get("train_loss") is not None:
            self._figure = f"loss {record['train_loss']:.3g}"
        elif "train_loss" in record:
            self._figure = "loss not finite"
        replies, refused = counted_replies(record)
        self._replies, self._refused = self._replies + replies, self._refused + refused
        said = [self._figure] if self._figure else []
        if self._refused:
            said.append(f"{self._refused:,} of {self._replies:,} replies refused")
        self._view.show(record["round"], ", ".join(said))


class _View(Protocol):
    def show(self, done: int, figures: str) -> None: ...

    def close(self) -> None: ...


class _RoundsPerSecond(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:.2f} rounds/s")


class _Bar:
    def __init__(self, title: str, start: int, rounds: int) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            _RoundsPerSecond(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._task = self._progress.add_task(title, total=rounds, completed=start, figures="")
        self._progress.start()

    def show(self, done: int, figures: str) -> None:
        self._progress.update(self._task, completed=done, figures=figures)

    def close(self) -> None:
        self._progress.stop()


class _LinesInLog:
    def __init__(self, title: str, start: int, rounds: int, clock: Clock) -> None:
        self._title = title
        self._rounds = rounds
        self._lines = LinesNowAndThen(rounds, start, clock)

    def show(self, done: int, figures: str) -> None:
        known = f", {figures}" if figures else ""
        self._lines.tell(done, f"{self._title}: round {done:,} of {self._rounds:,}{known}")

    def close(self) -> None:
        pass  # the summary follows


class _LineInNotebook:
    """By IPython's own display: rich's bar would need ipywidgets, which not everybody has."""

    def __init__(self, display: Any, title: str, start: int, rounds: int, clock: Clock) -> None:
        self._title = title
        self._rounds = rounds
        self._clock = clock
        self._lines = LinesNowAndThen(rounds, start, clock)
        self._newest = title
        self._drawn = clock()
        self._handle = display.display({"text/plain": title}, raw=True, display_id=True)

    def show(self, done: int, figures: str) -> None:
        full = _BAR_WIDTH * done // max(self._rounds, 1)
        bar = "━" * full + "─" * (_BAR_WIDTH - full)
        known = f", {figures}" if figures else ""
        left = self._lines.time_left(done)
        self._newest = f"{self._title} {bar} {done:,} of {self._rounds:,} rounds{known}{left}"
        if self._clock() >= self._drawn + _REDRAW_EVERY:
            self._draw()

    def close(self) -> None:
        self._draw()

    def _draw(self) -> None:
        self._drawn = self._clock()
        self._handle.update({"text/plain": self._newest}, raw=True)


def _notebook() -> Any:
    """IPython's module `display`, if this process is the kernel of a notebook; else None."""
    ipython = sys.modules.get("IPython")  # a kernel has it loaded
    shell = None if ipython is None else ipython.get_ipython()
    return ipython.display if ipython is not None and hasattr(shell, "kernel") else None


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
