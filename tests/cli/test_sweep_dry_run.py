"""`fedvarp sweep --dry-run`, and what a sweep prints where no bar can be drawn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from fedvarp.cli.app import app
from fedvarp.cli.sweep_bar import sweep_bar
from fedvarp.experiments.resuming import resume
from fedvarp.experiments.sweep import Sweep
from fedvarp.experiments.sweep_grid import Grid

RATES = ("--client-lrs", "0.1,0.01", "--set", "rounds=10")


def dry_run(out: Path, *arguments: str) -> Result:
    given = ["sweep", "digits", *RATES, "--out", str(out), "--dry-run", *arguments]
    return CliRunner().invoke(app, given)


def test_it_lists_runs_time_and_memory_and_writes_nothing(tmp_path: Path) -> None:
    ended = dry_run(tmp_path / "sweep", "--algorithms", "fedavg,fedvarp", "--jobs", "3")
    assert ended.exit_code == 0, ended.stderr
    *runs, time, tables, out = ended.stdout.splitlines()
    assert len(runs) == 4
    assert runs[0].startswith("digits-fedavg-lr0.1-seed0")
    assert "no table" in runs[0]
    assert "for 4 runs, 3 at once" in time
    assert tables.startswith("Tables")
    assert "not written" in out
    assert list(tmp_path.iterdir()) == []


def test_as_json_it_adds_up_and_leaves_out_what_is_done(tmp_path: Path) -> None:
    """Digits has 650 parameters and 100 clients: rows of 100 · 650 · 4 bytes, a sum of 650 · 8."""
    grid = Grid(("fedvarp",), (0.1, 0.01))
    sweep = Sweep.prepare("digits", ["rounds=10"], grid, tmp_path / "sweep")
    resume(sweep.runs[0][0], progress=False)
    told = json.loads(
        dry_run(tmp_path / "sweep", "--algorithms", "fedvarp", "--jobs", "1", "--json").stdout
    )
    done, left = told["runs"]
    assert (done["rounds_done"], done["seconds"]) == (10, 0)
    assert left["rounds_done"] == 0
    assert told["seconds"] == pytest.approx(left["seconds"])
    assert left["seconds"] == pytest.approx(told["of_each"]["fedvarp"]["total_seconds"])
    assert told["table_bytes"] == 100 * 650 * 4 + 650 * 8


def test_off_a_terminal_a_sweep_prints_a_line_now_and_then(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two runs of ten rounds; five rounds in 20 s leave 15 for a minute."""
    sweep = Sweep.prepare("digits", ["rounds=10"], Grid(("fedavg",), (0.1, 0.01)), tmp_path)
    now = 0.0
    with sweep_bar(sweep, show=True, clock=lambda: now) as on_progress:
        now = 9.0
        on_progress(0, 2)
        now = 20.0
        on_progress(0, 5)
        on_progress(1, 10)
    assert capsys.readouterr().err == (
        "0 of 2 runs finished, round 5 of 20 in all, about 0:01:00 left\n"
    )
    with sweep_bar(sweep, show=False, clock=lambda: now) as on_progress:
        now = 99.0
        on_progress(1, 10)
    assert capsys.readouterr().err == ""
