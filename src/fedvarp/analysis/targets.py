"""When a run reaches a target, by two rules, because a noisy curve crosses a line by luck.

*first*: the first evaluation that is good enough. It is what most papers count, and favours noise.

*smoothed*: the first evaluation at which the mean of the last k evaluations is good enough. It
comes later, and means that the run stays there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from fedvarp.analysis.runs import Floats, Run
from fedvarp.errors import InvalidError

_ROUNDING: Final = 1e-9


@dataclass(frozen=True)
class Target:
    """A figure to reach: an accuracy from below, or a loss from above.

    Attributes:
        metric: Its name in the records.
        value: How good is good enough.
    """

    metric: str
    value: float

    def __str__(self) -> str:
        if self.metric == "test_accuracy":
            return f"{100 * self.value:g} % test accuracy"
        return f"{'training' if self.metric == 'train_loss' else 'test'} loss {self.value:g}"

    def met(self, values: Floats) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """Tells where values are good enough, but for rounding; NaN never is.

        Args:
            values: (E,) the metric at some evaluations.

        Returns:
            (E,) whether each is good enough.
        """
        # The mean of three times 0.7 is 0.6999999999999998, and should meet 0.7.
        if self.metric == "test_accuracy":
            return values >= self.value - _ROUNDING
        return values <= self.value + _ROUNDING


@dataclass(frozen=True)
class Reached:
    """When each run of a group reached the target; None for those that never did.

    Attributes:
        rounds: The round of each.
        sent: Bytes up and down until then, of each.
        lasted: The last evaluated round of each: how long it had the chance.
    """

    rounds: tuple[int | None, ...]
    sent: tuple[float | None, ...]
    lasted: tuple[int, ...]

    def of(self, wanted: Sequence[bool]) -> Reached:
        """Returns the same for some of the runs.

        Args:
            wanted: For each run, whether to keep it.
        """
        return Reached(
            tuple(itertools.compress(self.rounds, wanted)),
            tuple(itertools.compress(self.sent, wanted)),
            tuple(itertools.compress(self.lasted, wanted)),
        )

    @property
    def count(self) -> int:
        """How many runs reached the target."""
        return sum(round is not None for round in self.rounds)

    @property
    def mean_rounds(self) -> float | None:
        """The mean over seeds; None unless all got there, as a mean of the lucky ones misleads."""
        return _mean_of_all(self.rounds)

    @property
    def mean_sent(self) -> float | None:
        """The mean over seeds of the bytes until then; None unless all got there."""
        return _mean_of_all(self.sent)

    @property
    def at_least_rounds(self) -> float:
        """A lower bound on the mean: runs that never got there count as long as they lasted."""
        waits = zip(self.rounds, self.lasted, strict=True)
        return float(np.mean([lasted if round is None else round for round, lasted in waits]))


@dataclass(frozen=True)
class SpeedUp:
    """How many times fewer rounds than the baseline took.

    Attributes:
        factor: Rounds of the baseline per round.
        is_lower_bound: Whether the baseline never got there in some seed, so that it is more.
    """

    factor: float
    is_lower_bound: bool

    @classmethod
    def over(cls, baseline: Reached, reached: Reached) -> SpeedUp | None:
        """Divides the rounds of the baseline by those of a group.

        Args:
            baseline: When FedAvg got there.
            reached: When the group did.

        Returns:
            The speed-up; None where the group did not get there in every seed, or at round 0.
        """
        rounds = reached.mean_rounds
        if not rounds:
            return None
        return cls(baseline.at_least_rounds / rounds, baseline.mean_rounds is None)


def running_mean(values: Floats, window: int) -> Floats:
    """Takes the mean of the last values at each place.

    Args:
        values: (E,) numbers.
        window: How many to take the mean of.

    Returns:
        (E,) the means; NaN until there are as many values.

    Raises:
        ValueError: The window is below 1.

    >>> running_mean(np.array([1.0, 2.0, 6.0]), 2)
    array([nan, 1.5, 4. ])
    """
    if window < 1:
        raise InvalidError(f"A running mean over {window} evaluations: it needs at least 1.")
    if window > len(values):
        return np.full(len(values), np.nan)
    means = np.lib.stride_tricks.sliding_window_view(values, window).mean(axis=-1)
    return np.concatenate([np.full(window - 1, np.nan), means])


def when_reached(runs: Sequence[Run], target: Target, window: int = 1) -> Reached:
    """Finds the first evaluation at which the mean of the last evaluations meets the target.

    Args:
        runs: The runs of a group.
        target: What to reach.
        window: Evaluations to take the mean of; 1 is the first rule.

    Returns:
        When each run got there.
    """
    rounds: list[int | None] = []
    sent: list[float | None] = []
    for run in runs:
        met = target.met(running_mean(run.values(target.metric), window))
        place = int(met.argmax()) if met.any() else None
        rounds.append(None if place is None else int(run.rounds[place]))
        sent.append(None if place is None else float(run.sent[place]))
    return Reached(tuple(rounds), tuple(sent), tuple(int(run.rounds[-1]) for run in runs))


def common_target(runs: Sequence[Run], window: int) -> Target | None:
    """Finds an accuracy to compare at when none is asked for.

    The one at which the runs were told to stop; otherwise the highest multiple of 5 % that every
    run reaches, by both rules where it has enough evaluations for the second.

    Args:
        runs: All runs of a comparison.
        window: Evaluations in the running mean of the second rule.

    Returns:
        The target; None where there is no such accuracy.
    """
    if not all(run.records("test_accuracy") for run in runs):
        return None
    told = {run.target_accuracy for run in runs}
    if len(told) == 1 and (stop_at := told.pop()) is not None:
        return Target("test_accuracy", float(stop_at))
    best = []
    for run in runs:
        curves = [run.values("test_accuracy"), running_mean(run.values("test_accuracy"), window)]
        best += [float(np.nanmax(curve)) for curve in curves if np.isfinite(curve).any()]
    if not best:
        return None
    steps = math.floor((min(best) + _ROUNDING) * 20)
    return Target("test_accuracy", steps / 20) if steps else None


def _mean_of_all(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if len(known) == len(values) else None
