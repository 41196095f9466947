"""Whether a run is finished: it has no round left to train, and its model is exported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from fedvarp.runs.directory import RunDirectory
from fedvarp.runs.identity import ROUNDS, TARGET, flattened

Ending = Literal["rounds", "target"]


def is_finished(directory: RunDirectory, settings: Mapping[str, Any]) -> bool:
    """Whether nothing is left to do for a run.

    Args:
        directory: The run.
        settings: How far it is to go, which may be further than its config.toml says.

    Returns:
        Whether no round is left to train and the newest model is exported.

    Raises:
        RunError: metrics.jsonl is damaged.
    """
    if not directory.has_the_newest_model:
        return False
    if flattened(settings).get(TARGET) is None:  # then the newest record tells, and alone is read
        return ending(settings, [{"round": directory.rounds_done}]) is not None
    return ending(settings, directory.metrics()) is not None


def ending(settings: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]]) -> Ending | None:
    """Why a run has no round left to train.

    Args:
        settings: Nested, or under dotted names. A run without a number of rounds has none left.
        metrics: Its records, the newest last.

    Returns:
        "target" if the newest evaluation came to the accuracy at which the run was to stop,
        "rounds" if the newest round is the last one planned, None if the run is to go on.
    """
    if not metrics:
        return None
    known = flattened(settings)
    evaluated = (record for record in reversed(metrics) if "test_accuracy" in record)
    if reached(known.get(TARGET), next(evaluated, None)):
        return "target"
    planned = known.get(ROUNDS)
    return "rounds" if planned is None or metrics[-1]["round"] >= planned else None


def reached(target: float | None, evaluated: Mapping[str, Any] | None) -> bool:
    """Whether an evaluation came to the accuracy at which a run is to stop.

    Args:
        target: That accuracy; None if there is none.
        evaluated: The record of the newest evaluation; None before the first.

    Returns:
        Whether there is a target, and the recorded test accuracy is no lower.
    """
    accuracy = None if evaluated is None else evaluated.get("test_accuracy")
    return target is not None and accuracy is not None and bool(accuracy >= target)
