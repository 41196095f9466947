"""Runs that differ in their seed alone make one group, drawn as one curve with a band.

`setting_kinds` says which settings are of the running, which of the method and which of the task.
Runs are grouped by method and task; a comparison is of methods on one task.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from fedvarp.analysis.labels import shown_values, sortable, telling_settings
from fedvarp.analysis.runs import Floats, Run
from fedvarp.analysis.setting_kinds import (
    CLIENT_RATE,
    METRIC_SETTINGS,
    belongs,
    is_of_the_method,
    is_of_the_running,
    shown_name,
)
from fedvarp.analysis.styles import Look, in_order, look_of
from fedvarp.analysis.sweep_file import tried_settings
from fedvarp.analysis.targets import running_mean
from fedvarp.runs.errors import RunError

XAxis = Literal["rounds", "bytes", "time"]
X_AXES: Final[tuple[XAxis, ...]] = ("rounds", "bytes", "time")
"""What a curve can be drawn against."""

_MOST_DIFFERENCES: Final = 8  # in one error message


@dataclass(frozen=True, eq=False)
class Group:
    """Runs with the same settings but for the seed.

    Attributes:
        label: What to call it: the algorithm, and what sets it apart from others of that name.
        look: How to draw it.
        settings: What its runs have in common, under dotted names.
        runs: One for each seed.
    """

    label: str
    look: Look
    settings: Mapping[str, Any]
    runs: Sequence[Run]

    @property
    def algorithm(self) -> str:
        """Its name in the settings."""
        return self.runs[0].algorithm

    @property
    def client_rate(self) -> Any:
        """η_c, or None where the settings do not say."""
        return self.settings.get(CLIENT_RATE)

    @property
    def task(self) -> dict[str, Any]:
        """What is trained on what, whatever the method."""
        return {name: v for name, v in self.settings.items() if not is_of_the_method(name)}

    @property
    def rounds(self) -> NDArray[np.int64]:
        """(E,) rounds at which all seeds were evaluated: the curve ends with the shortest run.

        Raises:
            RunError: There is no such round.
        """
        common = set(self.runs[0].rounds.tolist())
        for run in self.runs[1:]:
            common &= set(run.rounds.tolist())
        if not common:
            raise RunError(
                f"The seeds of {self.label} share no evaluated round, so they make no curve. "
                f"Look at {' and '.join(str(run.path) for run in self.runs)} one by one."
            )
        return np.array(sorted(common), dtype=np.int64)

    @property
    def shortened(self) -> bool:
        """Whether some seeds went on after the others had ended."""
        return len({run.last_round for run in self.runs}) > 1

    def records(self, name: str) -> bool:
        """Tells whether all its runs measured a metric."""
        return all(run.records(name) for run in self.runs)

    def values(self, name: str, smooth: int = 1) -> Floats:
        """Returns a metric at `rounds`.

        Args:
            name: The metric: any number that a round records.
            smooth: Takes the running mean over as many evaluations of each run first.

        Returns:
            (seeds, E) the values.
        """
        return self._at_rounds([running_mean(run.values(name), smooth) for run in self.runs])

    def x(self, axis: XAxis) -> Floats | None:
        """Returns where evaluations stand on a horizontal axis.

        Args:
            axis: What the axis shows.

        Returns:
            (E,) rounds, or the mean over seeds of bytes sent or seconds gone by at those rounds;
            None where seconds are asked for and were not recorded.
        """
        if axis == "rounds":
            return self.rounds.astype(np.float64)
        each = self.sent() if axis == "bytes" else self.elapsed()
        return None if each is None else np.mean(each, axis=0)

    def sent(self) -> Floats:
        """Returns the bytes, up and down, until each of `rounds`: (seeds, E)."""
        return self._at_rounds([run.sent for run in self.runs])

    def elapsed(self) -> Floats | None:
        """Returns the seconds until each of `rounds`: (seeds, E); None unless all were timed."""
        times = [run.elapsed for run in self.runs if run.elapsed is not None]
        return self._at_rounds(times) if len(times) == len(self.runs) else None

    def _at_rounds(self, curves: Sequence[Floats]) -> Floats:
        rounds = self.rounds
        return np.stack(
            [
                curve[np.isin(run.rounds, rounds)]
                for run, curve in zip(self.runs, curves, strict=True)
            ]
        )


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Groups runs over seeds.

    Args:
        runs: Any runs, of one task or of several.

    Returns:
        The groups, in the order of the paper's legends, each with its label and look.

    Raises:
        RunError: Two runs are the same in all their settings, and the seed too.
    """
    follow_seed = _seed_settings(runs)
    by_settings: dict[tuple[tuple[str, str], ...], list[Run]] = defaultdict(list)
    for run in runs:
        kept = _without_running(run.settings, follow_seed)
        key = tuple(sorted((name, repr(value)) for name, value in kept.items()))
        by_settings[(("its label", repr(run.label)), *key)].append(run)
    sets = [sorted(group, key=_by_seed) for group in by_settings.values()]
    for same in sets:
        _refuse_twins(same)
    groups: list[Group] = []
    for algorithm in in_order(run.algorithm for run in runs):
        mine = [same for same in sets if same[0].algorithm == algorithm]
        settings = [_without_running(same[0].settings, follow_seed) for same in mine]
        names = _all_names(settings)
        apart = telling_settings([name for name in names if _differs(name, settings)], settings)
        shown = {name: shown_values([its.get(name) for its in settings]) for name in apart}
        order = sorted(
            range(len(mine)), key=lambda i: [sortable(settings[i].get(n)) for n in apart]
        )
        for variant, i in enumerate(order):
            look = look_of(algorithm, variant)
            what = ", ".join(f"{shown_name(name, names)}={shown[name][i]}" for name in apart)
            label = f"{look.label} ({what})" if what else look.label
            label = mine[i][0].label or label
            groups.append(Group(label, look, settings[i], mine[i]))
    return groups


def task_differences(
    runs: Sequence[Run], same_start: bool = True, but_for: Collection[str] = ()
) -> list[str]:
    """Finds in what the tasks of some runs differ.

    Args:
        runs: To compare.
        same_start: Whether runs with one seed should have begun with one loss: the initial weights
            of a run made in Python are on no record.
        but_for: Settings, or sections of them, in which they may differ.

    Returns:
        Each difference, with the runs concerned; empty if there is none.
    """
    follow_seed = _seed_settings(runs)
    settings = [_without_running(run.settings, follow_seed) for run in runs]
    differences, are_alike = [], True
    measured = [_of_metrics(run.settings) for run in runs]  # who lacks one is of the same task
    for name in (*_all_names(settings), *_all_names(measured)):
        values: dict[str, list[Run]] = defaultdict(list)
        for run, mine, its in zip(runs, settings, measured, strict=True):
            if name not in its and is_of_the_running(name):
                continue
            values[str({**mine, **its}.get(name, "not set"))].append(run)
        if len(values) > 1 and not is_of_the_method(name):
            are_alike = False
            if not belongs(name, but_for):
                differences.append(f"{name}: {_who_has_what(values)}")
    return _different_starts(runs) if same_start and are_alike else differences


def refuse_different_tasks(runs: Sequence[Run], same_start: bool = True) -> None:
    """Refuses runs of different tasks, unless it is one sweep that tried them.

    Args:
        runs: To compare.
        same_start: As for `task_differences`.

    Raises:
        RunError: The runs are not of one task; the message names each difference.
    """
    if differences := task_differences(runs, same_start, tried_settings(runs)):
        # What both sides set says most; a run made in Python and one of a config share few names.
        differences.sort(key=lambda difference: "not set (" in difference)
        more = len(differences) - _MOST_DIFFERENCES
        listed = "".join(f"\n  {difference}" for difference in differences[:_MOST_DIFFERENCES])
        listed += f"\n  and {more} more settings" if more > 0 else ""
        raise RunError(
            f"These runs are of different tasks:{listed}\nTake runs of one task, or ask for it all "
            f"the same: --allow-different, in Python allow_different=True; where a difference does "
            f"not matter, --ignore SETTING, in Python ignore=[…]."
        )


def _different_starts(runs: Sequence[Run]) -> list[str]:
    """With one seed, all algorithms start at the same model, and so at the same loss."""
    by_seed: dict[Any, list[Run]] = defaultdict(list)
    for run in runs:
        by_seed[run.seed].append(run)
    for seed, mine in by_seed.items():
        for name in ("test_loss", "train_loss"):
            starting = [run for run in mine if run.rounds[0] == 0 and run.records(name)]
            at = np.array([run.values(name)[0] for run in starting])
            # The tolerance allows for another machine's rounding, not for another model.
            if len(at) and not np.allclose(at, at[0], rtol=1e-3, equal_nan=True):
                values: dict[str, list[Run]] = defaultdict(list)
                for run, value in zip(starting, at, strict=True):
                    values[f"{value:.4g}"].append(run)
                return [f"{name} of the initial model with seed {seed}: {_who_has_what(values)}"]
    return []


def setting_differences(groups: Sequence[Group]) -> dict[str, list[Any]]:
    """Returns each setting in which groups differ, with its value in every group; None: unset."""
    settings = [group.settings for group in groups]
    return {
        name: [mine.get(name) for mine in settings]
        for name in _all_names(settings)
        if _differs(name, settings)
    }


def common_settings(groups: Sequence[Group]) -> dict[str, Any]:
    """Returns the settings that all groups share."""
    settings = [group.settings for group in groups]
    names = [name for name in _all_names(settings) if not _differs(name, settings)]
    return {name: settings[0][name] for name in names}


def _seed_settings(runs: Sequence[Run]) -> frozenset[str]:
    """Settings named seed that equal the run's own seed in every run: they are no more than it."""
    names = {n for run in runs for n in run.settings if n.split(".")[-1] == "seed"}
    return frozenset(
        name for name in names if all(run.settings.get(name, run.seed) == run.seed for run in runs)
    )


def _without_running(settings: Mapping[str, Any], follow_seed: frozenset[str]) -> dict[str, Any]:
    return {
        name: value
        for name, value in settings.items()
        if not is_of_the_running(name) and name not in follow_seed
    }


def _of_metrics(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name.startswith(METRIC_SETTINGS)}


def _all_names(settings: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for mine in settings for name in mine))


def _differs(name: str, settings: Sequence[Mapping[str, Any]]) -> bool:
    return any(mine.get(name) != settings[0].get(name) for mine in settings)


def _by_seed(run: Run) -> tuple[int, str]:
    return (-1 if run.seed is None else run.seed, str(run.path))


def _refuse_twins(runs: Sequence[Run]) -> None:
    for one, other in itertools.pairwise(runs):
        if one.seed == other.seed:
            raise RunError(
                f"{one.path} and {other.path} have the same settings and the same seed "
                f"({one.seed}), so they would count twice. Leave one out. If they do differ, it is "
                f"in what is ignored, or in what config.toml does not hold, such as the initial "
                f"weights: ignore less, or give them different seeds; in Python a name may stand "
                f'for each: {{"mine": …}}.'
            )


def _who_has_what(values: Mapping[str, Sequence[Run]]) -> str:
    parts = []
    for value, runs in values.items():
        more = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
        parts.append(f"{value} ({runs[0].path}{more})")
    return ", ".join(parts)
