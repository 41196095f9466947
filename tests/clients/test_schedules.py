"""Schedules in settings: ours by name, one's own by import path, and what a run records of them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedvarp import LocalSGD
from fedvarp.clients import Constant, Exponential, Schedule
from fedvarp.experiments.files import load_settings
from fedvarp.settings.problems import SettingsError


@dataclass(frozen=True)
class Steps:
    """Falls by a factor every few rounds."""

    factor: float
    every: int = 10

    def __call__(self, round: int) -> float:
        return float(self.factor ** (round // self.every))


def local(schedule: Schedule) -> LocalSGD:
    return LocalSGD(lr=0.1, batch_size=8, epochs=1, schedule=schedule)


def test_a_run_records_the_constants_of_a_schedule() -> None:
    assert local(Constant()).as_toml()["schedule"] == {"name": "constant"}
    assert local(Exponential(decay=0.5)).as_toml()["schedule"] == {
        "name": "exponential",
        "decay": 0.5,
    }
    recorded = local(Steps(0.5)).as_toml()["schedule"]
    assert recorded == {"name": f"{__name__}:Steps", "factor": 0.5, "every": 10}
    assert recorded != local(Steps(0.1)).as_toml()["schedule"]


def test_a_schedule_of_ones_own_is_named_by_its_import_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_schedules.py").write_text(
        "class Halving:\n    def __init__(self, every: int = 1) -> None:\n"
        "        self.every = every\n    def __call__(self, round):\n"
        "        return 0.5 ** (round // self.every)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    told = "local_sgd.schedule={name='own_schedules:Halving', every=2}"
    schedule = load_settings("digits", [told]).local_sgd.schedule
    assert [schedule(t) for t in range(4)] == [1, 1, 0.5, 0.5]
    sys.modules.pop("own_schedules")


@pytest.mark.parametrize("wrong", ["cosin", "no_such_module:Halving"])
def test_schedules_that_are_none_are_refused(wrong: str) -> None:
    with pytest.raises(SettingsError, match=rf"local_sgd\.schedule = '{wrong}'"):
        load_settings("digits", [f"local_sgd.schedule={wrong}"])
