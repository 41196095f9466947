"""What clients say of themselves, believed as far as it is like what the others of the run say."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Final

_WINDOW: Final = 100  # reports that the running median is taken of
FEW: Final = 3
"""Reports of a rate; fewer in a round are held against what is known besides."""
_FASTER: Final = 3.0  # times the rate that is known, that one or two clients may tell
_SLOWER: Final = 1000.0


class Claims:
    """Numbers that clients report, none of them taken for more than a factor of the median.

    The median is that of the last hundred numbers that were used, as they were used, and of those
    of the present round: a minority of liars does not move it, and a first reply that lied is
    outvoted soon. So nobody has to be refused for what may be true of a large client: it counts as
    a smaller one.

    Args:
        within: The factor, above 1; None: all is believed.

    >>> claims = Claims(within=10.0)
    >>> claims.believed([10, 20, 10**9, 0.01])
    [10, 20, 100.0, 1.0]
    """

    def __init__(self, within: float | None) -> None:
        self._within = within
        self.used: list[float] = []

    def believed(self, told: Sequence[float]) -> list[float]:
        """What is made of the numbers of a round.

        Args:
            told: As they were reported; positive.

        Returns:
            The same, or the nearest that is believed.
        """
        if self._within is None or not told:
            return list(told)
        median = statistics.median_low([*self.used, *told])
        least, most = median / self._within, median * self._within
        return [min(max(number, least), most) for number in told]

    def count(self, believed: Sequence[float]) -> None:
        """Notes numbers that were used.

        Args:
            believed: As they were used.
        """
        self.used = [*self.used, *believed][-_WINDOW:]


class RateClaims:
    """Rates that clients report, held against each other or against what is known besides.

    The rate of a round is the median of what its clients report: one that lies does nothing while
    there are two others. Of what one or two clients alone report the one nearest to the rate that
    they were sent, or else to that of the round before, is taken, and for at most three times, and
    at least a thousandth, of the rate that they were sent, or else of the first one that was
    believed. Schedules mostly fall; and rows that were divided by a rate far too low would be
    replayed far too long once the rate is higher, so that it must never get much higher. That a
    first lie makes all rates of the run too low does no harm: what rows are divided by the step
    multiplies by again.
    """

    def __init__(self) -> None:
        self.known: list[float] = []  # what bounds one or two reports, and the last rate

    def believed(self, reports: Sequence[float], sent: float | None) -> float:
        """The rate of a round.

        Args:
            reports: Those of its clients, at least one.
            sent: What they were sent; None: nothing.

        Returns:
            What is believed.
        """
        if len(reports) >= FEW:
            rate = bound = statistics.median_low(reports)
        else:
            bound, last = self.known or [max(reports)] * 2
            if sent is not None:
                bound = last = sent
            nearest = min(reports, key=lambda told: abs(math.log(told) - math.log(last)))
            rate = min(max(nearest, bound / _SLOWER), bound * _FASTER)
        self.known = [bound, rate]
        return rate
