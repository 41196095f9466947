"""Two groups of runs beside each other, seed by seed, with an interval for what differs.

With one seed all algorithms start from the same weights and see the same cohorts, so a lucky seed
is lucky on both sides: differences within seeds vary less than the groups do.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from fedvarp.analysis.groups import Group
from fedvarp.analysis.runs import Floats, Run
from fedvarp.analysis.targets import Target, when_reached

# The 97.5 % quantiles of Student's t with 1, 2, … degrees of freedom.
_T: Final = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


@dataclass(frozen=True)
class Difference:
    """A figure of some seeds: how much more, or how many times as much, as the baseline's.

    Attributes:
        per_seed: One number for each seed that both have.
        is_ratio: Whether it is a ratio, whose mean is the geometric one.
    """

    per_seed: tuple[float, ...]
    is_ratio: bool = False

    @property
    def mean(self) -> float:
        """Over the seeds."""
        return self._back(statistics.fmean(self._values))

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 %, by Student's t over seeds; None for a single one, or one that is not finite."""
        n = len(self.per_seed)
        if n < 2 or not all(map(math.isfinite, self.per_seed)):
            return None
        t = _T[n - 2] if n - 2 < len(_T) else 1.96 + 2.4 / (n - 1) + 2.9 / (n - 1) ** 2
        reach = t * statistics.stdev(self._values) / math.sqrt(n)
        middle = statistics.fmean(self._values)
        return self._back(middle - reach), self._back(middle + reach)

    @property
    def _values(self) -> list[float]:
        return [math.log(one) for one in self.per_seed] if self.is_ratio else list(self.per_seed)

    def _back(self, value: float) -> float:
        return math.exp(value) if self.is_ratio else value


@dataclass(frozen=True)
class Beside:
    """What a group has beyond a baseline, in the seeds and up to the last round that both have.

    Attributes:
        seeds: That both have.
        rounds: The last round that all of them were evaluated at.
        speed_up: Rounds of the baseline to the target over its own, by the running mean; None where
            one of them did not get there, or without a target.
        late_accuracy: More test accuracy in the last evaluations, as many as the running mean has.
        half_accuracy: More test accuracy over all evaluations of the second half of the rounds.
    """

    seeds: tuple[int | None, ...]
    rounds: int
    speed_up: Difference | None
    late_accuracy: Difference | None
    half_accuracy: Difference | None


def paired_differences(
    group: Group, baseline: Group, target: Target | None, smooth: int
) -> Beside | None:
    """Compares a group with a baseline, seed by seed.

    Args:
        group: Whose runs are compared.
        baseline: With whose.
        target: What rounds are counted to.
        smooth: Evaluations in the running mean.

    Returns:
        The differences; None where the two share no seed, or no round.
    """
    theirs = {run.seed: run for run in baseline.runs}
    pairs = [(run, theirs[run.seed]) for run in group.runs if run.seed in theirs]
    shared = [set(run.rounds.tolist()) for pair in pairs for run in pair]
    common = sorted(set.intersection(*shared)) if shared else []
    if not common:
        return None
    rounds = np.array(common)
    has_accuracy = all(run.records("test_accuracy") for pair in pairs for run in pair)

    def more(of: Callable[[Floats], Floats]) -> Difference | None:
        if not has_accuracy:
            return None
        return Difference(
            tuple(float((of(_at(one, rounds)) - of(_at(two, rounds))).mean()) for one, two in pairs)
        )

    return Beside(
        seeds=tuple(run.seed for run, _ in pairs),
        rounds=common[-1],
        speed_up=_speed_up(pairs, target, smooth),
        late_accuracy=more(lambda accuracy: accuracy[-smooth:]),
        half_accuracy=more(lambda accuracy: accuracy[rounds > common[-1] / 2]),
    )


def _at(run: Run, rounds: Floats) -> Floats:
    return run.values("test_accuracy")[np.isin(run.rounds, rounds)]


def _speed_up(
    pairs: Sequence[tuple[Run, Run]], target: Target | None, smooth: int
) -> Difference | None:
    if target is None:
        return None
    own, theirs = (when_reached(runs, target, smooth).rounds for runs in zip(*pairs, strict=True))
    ratios = [b / a for a, b in zip(own, theirs, strict=True) if a and b]
    return Difference(tuple(ratios), is_ratio=True) if len(ratios) == len(pairs) else None
