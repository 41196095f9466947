"""Runs in one small file say the same as the runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedvarp.analysis import Run, compact, compare, formatted, plot, read_runs
from fedvarp.analysis.groups import XAxis
from fedvarp.runs.directory import RunDirectory
from fedvarp.runs.errors import RunError
from some_runs import digits_runs, write_run


@pytest.fixture(scope="module")
def real_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return digits_runs(tmp_path_factory.mktemp("runs") / "mine", ["fedavg", "fedvarp"])


def only_run(file: Path) -> Run:
    ((run,), _) = read_runs([file])
    return run


def names(file: Path) -> list[str]:
    return [json.loads(line)["run"] for line in file.read_text().splitlines()]


def test_comparisons_come_out_the_same(real_runs: Path, tmp_path: Path) -> None:
    file = compact([real_runs], tmp_path / "kept" / "mine.jsonl")
    assert names(file) == sorted(f"mine/{run.name}" for run in real_runs.iterdir())
    assert formatted(compare([real_runs]), "text") == formatted(compare([file]), "text")


@pytest.mark.parametrize("x", ["rounds", "bytes"])
def test_figures_come_out_the_same(real_runs: Path, tmp_path: Path, x: XAxis) -> None:
    pytest.importorskip("matplotlib", reason="the extra fedvarp[plots] is not installed")
    file = compact(sorted(real_runs.iterdir()), tmp_path / "mine.jsonl")
    one = plot([real_runs], tmp_path / "one.svg", x=x)
    other = plot([file], tmp_path / "other.svg", x=x)
    assert one.read_bytes() == other.read_bytes()


def test_what_lies_between_evaluations_is_summed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [0.1, None, 0.3], train_loss=[3, 2, 1])
    copy = only_run(compact([run], tmp_path / "runs.jsonl"))
    first, *later = copy.metrics
    replies = {"num_replies": 0, "num_refused": 0}
    evaluated = {"test_accuracy": 0.1, "train_loss": 3}
    assert first == {"round": 0, "num_clients": 4, **replies, **evaluated}
    sums = {"bytes_down": 2000, "bytes_up": 1000, "num_replies": 20, "num_refused": 0}
    assert later == [
        sums | {"round": 10, "server_bytes": 1010, "test_accuracy": None, "train_loss": 2},
        sums | {"round": 20, "server_bytes": 1020, "test_accuracy": 0.3, "train_loss": 1},
    ]
    assert copy.seconds is not None
    assert copy.seconds.tolist() == [2, 20, 20]


def test_an_evaluation_that_is_nowhere_finite_remains_one(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [None, None], train_loss=[None, None])
    copy = only_run(compact([run], tmp_path / "runs.jsonl"))
    assert copy.rounds.tolist() == [0, 10]
    assert copy.records("test_accuracy")


def test_steps_are_summed_and_settings_and_versions_kept(real_runs: Path, tmp_path: Path) -> None:
    run = Run.read(real_runs / "fedavg-0")
    copy = only_run(compact([run.path], tmp_path / "runs.jsonl"))
    steps = [record.get("num_steps", 0) for record in run.metrics]
    assert [record.get("num_steps", 0) for record in copy.metrics] == [
        sum(steps[:1]),
        *(sum(steps[t - 4 : t + 1]) for t in (5, 10, 15, 20)),
    ]
    assert copy.settings == run.settings
    assert copy.versions == json.loads((run.path / "versions.json").read_text())


def test_the_most_that_the_server_held_is_kept(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [0.1, 0.2])
    file = RunDirectory(run).metrics_file
    file.write_text(file.read_text().replace('"server_bytes": 1004', '"server_bytes": 9999'))
    copy = only_run(compact([run], tmp_path / "runs.jsonl"))
    assert copy.metrics[-1]["server_bytes"] == 9999


def test_rounds_that_were_not_timed_leave_no_times(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [0.1, 0.2])
    (run / "timings.jsonl").unlink()
    assert only_run(compact([run], tmp_path / "runs.jsonl")).elapsed is None


def test_an_interrupted_run_is_as_unfinished_as_it_was(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [0.1, 0.2, 0.3])
    for name in ("metrics.jsonl", "timings.jsonl"):
        lines = (run / name).read_text().splitlines(keepends=True)
        (run / name).write_text("".join(lines[:18]))
    file = compact([run], tmp_path / "runs.jsonl")
    copy = only_run(file)
    assert [record["round"] for record in copy.metrics] == [0, 10, 17]
    assert copy.rounds.tolist() == [0, 10]
    assert copy.seconds is not None
    assert copy.seconds.tolist() == [2, 20, 14]
    notes, of_copy = (compare([path]).notes for path in (run, file))
    assert f"{run} is unfinished: round 17 of 20." in notes
    assert [note.replace(str(copy.path), str(run)) for note in of_copy] == notes


def test_a_compacted_file_can_be_compacted_again(real_runs: Path, tmp_path: Path) -> None:
    one = compact([real_runs], tmp_path / "one.jsonl")
    other = write_run(tmp_path / "other", [0.1, 0.2])
    both = compact([one, other], tmp_path / "both.jsonl")
    assert names(both) == [*names(one), "other"]
    assert both.read_text().startswith(one.read_text())


def test_how_runs_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "runs" / "a", [0.1, 0.2])
    (tmp_path / "best").symlink_to(run)
    monkeypatch.chdir(run)
    assert names(compact(["."], tmp_path / "1.jsonl")) == ["a"]
    assert names(compact([".."], tmp_path / "2.jsonl")) == ["runs/a"]
    assert names(compact(["../../best/"], tmp_path / "3.jsonl")) == ["best"]
    twice = [str(run), "..", f"{run}/", "../../best"]
    assert names(compact(twice, tmp_path / "4.jsonl")) == ["a"]


def test_a_path_into_a_file_names_some_of_its_runs(tmp_path: Path) -> None:
    """As messages name them."""
    for name in ("2/a", "2/b", "20/a"):
        write_run(tmp_path / "runs" / name, [0.1, 0.2], algorithm=name[-1])
    file = compact([tmp_path / "runs"], tmp_path / "runs.jsonl")
    runs, _ = read_runs([file / "runs" / "2", file / "runs" / "2" / "a"])
    assert [run.path for run in runs] == [file / "runs/2/a", file / "runs/2/b"]
    assert [run.path for run in read_runs([file / "runs" / "20" / "a"])[0]] == [file / "runs/20/a"]
    assert names(compact([file / "runs" / "2"], tmp_path / "two.jsonl")) == ["runs/2/a", "runs/2/b"]
    with pytest.raises(RunError, match="holds no run of that name"):
        read_runs([file / "runs" / "3"])


def test_two_runs_do_not_share_a_name(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / folder / "run", [0.1, 0.2]) for folder in ("a", "b")]
    with pytest.raises(RunError, match="both be called run"):
        compact(runs, tmp_path / "runs.jsonl")
    assert not (tmp_path / "runs.jsonl").exists()


def test_a_file_follows_its_runs(tmp_path: Path) -> None:
    shorter = write_run(tmp_path / "a" / "run", [0.1, 0.2])
    longer = write_run(tmp_path / "b" / "run", [0.1, 0.2, 0.3])
    file = compact([shorter], tmp_path / "runs.jsonl")
    another = write_run(tmp_path / "another", [0.1, 0.2])
    assert compact([longer, another], file) == file
    assert [run.last_round for run in read_runs([file])[0]] == [20, 10]


@pytest.mark.parametrize(
    "instead",
    [{"accuracy": [0.1, 0.2]}, {"lr": 0.5}, {"path": "another"}],
    ids=["shorter", "other settings", "not at all"],
)
def test_nothing_that_a_file_holds_is_lost(tmp_path: Path, instead: dict[str, Any]) -> None:
    file = compact([write_run(tmp_path / "run", [0.1, 0.2, 0.3])], tmp_path / "runs.jsonl")
    before = file.read_bytes()
    usual = {"path": "run", "accuracy": [0.1, 0.2, 0.3]} | instead
    other = write_run(tmp_path / "b" / usual.pop("path"), **usual)
    with pytest.raises(RunError, match="holds round 20 of run, which would be lost"):
        compact([other], file)
    assert file.read_bytes() == before


def test_nothing_but_compacted_runs_is_replaced(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [0.1, 0.2])
    for there in (run / "metrics.jsonl", run / "config.toml"):
        before = there.read_bytes()
        with pytest.raises(RunError, match="is not a file of compacted runs"):
            compact([run], there)
        assert there.read_bytes() == before
    with pytest.raises(RunError, match="is a directory"):
        compact([run], tmp_path)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    file = compact([write_run(tmp_path / "run", [0.1, 0.2])], tmp_path / "runs.jsonl")
    file.write_text(file.read_text()[:-20])
    with pytest.raises(RunError, match=r"runs\.jsonl .*is damaged"):
        compare([file])
