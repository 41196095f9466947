"""Runs as they lie on disk: found, read, empty, damaged, unfinished."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedvarp.analysis.comparison import compare
from fedvarp.analysis.comparison_tables import formatted
from fedvarp.analysis.runs import Run
from fedvarp.runs.directory import RunDirectory
from fedvarp.runs.errors import RunError
from fedvarp.runs.journal import lines_of, read_lines
from some_runs import write_run


def test_directories_that_are_no_runs(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="does not exist"):
        compare([tmp_path / "nowhere"])
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="not a file of compacted runs"):
        compare([tmp_path / "file"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match="holds no run"):
        compare([tmp_path / "empty"])
    with pytest.raises(RunError, match="No run was named"):
        compare([])


def test_damaged_files_are_named(tmp_path: Path) -> None:
    run = write_run(tmp_path / "x", [0.1, 0.2])
    metrics = RunDirectory(run).metrics_file
    metrics.write_text('{"round": 0}\n{"round": \n')
    with pytest.raises(RunError, match=r"x/metrics\.jsonl is damaged in its line 2 .*restore it"):
        compare([run])
    with pytest.raises(RunError, match=r"x/metrics\.jsonl is damaged in its last whole line"):
        _ = RunDirectory(run).rounds_done
    for content in (b"rounds = \n", b"\xff"):
        RunDirectory(run).config_file.write_bytes(content)
        with pytest.raises(RunError, match=r"x/config\.toml is damaged .*restore it"):
            RunDirectory(run).settings()


def test_a_run_without_a_round_is_left_out_and_said_so(tmp_path: Path) -> None:
    write_run(tmp_path / "x", [0.1, 0.2])
    RunDirectory(tmp_path / "y").create({"algorithm": "fedavg", "seed": 0})
    RunDirectory(tmp_path / "y").metrics_file.touch()
    comparison = compare([tmp_path])
    assert len(comparison.groups) == 1
    assert any("y is left out" in note for note in comparison.notes)
    with pytest.raises(RunError, match="no round of it"):
        compare([tmp_path / "y"])


def test_unfinished_runs_are_marked(tmp_path: Path) -> None:
    write_run(tmp_path / "x", [0.1, 0.2], settings={"rounds": 500})
    comparison = compare([tmp_path])
    assert "FedVARP *" in formatted(comparison)
    assert any("round 10 of 500" in note for note in comparison.notes)
    # One that was told to stop at an accuracy, and did, is finished.
    stopped = {"rounds": 500, "evaluation": {"target_accuracy": 0.2}}
    write_run(tmp_path / "y", [0.1, 0.2], seed=1, settings=stopped)
    assert compare([tmp_path / "y"]).rows[0].unfinished == []


def test_runs_without_timings_have_no_wall_time(tmp_path: Path) -> None:
    run = write_run(tmp_path / "x", [0.1, 0.2], seconds=None)
    assert compare([run]).rows[0].seconds is None
    RunDirectory(run).timings_file.unlink()
    assert compare([run]).rows[0].seconds is None


def test_edited_figures_are_not_believed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [0.1, 0.2])
    metrics = run / "metrics.jsonl"
    records = read_lines(metrics)
    metrics.write_bytes(lines_of(records, chained=True))
    assert list(Run.read(run).metrics) == records
    metrics.write_bytes(metrics.read_bytes().replace(b"0.2", b"0.9"))
    with pytest.raises(RunError, match=r"metrics\.jsonl is damaged in its line 11 .*was changed"):
        Run.read(run)
