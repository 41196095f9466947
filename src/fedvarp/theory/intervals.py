"""A measured number with its 95 % interval."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Final

from torch import Tensor

Unseen = tuple[float, float]
"""Standard errors below and above that no draw shows."""

_LOGARITHM_UP_TO: Final = 2.0  # times the value that t standard errors are
VARIATION: Final = 1.3
"""What the squares of clients vary by, over their mean, where nothing else is known of them."""


@dataclass(frozen=True)
class Estimate:
    """A measured number and how far it may be off.

    Attributes:
        value: The estimate.
        standard_error: 0 if nothing was drawn at random and the number is exact.
        low: Where its 95 % interval begins.
        high: Where its 95 % interval ends.
    """

    value: float
    standard_error: float
    low: float
    high: float

    @classmethod
    def exact(cls, value: float) -> Estimate:
        """Makes an estimate that nothing random went into.

        Args:
            value: The number.
        """
        return cls(value, 0.0, value, value)

    @classmethod
    def of_mean(
        cls, value: float, standard_error: float, draws: float, unseen: Unseen = (0.0, 0.0)
    ) -> Estimate:
        """Gives a mean its interval, by Student's t.

        Args:
            value: The mean.
            standard_error: Its standard error.
            draws: How many draws that error was estimated from.
            unseen: What clients that were not drawn may take away and add (`unseen_error`).
        """
        down, up = _reaches(standard_error, draws, unseen)
        return cls(value, standard_error, value - down, value + up)

    @classmethod
    def of_square(
        cls, value: float, standard_error: float, draws: float, unseen: Unseen = (0.0, 0.0)
    ) -> Estimate:
        """Gives the squared length of one vector its interval, which does not go below zero.

        Args:
            value: The estimate; without bias, so perhaps below zero itself.
            standard_error: Its standard error.
            draws: How many draws that error was estimated from.
            unseen: What clients that were not drawn may take away and add (`unseen_error`).
        """
        found = cls.of_mean(value, standard_error, draws, unseen)
        return cls(value, standard_error, max(found.low, min(value, 0.0)), max(found.high, 0.0))

    @classmethod
    def of_squares(
        cls, value: float, standard_error: float, draws: float, unseen: Unseen = (0.0, 0.0)
    ) -> Estimate:
        """Gives a mean of squares its interval, by Student's t on the logarithm.

        A mean of a few squares errs upwards by more than downwards, and so does its error: where
        one of the few large ones is missing, both come out too small. Intervals that are
        symmetrical miss the truth on that side.

        Where t standard errors are more than twice the value, the logarithm says nothing sane any
        longer: its upper end grows beyond all measure as the value falls to zero. From there on
        the upper end grows by the standard errors themselves and the lower one falls to zero, so
        that both pass without a leap into the interval of a value below zero.

        Args:
            value: The estimate; without bias, so perhaps below zero where there is next to none.
            standard_error: Its standard error.
            draws: How many draws that error was estimated from.
            unseen: What clients that were not drawn may take away and add (`unseen_error`).
        """
        if value <= 0:
            return cls.of_square(value, standard_error, draws, unseen)
        down, up = _reaches(standard_error, draws, unseen)
        most = _LOGARITHM_UP_TO * value
        low = max(value - max(down - most, 0.0), 0.0) / math.exp(min(down, most) / value)
        high = value * math.exp(min(up, most) / value) + max(up - most, 0.0)  # along the tangent
        return cls(value, standard_error, low, high)

    def at_least_zero(self) -> Estimate:
        """Cuts off what lies below zero, for a number that cannot, though its estimate may."""
        low, value, high = (max(one, 0.0) for one in (self.low, self.value, self.high))
        return Estimate(value, self.standard_error, low, high)

    def as_json(self) -> dict[str, float]:
        """Returns the numbers by name, for files and programs."""
        return dataclasses.asdict(self)


def _reaches(standard_error: float, draws: float, unseen: Unseen) -> tuple[float, float]:
    """How far an interval reaches down and up; what may be unseen is no estimate, and has no t."""
    reach, normal = t_quantile(draws - 1) * standard_error, t_quantile(math.inf)
    below, above = unseen
    return math.hypot(reach, normal * below), math.hypot(reach, normal * above)


def unseen_error(value: float, n: int, N: int, variation: float = VARIATION) -> float:
    """Says by how much a mean of squares over clients may err beyond what those drawn show.

    The few clients that make up much of a mean are missing in many samples, and nothing in such a
    sample tells of them. So the squares are taken to vary by 1.3 times their mean, as they do where
    two clients of forty make up a third, whatever those drawn show; by more, where it is known of
    all clients that they do. This error only ever adds.

    >>> round(unseen_error(2.0, n=12, N=40), 3), unseen_error(2.0, n=40, N=40)
    (0.628, 0.0)

    Args:
        value: The mean over those drawn.
        n: How many were drawn.
        N: Clients in all.
        variation: The standard deviation of the squares of all clients over their mean.

    Returns:
        A standard error, 0 with all clients.
    """
    return variation * max(value, 0.0) * math.sqrt((1 - n / N) / n)


def t_quantile(degrees: float) -> float:
    """Computes the 97.5 % quantile of Student's t, to 0.2 % from 4 degrees of freedom on.

    The expansion of Cornish and Fisher around the normal quantile (Abramowitz and Stegun 26.7.5).

    >>> [round(t_quantile(degrees), 2) for degrees in (4, 11, 10**6)]  # 2.776, 2.201, 1.960
    [2.77, 2.2, 1.96]

    Args:
        degrees: Of freedom; below 2, two are taken.
    """
    z, n = 1.959964, max(degrees, 2)
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )


def effective_draws(squares: Tensor) -> float:
    """Counts the draws that a sum of squares is made of: few, where a few make up most of it.

    >>> import torch
    >>> effective_draws(torch.ones(10)), effective_draws(torch.tensor([100.0] + [0.0] * 9))
    (10.0, 1.0)

    Args:
        squares: (n,).

    Returns:
        (Σ x)² / Σ x², from 1 to n; n if all are zero.
    """
    total, of_squares = float(squares.sum()), float(squares.square().sum())
    return total**2 / of_squares if of_squares > 0 else float(len(squares))
