"""A run whose checkpoint is gone can be looked at, and is not trained over."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fedvarp.experiments.build import build
from fedvarp.experiments.files import load_settings
from fedvarp.experiments.resuming import resume, resumed_settings
from fedvarp.experiments.sweep import Sweep
from fedvarp.experiments.sweep_grid import Grid
from fedvarp.runs.errors import RunError

NO_CHECKPOINT = "metrics of 10 rounds but no checkpoint to go on from"


@pytest.fixture
def ten_rounds(tmp_path: Path) -> Path:
    pytest.importorskip("sklearn", reason="the extra fedvarp[digits] is not installed")
    settings = load_settings("digits", ["rounds=10"])
    run = tmp_path / settings.run_name
    build(settings).run(run, progress=False)
    shutil.rmtree(run / "checkpoint")
    return run


def contents(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_resuming_is_refused_and_leaves_it_alone(ten_rounds: Path) -> None:
    before = contents(ten_rounds)
    with pytest.raises(RunError, match=NO_CHECKPOINT):
        resume(ten_rounds, ["rounds=20"], progress=False)
    with pytest.raises(RunError, match=NO_CHECKPOINT):
        build(load_settings("digits", ["rounds=20"])).run(ten_rounds, resume=True, progress=False)
    assert contents(ten_rounds) == before


def test_a_sweep_onto_it_is_refused_and_leaves_it_alone(ten_rounds: Path) -> None:
    before = contents(ten_rounds)
    with pytest.raises(RunError, match=NO_CHECKPOINT):
        Sweep.prepare("digits", ["rounds=20"], Grid(("fedvarp",), (0.1,), (0,)), ten_rounds.parent)
    assert contents(ten_rounds) == before


def test_a_finished_run_needs_no_checkpoint_until_it_is_to_train_longer(ten_rounds: Path) -> None:
    assert resumed_settings(ten_rounds).rounds == 10
    with pytest.raises(RunError, match=NO_CHECKPOINT):
        resumed_settings(ten_rounds, ["rounds=20"])
