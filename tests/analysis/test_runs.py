"""Runs as they lie on disk: found, read, empty, damaged, unfinished."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fedvarp.analysis.best_rates import at_best_rates
from fedvarp.analysis.compact_file import compact
from fedvarp.analysis.comparison import compare
from fedvarp.analysis.comparison_tables import Format, formatted
from fedvarp.analysis.overview import about_run, list_runs
from fedvarp.analysis.report.charts import all_charts
from fedvarp.analysis.runs import Run
from fedvarp.runs.directory import RunDirectory
from fedvarp.runs.errors import RunError
from fedvarp.runs.journal import lines_of, read_lines
from hostile_json import any_json
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


FIELDS = (
    *("round", "num_clients", "clients", "by_client", "by_cluster", "server_bytes"),
    *("bytes_up", "num_steps", "num_refused", "num_replies", "refused", "refused_because"),
    *("test_accuracy", "train_loss", "test_auc", "objective", "clipped", "seconds"),
)


@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(line=st.integers(0, 20), field=st.sampled_from(FIELDS), value=any_json)
@example(line=0, field="num_clients", value=10**13)
@example(line=1, field="clients", value=[10**12])
@example(line=0, field="clients", value=[0])
@example(line=20, field="test_accuracy", value=None)
@example(line=10, field="by_client", value={})
@example(line=20, field="train_loss", value=1.7e308)
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")  # means of losses beyond all reason
def test_whatever_a_file_holds_it_is_compared_or_named_with_its_line(
    tmp_path: Path, line: int, field: str, value: object
) -> None:
    shutil.rmtree(tmp_path)
    run = write_run(tmp_path / "x", [0.1, 0.2, 0.3], train_loss=[2.0, 1.0, 0.5])
    write_run(tmp_path / "y", [0.1, 0.2, 0.3], train_loss=[2.0, 1.0, 0.5], seed=1)
    for seed in (0, 1):
        write_run(tmp_path / f"z{seed}", [0.1, 0.2, 0.3], algorithm="fedavg", seed=seed)
    directory = RunDirectory(run)
    for file in (directory.metrics_file, directory.timings_file):
        records = [json.loads(text) for text in file.read_text().splitlines()]
        records[line][field] = value
        file.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    said = ""
    try:
        comparison = compare([tmp_path], beside="fedavg", smooth=2, allow_different=True)
        for format in get_args(Format):
            formatted(comparison, format)
        for chart in all_charts(comparison.groups):
            json.dumps(chart, allow_nan=False)
        at_best_rates(comparison.groups, "best")
        list_runs(tmp_path).text()
        about_run(run)
        compact([tmp_path], tmp_path / "copies")
        compare([tmp_path / "copies"], allow_different=True)
    except RunError as damage:
        said = str(damage)
    # A round too high, or too few clients, are noticed in the line after.
    named = rf"x/metrics\.jsonl is damaged in its line ({line + 1}|{line + 2}) "
    assert not said or re.search(named, said)


def test_copies_of_runs_hold_nothing_that_runs_do_not(tmp_path: Path) -> None:
    run = write_run(tmp_path / "x", [0.1, 0.2])
    copies = compact([run], tmp_path / "copies")
    line = json.loads(copies.read_text())
    for wrong in (
        {"metrics": line["metrics"] | {"test_accuracy": [0.1, 1e308]}},
        {"metrics": line["metrics"] | {"round": [10, 10]}},
        {"metrics": line["metrics"] | {"server_bytes": [0, 10**400]}},
        {"seconds": [1.0, 10**400]},
    ):
        copies.write_text(json.dumps(line | wrong))
        with pytest.raises(RunError, match="or is damaged"):
            compare([copies])
