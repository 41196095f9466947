"""The comparison itself: one row for each group of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from fedvarp.analysis.caveats import caveats
from fedvarp.analysis.groups import Group, group_runs, refuse_different_tasks, task_differences
from fedvarp.analysis.metric_names import own_metrics
from fedvarp.analysis.paired import Beside, paired_differences
from fedvarp.analysis.runs import Floats, Paths, Run, read_runs
from fedvarp.analysis.targets import Reached, SpeedUp, Target, common_target, when_reached
from fedvarp.runs.errors import RunError
from fedvarp.settings.bounds import Count
from fedvarp.settings.checked import checked

BASELINE: Final = "fedavg"
DEFAULT_SMOOTH: Final = 5


@dataclass(frozen=True)
class Spread:
    """A figure of a group of runs.

    Attributes:
        per_seed: One number for each seed; NaN where a run diverged.
    """

    per_seed: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean over the seeds."""
        return float(np.mean(self.per_seed))

    @property
    def std(self) -> float | None:
        """The standard deviation of the sample, with n − 1; None for a single seed."""
        return float(np.std(self.per_seed, ddof=1)) if len(self.per_seed) > 1 else None


@dataclass(frozen=True, eq=False)
class Row:
    """What one group achieved, up to the last round that all its seeds were evaluated at.

    Attributes:
        group: The runs.
        rounds: That last round.
        first: When the target was first met; None without a target.
        smoothed: When the mean of the last evaluations met it.
        first_speed_up: Over FedAvg, by the first rule; None without one to compare with.
        smoothed_speed_up: By the second.
        final_accuracy: On the test set.
        late_accuracy: The mean of the last evaluations, as many as the second rule takes: the final
            one is a matter of luck where accuracies swing from round to round.
        best_accuracy: The highest of any evaluation.
        validation_accuracy: At the end, on the test examples set aside to choose settings by.
        train_loss: At the end.
        test_loss: At the end.
        validation_loss: At the end.
        sent: Bytes up and down, all rounds together.
        server_bytes: The most that the server held: model, optimiser and table.
        seconds: Wall time, evaluations included; None where it was not kept.
        replies: That came back in all rounds of all its runs; None where they were not counted.
        refused: How many of them could not be used.
        others: At the end, by name: metrics of one's own, and how single clients fare.
    """

    group: Group
    rounds: int
    first: Reached | None
    smoothed: Reached | None
    first_speed_up: SpeedUp | None
    smoothed_speed_up: SpeedUp | None
    final_accuracy: Spread | None
    late_accuracy: Spread | None
    best_accuracy: Spread | None
    validation_accuracy: Spread | None
    train_loss: Spread | None
    test_loss: Spread | None
    validation_loss: Spread | None
    sent: float
    server_bytes: int | None
    seconds: Spread | None
    replies: int | None
    refused: int | None
    others: Mapping[str, Spread]

    @property
    def learned_nothing(self) -> list[Run]:
        """The runs in which nothing was learned."""
        return [run for run in self.group.runs if run.verdict.nothing_learned]

    @property
    def unfinished(self) -> list[Run]:
        """The runs that did not get to their last round."""
        return [run for run in self.group.runs if not run.finished]


@dataclass(frozen=True, eq=False)
class Comparison:
    """What runs achieved beside each other.

    Attributes:
        rows: One for each group of runs, in the order of the paper's legends.
        target: What rounds are counted to; None without a target.
        smooth: Evaluations in the running mean of the second rule.
        notes: What a reader has to know about these runs, in sentences.
        baseline: The row that all were asked to be shown beside; None without.
        differences: Of each row from the baseline, seed by seed; None where they share no seed.
    """

    rows: Sequence[Row]
    target: Target | None
    smooth: int
    notes: Sequence[str]
    baseline: Row | None = None
    differences: Sequence[Beside | None] = ()

    @property
    def groups(self) -> list[Group]:
        """The groups of runs, one for each row."""
        return [row.group for row in self.rows]

    @property
    def other_names(self) -> list[str]:
        """The names of all metrics of one's own, and of those of single clients."""
        return list(dict.fromkeys(name for row in self.rows for name in row.others))


@checked
def compare(
    paths: Paths,
    *,
    target: float | None = None,
    target_loss: float | None = None,
    smooth: Count = DEFAULT_SMOOTH,
    beside: str | None = None,
    allow_different: bool = False,
    ignore: str | Sequence[str] = (),
) -> Comparison:
    """Compares runs of one task, grouped over seeds.

    Args:
        paths: Run directories, or directories that hold some.
        target: The test accuracy to count rounds to. Without it, the one at which the runs were
            told to stop, or else the highest multiple of 5 % that all of them reach.
        target_loss: A loss to count rounds to instead: the training loss where it was recorded,
            else the test loss. For tasks without an accuracy.
        smooth: Evaluations in the running mean of the second rule.
        beside: An algorithm to show all others beside, seed by seed, with intervals; where there
            are several groups of it, the one that ends best.
        allow_different: Compares runs of different tasks too, and says in what they differ; those
            that one sweep tried need no permission.
        ignore: Settings in which runs may differ and still be the same but for the seed, such as
            one that earlier runs were made without.

    Returns:
        The figures of each group, and notes.

    Raises:
        RunError: There is no run, the runs are of different tasks, there is none of the algorithm
            to be shown beside, or the target cannot be reached by any run: it is no accuracy, or
            was not recorded.
    """
    runs, notes = read_runs(paths, ignore)
    if not allow_different:
        refuse_different_tasks(runs)
    if differences := task_differences(runs):
        notes.append("The runs are of different tasks: " + "; ".join(differences) + ".")
    groups = group_runs(runs)
    aim = _target(runs, target, target_loss, smooth)
    first = [when_reached(group.runs, aim) if aim else None for group in groups]
    smoothed = [when_reached(group.runs, aim, smooth) if aim else None for group in groups]
    rows = [
        _row(
            group,
            smooth,
            one,
            two,
            _speed_up(_baselines(groups, first, group), one, group),
            _speed_up(_baselines(groups, smoothed, group), two, group),
        )
        for group, one, two in zip(groups, first, smoothed, strict=True)
    ]
    smooths = aim is not None or any(group.records("test_accuracy") for group in groups)
    baseline = None if beside is None else _ends_best(rows, beside)
    apart: Sequence[Beside | None] = ()
    if baseline is not None:
        apart = [paired_differences(one, baseline.group, aim, smooth) for one in groups]
        alone = [one.label for one, found in zip(groups, apart, strict=True) if found is None]
        if alone:
            notes.append(f"No seed is shared with {baseline.group.label}: {', '.join(alone)}.")
    return Comparison(
        rows,
        aim,
        smooth,
        notes + caveats(groups, smooth if smooths else 1),
        baseline,
        apart,
    )


def _names(group: Group) -> set[str]:
    """What a group may be called: its label, its algorithm, and that without its options."""
    return {group.label, group.algorithm, group.algorithm.partition("(")[0]}


def _ends_best(rows: Sequence[Row], algorithm: str) -> Row:
    """The row of an algorithm that has the best accuracy late, or the smallest loss."""
    of_it = [row for row in rows if algorithm in _names(row.group)]
    if not of_it:
        there = ", ".join(sorted({row.group.algorithm for row in rows}))
        raise RunError(
            f"There is no run of {algorithm!r} to show the others beside; there are {there}."
        )
    if all(row.late_accuracy for row in of_it):
        return max(of_it, key=lambda row: row.late_accuracy.mean if row.late_accuracy else 0.0)
    return min(of_it, key=lambda row: row.train_loss.mean if row.train_loss else 0.0)


def _target(
    runs: Sequence[Run], accuracy: float | None, loss: float | None, smooth: int
) -> Target | None:
    if accuracy is not None and loss is not None:
        raise RunError("Two targets, an accuracy and a loss: give one of them.")
    if accuracy is not None:
        if not 0 < accuracy <= 1:
            meant = f" (did you mean {accuracy / 100:g}?)" if 1 < accuracy <= 100 else ""
            raise RunError(f"A target accuracy of {accuracy:g} is not between 0 and 1{meant}.")
        without = [str(run.path) for run in runs if not run.records("test_accuracy")]
        if without:
            raise RunError(
                f"{without[0]} recorded no test accuracy, because its task has no classes or no "
                f"test set. Give a target loss instead: --target-loss, in Python target_loss=…."
            )
        return Target("test_accuracy", accuracy)
    if loss is None:
        return common_target(runs, smooth)
    for metric in ("train_loss", "test_loss"):
        if all(run.records(metric) for run in runs):
            return Target(metric, loss)
    raise RunError("These runs share no loss that a target could be set for.")


def _baselines(
    groups: Sequence[Group], reached: Sequence[Reached | None], mine: Group
) -> list[tuple[Group, Reached]]:
    """When FedAvg got there, with each of its rates, on the same task."""
    return [
        (group, one) for group, one in zip(groups, reached, strict=True)
        if group.algorithm == BASELINE and one is not None and group.task == mine.task
    ]  # fmt: skip


def _speed_up(
    baselines: Sequence[tuple[Group, Reached]], mine: Reached | None, group: Group
) -> SpeedUp | None:
    """Over the quickest FedAvg, so that a badly tuned one makes nobody look good.

    Of the seeds that both have, if any: an unlucky one is unlucky on both sides.
    """
    if not baselines or mine is None:
        return None
    pairs = [_paired(fedavg, theirs, group, mine) for fedavg, theirs in baselines]
    most = max(len(theirs.rounds) for theirs, _ in pairs)
    # One that got there in every seed goes before one that did not, however short that one was.
    quickest, own = min(
        (pair for pair in pairs if len(pair[0].rounds) == most),
        key=lambda pair: (pair[0].mean_rounds is None, pair[0].at_least_rounds),
    )
    return SpeedUp.over(quickest, own)


def _paired(fedavg: Group, theirs: Reached, group: Group, mine: Reached) -> tuple[Reached, Reached]:
    shared = {run.seed for run in group.runs} & {run.seed for run in fedavg.runs}
    if not shared:
        return theirs, mine
    return (
        theirs.of([run.seed in shared for run in fedavg.runs]),
        mine.of([run.seed in shared for run in group.runs]),
    )


def _row(
    group: Group,
    smooth: int,
    first: Reached | None,
    smoothed: Reached | None,
    first_speed_up: SpeedUp | None,
    smoothed_speed_up: SpeedUp | None,
) -> Row:
    end = int(group.rounds[-1])
    elapsed = group.elapsed()
    replies = sum(run.verdict.replies for run in group.runs)
    held = [
        record["server_bytes"]
        for run in group.runs
        for record in run.metrics
        if record["round"] <= end and "server_bytes" in record
    ]
    return Row(
        group=group,
        rounds=end,
        first=first,
        smoothed=smoothed,
        first_speed_up=first_speed_up,
        smoothed_speed_up=smoothed_speed_up,
        final_accuracy=_last(group, "test_accuracy"),
        late_accuracy=_last(group, "test_accuracy", smooth),
        best_accuracy=_best(group, "test_accuracy"),
        validation_accuracy=_last(group, "validation_accuracy"),
        train_loss=_last(group, "train_loss"),
        test_loss=_last(group, "test_loss"),
        validation_loss=_last(group, "validation_loss"),
        sent=float(group.sent()[:, -1].mean()),
        server_bytes=max(held, default=None),
        seconds=None if elapsed is None else _spread(elapsed[:, -1]),
        replies=replies or None,
        refused=sum(run.verdict.refused for run in group.runs) if replies else None,
        others={
            name: found
            for name in own_metrics(group.runs[0].figures)
            if (found := _last(group, name)) is not None
        },
    )


def _last(group: Group, metric: str, smooth: int = 1) -> Spread | None:
    if not group.records(metric) or len(group.rounds) < smooth:
        return None
    return _spread(group.values(metric, smooth)[:, -1])


def _best(group: Group, metric: str) -> Spread | None:
    if not group.records(metric):
        return None
    return _spread(np.fmax.reduce(group.values(metric), axis=1))  # fmax passes over NaN


def _spread(values: Floats) -> Spread:
    return Spread(tuple(values.tolist()))
