"""When two runs are the same, and what is said where they are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedvarp.runs.directory import RunDirectory
from fedvarp.runs.errors import RunError
from fedvarp.runs.identity import (
    MAY_CHANGE,
    differences,
    flattened,
    lasting,
    nested,
    refuse_edited_settings,
    refuse_other_settings,
    with_choice_of_auto,
)

SETTINGS: dict[str, Any] = {
    "algorithm": "fedvarp",
    "rounds": 6,
    "trainer": {"name": "sequential", "threads": 1},
    "local_sgd": {"lr": 0.1, "schedule": {"name": "cosine"}},
    "sizes": [3, 4],
}


def test_nested_settings_and_dotted_names_are_two_ways_to_say_the_same() -> None:
    flat = flattened(SETTINGS)
    assert flat["local_sgd.schedule.name"] == "cosine"
    assert nested(flat) == SETTINGS
    assert flattened(flat) == flat


def test_what_is_none_is_not_set_and_tuples_are_lists() -> None:
    assert differences(SETTINGS, {**SETTINGS, "sizes": (3, 4), "loss": None, "seed": None}) == []


def test_a_run_is_the_same_however_long_and_whoever_trains() -> None:
    told: dict[str, Any] = {
        "rounds": 9,
        "evaluation.target_accuracy": 0.5,
        "trainer.name": "parallel",
        "trainer.workers": 2,
        "trainer.auto": "why",
        "recording.commit_every": 5,
        "recording.fsync": False,
        "recording.keep_checkpoints": 5,
        "recording.tensorboard": "board",
        "recording.mlflow": "sqlite:///mlflow.db",
        "recording.wandb": "mine",
    }
    assert told.keys() == MAY_CHANGE
    longer = nested(flattened(SETTINGS) | told)
    assert differences(SETTINGS, longer) == []
    assert lasting(longer) == lasting(SETTINGS)


def test_each_difference_is_named_with_both_values() -> None:
    now = {**SETTINGS, "local_sgd": {"lr": 0.2}, "seed": 1}
    assert differences(SETTINGS, now) == [
        "local_sgd.lr = 0.1 (now 0.2)",
        "local_sgd.schedule.name = cosine (now not set)",
        "seed = not set (now 1)",
    ]


@pytest.mark.parametrize(
    ("before", "now", "same"),
    [
        ({"name": "sequential"}, {"name": "parallel"}, True),
        ({"name": "sequential"}, {"name": "vectorised"}, False),
        ({"name": "vectorised"}, {"name": "parallel"}, False),
        ({"name": "vectorised"}, {"name": "vectorised"}, True),
        ({"name": "vectorised"}, {"name": "auto"}, False),  # it might choose another
        ({"name": "vectorised", "auto": "why"}, {"name": "auto"}, True),  # it has chosen
        ({"name": "sequential", "threads": 2}, {"name": "parallel", "threads": 2}, False),
        ({"name": "sequential", "threads": 1}, {"name": "parallel", "threads": 1}, True),
        ({"name": "parallel", "exact": False}, {"name": "parallel", "exact": False}, True),
        ({"name": "parallel", "exact": False}, {"name": "sequential", "exact": False}, False),
        (
            {"name": "parallel", "exact": False, "workers": 2},
            {"name": "parallel", "exact": False, "workers": 3},
            False,
        ),
    ],
)
def test_another_trainer_is_the_same_run_if_it_gives_the_same_bits(
    before: dict[str, Any], now: dict[str, Any], same: bool
) -> None:
    assert (differences({"trainer": before}, {"trainer": now}) == []) is same


def test_other_settings_are_refused_and_named(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.create(SETTINGS)
    refuse_other_settings(run, {**SETTINGS, "rounds": 9})
    with pytest.raises(RunError, match=r"algorithm = fedvarp \(now mifa\).*another directory"):
        refuse_other_settings(run, {**SETTINGS, "algorithm": "mifa"})


def test_settings_edited_since_the_checkpoint_are_refused_but_new_names_may_join(
    tmp_path: Path,
) -> None:
    run, committed = RunDirectory(tmp_path), lasting(SETTINGS)
    refuse_edited_settings(run, committed, lasting({**SETTINGS, "seed": 0}))
    refuse_edited_settings(run, committed, lasting({**SETTINGS, "rounds": 9}))
    with pytest.raises(RunError, match=r"algorithm = fedvarp \(now mifa\).*edited"):
        refuse_edited_settings(run, committed, lasting({**SETTINGS, "algorithm": "mifa"}))


@pytest.mark.parametrize(
    ("recorded", "told", "trainer"),
    [
        ({"name": "vectorised", "workers": 2, "auto": "why"}, "auto", "vectorised"),
        ({"name": "vectorised", "workers": 2, "auto": "why"}, "parallel", "parallel"),
        ({"name": "auto"}, "auto", "auto"),
        ({"name": "auto", "auto": "why it had chosen"}, "auto", "auto"),
        ({"name": "vectorised"}, "auto", "auto"),  # auto has not chosen it
    ],
)
def test_auto_is_told_once_what_it_has_chosen(
    recorded: dict[str, Any], told: str, trainer: str
) -> None:
    settings = {**SETTINGS, "trainer": {"name": told, "exact": True}}
    going_on = with_choice_of_auto(settings, {"trainer": recorded})
    chosen = recorded if trainer == "vectorised" else {}
    assert going_on == {**settings, "trainer": {"name": trainer, "exact": True, **chosen}}
