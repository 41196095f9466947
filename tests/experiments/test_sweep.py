"""Sweeps: what they try, that they go on, and how they choose."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedvarp.cli.app import app
from fedvarp.experiments.build import build
from fedvarp.experiments.files import load_settings
from fedvarp.experiments.resuming import resume
from fedvarp.experiments.sweep import Sweep
from fedvarp.experiments.sweep_engines import LocalEngine, Outcome, make_engine
from fedvarp.experiments.sweep_grid import PAPER_GRID, Grid
from fedvarp.experiments.sweep_result import SweepResult, SweptRun
from fedvarp.runs.directory import RunDirectory
from fedvarp.runs.errors import RunError
from fedvarp.settings.problems import SettingsError
from waiting import lines_of, wait_for

SMALL = Grid(("fedavg", "fedvarp"), (0.1, 0.01))


class InThisProcess:
    """An engine without processes; the runs are real."""

    def __init__(self) -> None:
        self.resumed: list[str] = []

    def run(
        self, directories: Sequence[Path], stop: Callable[[], bool]
    ) -> Iterator[Outcome | None]:
        for directory in directories:
            resume(directory, progress=False)
            self.resumed.append(directory.name)
            yield Outcome(directory)


def swept(
    algorithm: str, lr: float, values: Sequence[float | None], seed: int = 0, **changes: object
) -> SweptRun:
    metric = str(changes.pop("metric", "test_accuracy"))
    given = {
        "directory": Path(f"{algorithm}-{lr}-{seed}"),
        "rounds": len(values),
        "finished": True,
        "error": None,
        "metrics": [{"round": t, metric: value} for t, value in enumerate(values)],
    }
    return SweptRun(algorithm=algorithm, client_lr=lr, seed=seed, **(given | changes))  # type: ignore[arg-type]


def result(*runs: SweptRun) -> SweepResult:
    rates = list(dict.fromkeys(run.client_lr for run in runs))
    return SweepResult(Path("out"), runs, rates, interrupted=False)


# What is tried


def test_the_default_grid_is_the_papers() -> None:
    assert pytest.approx([0.1, 0.0316228, 0.01, 0.00316228, 0.001]) == list(PAPER_GRID)
    typed = Grid.parse("fedavg", "10^-1,10^-1.5,10^-2,10^-2.5,10^-3", "0")
    assert typed.client_lrs == PAPER_GRID
    assert Grid.parse("fedavg, mifa", "1e-1", "3,4") == Grid(("fedavg", "mifa"), (0.1,), (3, 4))


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        (("fedavg", "0.1,fast", "0"), "numbers separated by commas"),
        (("fedavg", "0.1", "0.5"), "numbers separated by commas"),
        (("fedavg", "0.1,10^400", "0"), r"10\^400 is too large"),
        (("fedavg", "0^-1", "0"), "power of 0 to less than 0"),
        (("fedavg", "0.1,1e-1", "0"), "that differ"),
        (("fedavg", "", "0"), "at least one"),
    ],
)
def test_wrong_grids_are_refused(texts: tuple[str, str, str], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        Grid.parse(*texts)


def test_everything_is_checked_before_a_directory_is_made(config: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for overrides, grid, sentence in (
        ([], Grid(("fedavg", "sgd")), "'sgd' is no algorithm"),
        ([], Grid(("none",)), "'none' is no algorithm"),
        ([], Grid(("fedavg",), (0.1, -0.1)), "greater than 0"),
        (["seed=3"], SMALL, "by --seeds"),
        (["client_lr=3"], SMALL, "by --client-lrs"),
        (["evaluation.target_accuracy=0.5"], SMALL, "evaluation.target_accuracy=none"),
        (["clients_per_round=500"], SMALL, "500"),  # known only with the data, as is the next
        (["table.clusters=auto:500"], SMALL, "cannot form 500 clusters"),
        (["table.rows=last_layer"], Grid(("fedavg", "mifa")), "mifa.*leave out rows"),
        ([], Grid(("fedavg", "cluster_fedvarp")), "The clusters of clients are not known"),
    ):
        with pytest.raises(SettingsError, match=sentence):
            Sweep.prepare(config, overrides, grid, out)
    assert not out.exists()


def test_every_run_has_a_directory_that_says_what_it_is(config: Path, tmp_path: Path) -> None:
    Sweep.prepare(config, [], Grid(("mifa",), (0.1, 10**-1.5), (0, 7)), tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "small-mifa-lr0.0316228-seed0",
        "small-mifa-lr0.0316228-seed7",
        "small-mifa-lr0.1-seed0",
        "small-mifa-lr0.1-seed7",
    ]
    one = RunDirectory(tmp_path / "out" / "small-mifa-lr0.0316228-seed7").settings()
    assert (one["algorithm"], one["local_sgd"]["lr"], one["seed"]) == ("mifa", 10**-1.5, 7)


# That it goes on


def test_finished_runs_are_not_repeated_and_others_go_on(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three of the four runs get ready by hand: finished, half-way, made; the fourth is missing."""
    out = tmp_path / "out"
    settings = {
        name: load_settings(config, [f"algorithm={name}", "local_sgd.lr=0.1"])
        for name in ("fedavg", "fedvarp")
    }
    build(settings["fedavg"]).run(out / settings["fedavg"].run_name)
    half = settings["fedvarp"].model_copy(update={"rounds": 3})
    build(half).run(out / half.run_name)
    RunDirectory(out / half.run_name).write_settings(settings["fedvarp"].as_toml())

    first = InThisProcess()
    told: list[tuple[int, int]] = []
    done = Sweep.prepare(config, [], SMALL, out).run(first, lambda *so_far: told.append(so_far))
    assert first.resumed == [
        "small-fedavg-lr0.01-seed0",
        "small-fedvarp-lr0.1-seed0",
        "small-fedvarp-lr0.01-seed0",
    ]
    assert all(run.finished for run in done.runs)
    build(settings["fedvarp"]).run(tmp_path / "calm")
    metrics = [folder / "metrics.jsonl" for folder in (out / half.run_name, tmp_path / "calm")]
    assert metrics[0].read_bytes() == metrics[1].read_bytes()

    assert told[-1] == (4, 24)  # four runs of six rounds
    assert told == sorted(told)

    again = InThisProcess()
    monkeypatch.setattr(
        "fedvarp.experiments.build.build", lambda *_: pytest.fail("nothing is left")
    )
    assert Sweep.prepare(config, [], SMALL, out).run(again).as_json() == done.as_json()
    assert again.resumed == []


def test_a_sweep_can_be_prolonged_but_not_changed(config: Path, tmp_path: Path) -> None:
    out, grid = tmp_path / "out", Grid(("fedavg",), (0.1,))
    Sweep.prepare(config, [], grid, out).run(InThisProcess())
    longer = Sweep.prepare(config, ["rounds=9"], grid, out).run(InThisProcess())
    assert [run.rounds for run in longer.runs] == [9]
    with pytest.raises(RunError, match=r"9 rounds already.*directory of its own"):
        Sweep.prepare(config, ["rounds=6"], grid, out)
    with pytest.raises(RunError, match=r"local_sgd\.batch_size = 10"):
        Sweep.prepare(config, ["rounds=9", "local_sgd.batch_size=5"], grid, out)


FAILING = """
from fedvarp import FedAvg

class Failing(FedAvg):
    def aggregate(self, updates):
        raise ValueError("It fails in its first round.")
"""


def test_processes_give_the_same_bits_and_a_failure_stops_no_other(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "failing_algorithm.py").write_text(FAILING)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    out = tmp_path / "out"
    grid = ["--algorithms", "fedavg,failing_algorithm:Failing", "--client-lrs", "0.1"]
    place = ["--out", str(out), "--jobs", "2"]
    ended = CliRunner().invoke(app, ["sweep", str(config), *grid, *place])
    assert ended.exit_code == 1
    assert "Failing-lr0.1-seed0 failed: It fails in its first round." in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "1 of 2 runs are not finished" in ended.stdout
    written = json.loads((out / "sweep.json").read_text())
    assert [run["status"] for run in written["runs"]] == ["finished", "failed"]
    assert list(written["best"]) == ["fedavg"]

    settings = load_settings(config, ["algorithm=fedavg"])
    build(settings).run(tmp_path / "alone")
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (out / settings.run_name / name).read_bytes() == (
            tmp_path / "alone" / name
        ).read_bytes()


def test_ctrl_c_finishes_rounds_and_the_same_command_goes_on(config: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    rounds = ["--set", "rounds=100000", "--set", "evaluation.every=10000"]
    command = ["sweep", str(config), "--algorithms", "fedavg,fedvarp,mifa", "--client-lrs", "0.1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "fedvarp.cli", *command, *rounds, "--jobs", "2", "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    runs = [out / f"small-{name}-lr0.1-seed0" for name in ("fedavg", "fedvarp", "mifa")]
    try:
        wait_for(lambda: all(lines_of(run / "metrics.jsonl") > 5 for run in runs[:2]))
        process.send_signal(signal.SIGINT)
        text, err = process.communicate(timeout=60)
    finally:
        end(process)
    assert process.returncode == 130, err
    assert "The same command again goes on" in err
    assert "failed" not in err
    assert "3 of 3 runs are not finished" in text
    statuses = json.loads((out / "sweep.json").read_text())["runs"]
    assert [run["status"] for run in statuses] == ["unfinished"] * 3
    assert statuses[0]["rounds"] >= 5
    assert statuses[2]["rounds"] == 0  # never begun
    for run in runs[:2]:
        resumed = resume(run, [f"rounds={lines_of(run / 'metrics.jsonl') + 1}"], progress=False)
        assert resumed.stopped == "rounds"  # they were left whole, and in use by nobody


def test_a_killed_sweep_leaves_no_run_going(config: Path, tmp_path: Path) -> None:
    run = tmp_path / "out" / "small-fedavg-lr0.1-seed0"
    command = ["sweep", str(config), "--algorithms", "fedavg", "--client-lrs", "0.1", "-q"]
    rounds = ["--set", "rounds=100000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "fedvarp.cli", *command, *rounds, "--out", str(run.parent)]
    )
    try:
        wait_for(lambda: lines_of(run / "metrics.jsonl") > 5)
    finally:
        process.kill()
        process.wait()
    wait_for(lambda: (run / "model.safetensors").exists())  # it stops as if by Ctrl-C
    resumed = resume(run, [f"rounds={lines_of(run / 'metrics.jsonl') + 1}"], progress=False)
    assert resumed.stopped == "rounds"


class Idle:
    """An engine that reports again and again and trains nothing."""

    def run(
        self, directories: Sequence[Path], stop: Callable[[], bool]
    ) -> Iterator[Outcome | None]:
        yield from [None] * 5


def test_runs_found_finished_are_not_looked_at_again(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = Sweep.prepare(config, [], SMALL, tmp_path / "out")
    finished, looked_at = sweep.runs[1][0], []

    def look(directory: RunDirectory, settings: Mapping[str, Any]) -> bool:
        looked_at.append(directory.path)
        return directory.path == finished

    monkeypatch.setattr("fedvarp.experiments.sweep.is_finished", look)
    assert [run.finished for run in sweep.run(Idle()).runs] == [False, True, False, False]
    assert looked_at.count(finished) == 1
    assert looked_at.count(sweep.runs[0][0]) == 6


# How it chooses


def test_the_best_rate_has_the_highest_mean_over_the_last_fifth_of_evaluations() -> None:
    """Ten evaluations: the last two count. 0.1 peaks higher, but earlier."""
    peaks = [0.0, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.5, 0.5]
    steady = [0.0] * 8 + [0.6, 0.7]
    chosen = result(swept("a", 0.1, peaks), swept("a", 0.03, steady), swept("a", 0.01, [0.0] * 10))
    assert chosen.best["a"].client_lr == 0.03
    assert chosen.best["a"].mean == pytest.approx(0.65)
    assert chosen.best["a"].try_next is None
    assert "highest mean over seeds of test_accuracy" in chosen.rule


def test_seeds_are_averaged_and_all_must_have_finished() -> None:
    lucky = [swept("a", 0.1, [0.9], 0), swept("a", 0.1, [0.1], 1)]  # mean 0.5
    even = [swept("a", 0.01, [0.6], 0), swept("a", 0.01, [0.7], 1)]
    incomplete = [swept("a", 0.001, [0.99], 0), swept("a", 0.001, [0.99], 1, finished=False)]
    best = result(*lucky, *even, *incomplete).best["a"]
    assert best.client_lr == 0.01
    assert best.mean == pytest.approx(0.65)
    assert best.std == pytest.approx(0.1 / math.sqrt(2))  # of two values 0.1 apart


def test_without_accuracy_the_lowest_loss_decides_and_null_is_the_worst() -> None:
    runs = [
        swept("a", 1.0, [3.0, None], metric="train_loss"),  # diverged
        swept("a", 0.1, [3.0, 1.0], metric="train_loss"),
        swept("a", 0.01, [3.0, 2.0], metric="train_loss"),
        swept("b", 1.0, [3.0, None], metric="train_loss"),
        swept("b", 0.1, [3.0, None], metric="train_loss"),
        swept("b", 0.01, [3.0, None], metric="train_loss"),
    ]
    chosen = result(*runs)
    assert chosen.best["a"].client_lr == 0.1
    assert "b" not in chosen.best
    assert "lowest mean over seeds of train_loss" in chosen.rule
    assert json.loads(json.dumps(chosen.as_json(), allow_nan=False))["runs"][0]["figure"] is None


def test_a_run_that_learned_nothing_is_marked_and_never_best() -> None:
    """Its figure is the highest: a lucky accuracy of a model that no reply has moved."""
    stuck: list[dict[str, object]] = [{"round": 0, "test_accuracy": 0.3}]
    stuck += [{"round": 1, "clients": [], "refused": {"2": "not finite"}, "test_accuracy": 0.3}]
    chosen = result(
        swept("a", 10.0, [], metrics=stuck),
        swept("a", 0.1, [0.1, 0.2]),
        swept("b", 10.0, [], metrics=stuck),
        swept("b", 0.1, [], metrics=stuck),
    )
    assert chosen.best["a"].client_lr == 0.1
    assert "b" not in chosen.best
    assert chosen.text().splitlines()[1:3] == ["a            0.3!  0.2*", "b            0.3!  0.3!"]
    assert "nothing was learned in 3 of 4 runs" in chosen.text()
    told = chosen.as_json()["runs"]
    assert [run["nothing_learned"] is None for run in told] == [False, True, False, False]
    assert [run["refused"] for run in told] == [1, 0, 1, 1]


@pytest.mark.parametrize(("at", "beyond"), [(0.1, 0.2), (0.001, 0.0001)])
def test_a_best_rate_at_the_edge_of_the_grid_is_pointed_out(at: float, beyond: float) -> None:
    grid = [0.1, 0.05, 0.01, 0.001]  # each edge has its own distance to its neighbour
    chosen = result(*(swept("a", lr, [0.9 if lr == at else 0.5]) for lr in grid))
    assert chosen.best["a"].try_next == pytest.approx(beyond)
    assert f"a: the best rate, {at}, lies at the edge of the grid" in chosen.text()
    assert f"Try {beyond:g} too" in chosen.text()


def test_a_grid_of_one_rate_has_no_edge() -> None:
    assert result(swept("a", 0.1, [0.5])).best["a"].try_next is None


def test_the_table_stars_the_best() -> None:
    text = result(
        swept("fedavg", 0.1, [0.25]),
        swept("fedavg", 0.01, [0.5]),
        swept("mifa", 0.1, [0.75]),
        swept("mifa", 0.01, [0.5], finished=False),
    ).text()
    assert text.splitlines()[:3] == [
        "client rate    0.1  0.01",
        "fedavg        0.25  0.5*",
        "mifa         0.75*     –",
    ]


# Engines


def test_an_address_needs_ray() -> None:
    with pytest.raises(ValueError, match="--engine ray"):
        make_engine("local", 1, "auto", None)


@pytest.mark.parametrize(
    ("number", "sentence"),
    [(signal.SIGKILL, "SIGKILL"), (signal.SIGTERM, "it was interrupted, though the sweep was not")],
)
def test_a_process_ended_by_others_is_reported_as_such(
    config: Path, tmp_path: Path, number: int, sentence: str
) -> None:
    """The engine's own process is ended from outside, as the system does when memory runs out."""
    long = ["rounds=100000", "trainer=sequential"]
    sweep = Sweep.prepare(config, long, Grid(("fedavg",), (0.1,)), tmp_path / "out")
    outcomes: list[Outcome | None] = []
    sent = False  # a second one might meet a process that is past its last round
    for outcome in LocalEngine(jobs=1).run([path for path, _ in sweep.runs], lambda: False):
        if not sent and lines_of(sweep.runs[0][0] / "metrics.jsonl") > 3:
            for child in children_of_this_process():
                if "sweep_worker" in child.read_text():
                    os.kill(int(child.parent.name), number)
                    sent = True
        outcomes.append(outcome)
    assert outcomes[-1] is not None
    assert sentence in (outcomes[-1].error or "no error")


def end(process: subprocess.Popen[str]) -> None:
    """Ctrl-C twice, if it still runs: killed outright it could not end its own processes."""
    for _ in range(2):
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            time.sleep(1)
    process.kill()


def children_of_this_process() -> list[Path]:
    found = Path("/proc/self/task").glob("*/children")
    numbers = [number for file in found for number in file.read_text().split()]
    return [Path("/proc") / number / "cmdline" for number in numbers]
