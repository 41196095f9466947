"""Progress where no bar can be drawn: a line now and then, for log files and patient readers."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final

_FIRST: Final = 10.0  # seconds: what is over sooner needs no lines
_LONGEST: Final = 60.0

Clock = Callable[[], float]
"""Seconds since any moment."""


class LinesNowAndThen:
    """Prints on standard error: first after ten seconds, then less and less often, up to a minute.

    Args:
        total: What there is to do, such as rounds.
        done: How much of it was done before.
        clock: What time it is.
    """

    def __init__(self, total: int, done: int = 0, clock: Clock = time.monotonic) -> None:
        self._total = total
        self._done_before = done
        self._clock = clock
        self._begun = clock()
        self._interval = _FIRST
        self._due = self._begun + _FIRST

    def tell(self, done: int, said: str) -> None:
        """Prints a line and how much time is left, if one is due.

        Args:
            done: How much is done by now.
            said: What the line says before.
        """
        now = self._clock()
        if now < self._due:
            return
        self._interval = min(2 * self._interval, _LONGEST)
        self._due = now + self._interval
        print(f"{said}{self.time_left(done)}", file=sys.stderr, flush=True)

    def time_left(self, done: int) -> str:
        """The end of a line: how long the rest takes at the speed so far; nothing if none is known.

        >>> clock = iter([0.0, 30.0]).__next__
        >>> LinesNowAndThen(total=100, done=10, clock=clock).time_left(done=40)
        ', about 0:01:00 left'
        """
        here = done - self._done_before
        if here <= 0:
            return ""
        left = (self._clock() - self._begun) / here * (self._total - done)
        return f", about {timedelta(seconds=round(left))} left"
