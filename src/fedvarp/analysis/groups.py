"""Runs that differ in their seed alone make one group, drawn as one curve with a band.

Settings are of three kinds. Those of *running* (how long, on which machine, which seed) leave the
mathematics alone and are ignored. Those of the *method* (the algorithm, its rates, its table) are
what a comparison is about. All others are the *task*, which has to be the same on both sides.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from fedvarp.analysis.runs import Floats, Run
from fedvarp.analysis.styles import Look, in_order, look_of
from fedvarp.analysis.targets import running_mean
from fedvarp.analysis.units import in_short
from fedvarp.runs.directory import RunError

XAxis = Literal["rounds", "bytes", "time"]

# Names of settings, or of the sections that hold them.
RUNNING: Final = (
    "name", "rounds", "target_accuracy", "commit_every", "device", "threads", "trainer",
    "workers", "compile", "exact", "auto", "states.where", "out", "recording", "table.where",
    "evaluation.target_accuracy",
)  # fmt: skip
METHOD: Final = (
    "algorithm", "client_lr", "local_sgd.lr", "local_sgd.schedule", "local_sgd.step_decay",
    "server_lr", "server_momentum", "server_optimizer", "server_step", "states", "dtype",
    "cluster_of", "clusters", "recluster_every", "server", "table",
)  # fmt: skip

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
        return self.settings.get("local_sgd.lr", self.settings.get("client_lr"))

    @property
    def task(self) -> dict[str, Any]:
        """What is trained on what, whatever the method: its settings that METHOD does not name."""
        return {name: v for name, v in self.settings.items() if not _belongs(name, METHOD)}

    @property
    def rounds(self) -> NDArray[np.int64]:
        """(E,) rounds at which all seeds were evaluated: the curve ends with the shortest run."""
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
        """Whether all its runs measured `name`."""
        return all(run.records(name) for run in self.runs)

    def values(self, name: str, smooth: int = 1) -> Floats:
        """(seeds, E) a metric at `rounds`; smoothed over `smooth` evaluations of each run first."""
        return self._at_rounds([running_mean(run.values(name), smooth) for run in self.runs])

    def x(self, axis: XAxis) -> Floats | None:
        """(E,) rounds, or the mean over seeds of bytes sent or seconds gone by at those rounds."""
        if axis == "rounds":
            return self.rounds.astype(np.float64)
        each = self.sent() if axis == "bytes" else self.elapsed()
        return None if each is None else np.mean(each, axis=0)

    def sent(self) -> Floats:
        """(seeds, E) bytes up and down until each of `rounds`."""
        return self._at_rounds([run.sent for run in self.runs])

    def elapsed(self) -> Floats | None:
        """(seeds, E) seconds until each of `rounds`; None unless all runs were timed."""
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
    """Groups over seeds, in the order of the paper's legends.

    Raises:
        RunError: Two runs are the same in all their settings, and the seed too.
    """
    follow_seed = _seed_settings(runs)
    by_settings: dict[tuple[tuple[str, str], ...], list[Run]] = defaultdict(list)
    for run in runs:
        kept = _without_running(run.settings, follow_seed)
        by_settings[tuple(sorted((name, repr(value)) for name, value in kept.items()))].append(run)
    sets = [sorted(group, key=_by_seed) for group in by_settings.values()]
    for same in sets:
        _refuse_twins(same)
    groups: list[Group] = []
    for algorithm in in_order(run.algorithm for run in runs):
        mine = [same for same in sets if same[0].algorithm == algorithm]
        settings = [_without_running(same[0].settings, follow_seed) for same in mine]
        apart = [name for name in _all_names(settings) if _differs(name, settings)]
        order = sorted(range(len(mine)), key=lambda i: [_sortable(settings[i], n) for n in apart])
        for variant, i in enumerate(order):
            look = look_of(algorithm, variant)
            what = ", ".join(f"{_short(n)}={_told(settings[i], n)}" for n in apart)
            label = f"{look.label} ({what})" if what else look.label
            groups.append(Group(label, look, settings[i], mine[i]))
    return groups


def task_differences(runs: Sequence[Run], same_start: bool = True) -> list[str]:
    """In what the tasks of these runs differ, each with the runs concerned; empty: in nothing.

    Args:
        runs: To compare.
        same_start: Whether runs with one seed should have begun with one loss: the settings of a
            run made in Python may not tell two models apart.
    """
    follow_seed = _seed_settings(runs)
    settings = [_without_running(run.settings, follow_seed) for run in runs]
    differences = []
    for name in _all_names(settings):
        if _belongs(name, METHOD) or not _differs(name, settings):
            continue
        values: dict[str, list[Run]] = defaultdict(list)
        for run, mine in zip(runs, settings, strict=True):
            values[str(mine.get(name, "not set"))].append(run)
        differences.append(f"{name}: {_who_has_what(values)}")
    return differences or (_different_starts(runs) if same_start else [])


def refuse_different_tasks(runs: Sequence[Run], same_start: bool = True) -> None:
    """Raises RunError, with each difference, unless the runs are of one task."""
    if differences := task_differences(runs, same_start):
        # What both sides set says most; a run made in Python and one of a config share few names.
        differences.sort(key=lambda difference: "not set (" in difference)
        more = len(differences) - _MOST_DIFFERENCES
        listed = "".join(f"\n  {difference}" for difference in differences[:_MOST_DIFFERENCES])
        listed += f"\n  and {more} more settings" if more > 0 else ""
        raise RunError(
            f"These runs are of different tasks:{listed}\nTake runs of one task, or ask for it all "
            f"the same: --allow-different, in Python allow_different=True."
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
    """Each setting in which the groups differ, with its value in every group (None: not set)."""
    settings = [group.settings for group in groups]
    return {
        name: [mine.get(name) for mine in settings]
        for name in _all_names(settings)
        if _differs(name, settings)
    }


def common_settings(groups: Sequence[Group]) -> dict[str, Any]:
    """The settings that all groups share."""
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
        if not _belongs(name, RUNNING) and name not in follow_seed
    }


def _belongs(name: str, kind: Sequence[str]) -> bool:
    return any(name == known or name.startswith(f"{known}.") for known in kind)


def _all_names(settings: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for mine in settings for name in mine))


def _differs(name: str, settings: Sequence[Mapping[str, Any]]) -> bool:
    return any(mine.get(name) != settings[0].get(name) for mine in settings)


def _sortable(settings: Mapping[str, Any], name: str) -> tuple[int, float, str]:
    value = settings.get(name)
    is_number = isinstance(value, (int, float))
    return (0, float(value), "") if is_number else (1, 0.0, str(value))  # type: ignore[arg-type]


def _told(settings: Mapping[str, Any], name: str) -> str:
    value = settings.get(name, "unset")
    return in_short(value) if isinstance(value, float) else str(value)


def _short(name: str) -> str:
    return name.split(".")[-1]


def _by_seed(run: Run) -> tuple[int, str]:
    return (-1 if run.seed is None else run.seed, str(run.path))


def _refuse_twins(runs: Sequence[Run]) -> None:
    for one, other in itertools.pairwise(runs):
        if one.seed == other.seed:
            raise RunError(
                f"{one.path} and {other.path} have the same settings and the same seed "
                f"({one.seed}), so they would count twice. Leave one out. If they do differ, "
                f"record how: simulate(…, settings=…) writes any settings to config.toml."
            )


def _who_has_what(values: Mapping[str, Sequence[Run]]) -> str:
    parts = []
    for value, runs in values.items():
        more = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
        parts.append(f"{value} ({runs[0].path}{more})")
    return ", ".join(parts)
