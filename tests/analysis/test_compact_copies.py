"""Small copies of runs say the same as the runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fedvarp.analysis import compact, compare, formatted, plot, read_runs
from fedvarp.analysis.groups import XAxis
from fedvarp.experiments.build import build
from fedvarp.experiments.files import load_settings
from fedvarp.experiments.resuming import resume, resumed_settings
from fedvarp.experiments.sweep import Grid, Sweep
from fedvarp.runs.directory import RunDirectory
from fedvarp.runs.errors import RunError
from some_runs import write_run


def contents(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_comparisons_come_out_the_same(real_runs: Path, tmp_path: Path) -> None:
    copies = compact([real_runs], tmp_path)
    assert sorted(copies) == sorted(tmp_path / "mine" / run.name for run in real_runs.iterdir())
    assert formatted(compare([real_runs])) == formatted(compare([tmp_path / "mine"]))


@pytest.mark.parametrize("x", ["rounds", "bytes"])
def test_figures_come_out_the_same(real_runs: Path, tmp_path: Path, x: XAxis) -> None:
    pytest.importorskip("matplotlib", reason="the extra fedvarp[plots] is not installed")
    (tmp_path / "copies").mkdir()
    compact(sorted(real_runs.iterdir()), tmp_path / "copies")
    one = plot([real_runs], tmp_path / "one.svg", x=x)
    other = plot([tmp_path / "copies"], tmp_path / "other.svg", x=x)
    assert one.read_bytes() == other.read_bytes()


def test_what_lies_between_evaluations_is_summed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [0.1, None, 0.3], train_loss=[3, 2, 1])
    (copy,) = compact([run], tmp_path / "copies")
    first, *later = RunDirectory(copy).metrics()
    assert first == {"round": 0, "num_clients": 4, "test_accuracy": 0.1, "train_loss": 3}
    sums = {"bytes_down": 2000, "bytes_up": 1000}
    assert later == [
        sums | {"round": 10, "server_bytes": 1010, "test_accuracy": None, "train_loss": 2},
        sums | {"round": 20, "server_bytes": 1020, "test_accuracy": 0.3, "train_loss": 1},
    ]
    assert [line["seconds"] for line in RunDirectory(copy).timings()] == [2, 20, 20]
    assert not (copy / "checkpoint").exists()


def test_steps_are_summed_and_versions_kept(real_runs: Path, tmp_path: Path) -> None:
    run = real_runs / "fedavg-0"
    (copy,) = compact([run], tmp_path)
    steps, kept = (
        [record.get("num_steps", 0) for record in RunDirectory(path).metrics()]
        for path in (run, copy)
    )
    assert kept == [sum(steps[:1]), *(sum(steps[t - 4 : t + 1]) for t in (5, 10, 15, 20))]
    assert (copy / "versions.json").read_bytes() == (run / "versions.json").read_bytes()


def test_the_most_that_the_server_held_is_kept(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [0.1, 0.2])
    file = RunDirectory(run).metrics_file
    file.write_text(file.read_text().replace('"server_bytes": 1004', '"server_bytes": 9999'))
    (copy,) = compact([run], tmp_path / "copies")
    assert RunDirectory(copy).metrics()[-1]["server_bytes"] == 9999


def test_rounds_that_were_not_timed_leave_no_times(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [0.1, 0.2])
    compact([run], tmp_path / "copies")
    (run / "timings.jsonl").unlink()
    (copy,) = compact([run], tmp_path / "copies")
    assert read_runs([copy])[0][0].elapsed is None


def test_a_copy_follows_its_run_and_takes_the_place_of_nothing_else(tmp_path: Path) -> None:
    shorter = write_run(tmp_path / "a" / "run", [0.1, 0.2])
    longer = write_run(tmp_path / "b" / "run", [0.1, 0.2, 0.3])
    other = write_run(tmp_path / "c" / "run", [0.1, 0.2], lr=0.5)
    copies = tmp_path / "copies"
    (copy,) = compact([shorter], copies)
    assert compact([longer], copies) == [copy]
    assert len(RunDirectory(copy).metrics()) == 3
    before = RunDirectory(copy).metrics_file.read_bytes()
    with pytest.raises(RunError, match=r"another run than .*local_sgd\.lr = 0\.1 \(now 0\.5\)"):
        compact([other], copies)
    with pytest.raises(RunError, match="would both be copied"):
        compact([shorter, other], tmp_path / "new")
    assert not (tmp_path / "new").exists()
    assert RunDirectory(copy).metrics_file.read_bytes() == before


def test_a_longer_copy_is_not_lost(tmp_path: Path) -> None:
    longer = write_run(tmp_path / "a" / "run", [0.1, 0.2, 0.3])
    shorter = write_run(tmp_path / "b" / "run", [0.1, 0.2])
    compact([longer], tmp_path / "copies")
    before = contents(tmp_path / "copies")
    with pytest.raises(RunError, match="has 20 rounds, more than the 10 of"):
        compact([shorter], tmp_path / "copies")
    assert contents(tmp_path / "copies") == before


@pytest.mark.parametrize("left", [("checkpoint",), ("model.safetensors",), ()])
def test_a_run_is_never_overwritten(real_runs: Path, tmp_path: Path, left: tuple[str, ...]) -> None:
    """Nor one whose checkpoint and model were deleted to save space."""
    mine = tmp_path / "mine"
    shutil.copytree(real_runs, mine)
    for run in mine.iterdir():
        if "checkpoint" not in left:
            shutil.rmtree(run / "checkpoint")
        if "model.safetensors" not in left:
            (run / "model.safetensors").unlink()
    before = contents(tmp_path)
    with pytest.raises(RunError, match="would be copied onto itself"):
        compact([mine], tmp_path)
    with pytest.raises(RunError, match="holds a run, not a copy of one"):
        compact([real_runs], tmp_path)
    assert contents(tmp_path) == before


def test_a_run_that_is_about_to_begin_is_not_overwritten(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [0.1, 0.2])
    RunDirectory(tmp_path / "soon" / "run").create(RunDirectory(run).settings())
    with pytest.raises(RunError, match="holds a run, not a copy of one"):
        compact([run], tmp_path / "soon")


def test_a_copy_is_not_copied_onto_itself(tmp_path: Path) -> None:
    (copy,) = compact([write_run(tmp_path / "run", [0.1, 0.2])], tmp_path / "copies")
    before = contents(copy)
    with pytest.raises(RunError, match="would be copied onto itself"):
        compact([copy], copy.parent)
    assert contents(copy) == before


@pytest.mark.parametrize("out", [".", "runs", "runs/kept", "runs/a/kept"])
def test_copies_do_not_go_among_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str
) -> None:
    write_run(tmp_path / "runs" / "a", [0.1, 0.2])
    monkeypatch.chdir(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(RunError, match="lies within"):
        compact([tmp_path if out == "." else "runs"], out)
    assert contents(tmp_path) == before


def test_a_file_in_the_way(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, [0.1, 0.2], lr=lr) for name, lr in (("a", 1), ("b", 2))]
    (tmp_path / "copies").mkdir()
    (tmp_path / "copies" / "b").touch()
    with pytest.raises(RunError, match="copies/b is a file"):
        compact(runs, tmp_path / "copies")
    assert not (tmp_path / "copies" / "a").exists()
    with pytest.raises(RunError, match="copies/b is a file"):
        compact(runs, tmp_path / "copies" / "b")


def test_where_copies_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "runs" / "a", [0.1, 0.2])
    (tmp_path / "best").symlink_to(run)
    monkeypatch.chdir(run)
    copies = Path("../../copies")
    assert compact(["."], copies) == [copies / "a"]
    assert compact([".."], copies) == [copies / "runs" / "a"]
    assert compact(["../../best/"], copies) == [copies / "best"]
    twice = [str(run), "..", f"{run}/", "../../best"]
    assert compact(twice, "../../once") == [Path("../../once/a")]


def test_an_interrupted_run_is_as_unfinished_as_it_was(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [0.1, 0.2, 0.3])
    for name in ("metrics.jsonl", "timings.jsonl"):
        lines = (run / name).read_text().splitlines(keepends=True)
        (run / name).write_text("".join(lines[:18]))
    (copy,) = compact([run], tmp_path / "copies")
    assert [record["round"] for record in RunDirectory(copy).metrics()] == [0, 10, 17]
    assert [line["seconds"] for line in RunDirectory(copy).timings()] == [2, 20, 14]
    notes, of_copy = (compare([path]).notes for path in (run, copy))
    assert f"{run} is unfinished: round 17 of 20." in notes
    assert [note.replace(str(copy), str(run)) for note in of_copy] == notes


NO_CHECKPOINT = "metrics of 10 rounds but no checkpoint to go on from"


@pytest.fixture
def ten_rounds(tmp_path: Path) -> Path:
    pytest.importorskip("sklearn", reason="the extra fedvarp[digits] is not installed")
    settings = load_settings("digits", ["rounds=10"])
    run = tmp_path / settings.run_name
    build(settings).run(run, progress=False)
    return run


def test_resuming_a_copy_is_refused_and_leaves_it_alone(ten_rounds: Path, tmp_path: Path) -> None:
    (copy,) = compact([ten_rounds], tmp_path / "copies")
    before = contents(copy)
    with pytest.raises(RunError, match=NO_CHECKPOINT):
        resume(copy, ["rounds=20"], progress=False)
    with pytest.raises(RunError, match=NO_CHECKPOINT):
        build(load_settings("digits", ["rounds=20"])).run(copy, resume=True, progress=False)
    assert contents(copy) == before
    assert compact([ten_rounds], tmp_path / "copies") == [copy]


def test_a_sweep_onto_copies_is_refused_and_leaves_them_alone(
    ten_rounds: Path, tmp_path: Path
) -> None:
    compact([ten_rounds], tmp_path / "copies")
    before = contents(tmp_path / "copies")
    with pytest.raises(RunError, match=NO_CHECKPOINT):
        Sweep.prepare(
            "digits", ["rounds=20"], Grid(("fedvarp",), (0.1,), (0,)), tmp_path / "copies"
        )
    assert contents(tmp_path / "copies") == before


def test_a_finished_run_needs_no_checkpoint_until_it_is_to_train_longer(ten_rounds: Path) -> None:
    shutil.rmtree(ten_rounds / "checkpoint")
    assert resumed_settings(ten_rounds).rounds == 10
    with pytest.raises(RunError, match=NO_CHECKPOINT):
        resumed_settings(ten_rounds, ["rounds=20"])
