"""What clients say of themselves, believed as far as it is like what the others of the run say."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Final

_WINDOW: Final = 100  # reports that the running median is taken of
_FEW: Final = 3  # rates; with fewer in a round they are held against those of earlier rounds
_ROUNDS: Final = 5  # whose rates are remembered
_FASTER: Final = 10.0  # times the rate of earlier rounds, that one or two clients may tell
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
    """Rates that clients report, held against each other or against those of earlier rounds.

    The rate of a round is the median of what its clients report: one that lies does nothing while
    there are two others. What one or two clients alone report is taken for at most ten times, and
    at least a thousandth, of the rate that they were sent, or else of the median of the last five
    rounds: schedules mostly fall, and a rate too high lengthens the step of everybody's rows.
    """

    def __init__(self) -> None:
        self.told: list[float] = []  # of the last rounds, as it was reported

    def believed(self, reports: Sequence[float], sent: float | None) -> float:
        """The rate of a round.

        Args:
            reports: Those of its clients, at least one.
            sent: What they were sent; None: nothing.

        Returns:
            What is believed.
        """
        told = statistics.median_low(reports)
        earlier = statistics.median_low(self.told) if self.told else math.nan
        known = earlier if sent is None else sent
        self.told = [*self.told, told][-_ROUNDS:]
        if len(reports) >= _FEW or math.isnan(known):
            return told
        return min(max(told, known / _SLOWER), known * _FASTER)
