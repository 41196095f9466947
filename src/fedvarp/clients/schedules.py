"""How the client learning rate changes over the rounds. The paper keeps it constant."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol


class Schedule(Protocol):
    """A factor for the client learning rate, a pure function of the round.

    >>> halving = Exponential(decay=0.5)
    >>> [halving(round) for round in range(3)]
    [1.0, 0.5, 0.25]
    """

    def __call__(self, round: int) -> float:
        """What the rate is multiplied by in that round, counted from 0."""


@dataclass(frozen=True)
class Constant:
    """The paper's choice."""

    def __call__(self, round: int) -> float:
        """One, always."""
        return 1.0


@dataclass(frozen=True)
class Exponential:
    """decay^round."""

    decay: float

    def __post_init__(self) -> None:
        if not 0 < self.decay <= 1:
            raise ValueError(f"decay={self.decay} must be above 0 and at most 1, such as 0.999.")

    def __call__(self, round: int) -> float:
        """The factor of that round."""
        return self.decay**round


@dataclass(frozen=True)
class Cosine:
    """From 1 down to `floor` along half a cosine over `rounds`, then flat."""

    rounds: int
    floor: float = 0.01

    def __post_init__(self) -> None:
        if self.rounds < 1 or not 0 < self.floor <= 1:
            raise ValueError(
                f"Cosine(rounds={self.rounds}, floor={self.floor}): rounds must be at least 1 and "
                f"floor above 0 and at most 1. A rate of zero would divide by zero."
            )

    def __call__(self, round: int) -> float:
        """The factor of that round."""
        done = min(round / self.rounds, 1.0)
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * done)) / 2
