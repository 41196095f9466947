"""Processes that train the runs of a sweep one after another, and what they report."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedvarp.experiments import resuming
from fedvarp.experiments.files import load_settings
from fedvarp.experiments.sweep_engines import LocalEngine
from fedvarp.experiments.sweep_worker import train_to_the_end
from fedvarp.runs.directory import RunDirectory


def errors_of(engine: LocalEngine, *runs: Path) -> list[str | None]:
    outcomes = engine.run(runs, lambda: False)
    return [outcome.error for outcome in outcomes if outcome is not None]


def test_a_run_is_trained_to_its_end(config: Path, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    run.create(load_settings(config).as_toml())
    assert train_to_the_end(run.path, None) is None
    assert run.rounds_done == 6


def test_errors_are_told_in_a_sentence_and_with_a_traceback_only_if_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("FEDVARP_TRACEBACK", raising=False)
    assert "There is no run" in str(train_to_the_end(tmp_path, None))
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("FEDVARP_TRACEBACK", "1")
    said = str(train_to_the_end(tmp_path, None))
    assert "Traceback" not in said
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("before_the_first_round", [True, False])
def test_an_interruption_is_told_as_one(
    before_the_first_round: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resume(*_: object, **__: object) -> SimpleNamespace:
        if before_the_first_round:
            raise KeyboardInterrupt
        return SimpleNamespace(stopped="interrupted")

    monkeypatch.setattr(resuming, "resume", resume)
    assert "interrupted" in str(train_to_the_end("run", None))


def test_standard_output_holds_the_reports_and_nothing_else() -> None:
    code = (
        "import sys\n"
        "from types import SimpleNamespace\n"
        "from fedvarp.experiments import resuming, sweep_worker\n"
        "def resume(*_, **__):\n"
        "    print('noise', *sys.stdin, flush=True)\n"
        "    return SimpleNamespace(stopped='rounds')\n"
        "resuming.resume = resume\n"
        "sweep_worker.main()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        input='"one"\n"two"\n',
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert [json.loads(line) for line in ended.stdout.splitlines()] == [{"error": None}] * 2
    assert ended.stderr == "noise\n" * 2


def test_the_engine_tells_the_worker_where_the_data_is(tmp_path: Path) -> None:
    run, empty = RunDirectory(tmp_path / "run"), tmp_path / "empty"
    run.create(load_settings("cifar10-lenet5", ["algorithm=fedavg"]).as_toml())
    (error,) = errors_of(LocalEngine(jobs=1, data_dir=empty), run.path)
    assert f"{empty} does not hold them" in str(error)
    assert "Traceback" not in str(error)


def test_a_worker_that_ends_without_a_report_is_told_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "none")  # Python itself refuses to start
    (error,) = errors_of(LocalEngine(jobs=1), tmp_path / "run")
    assert "exit code 1: " in str(error)
    assert "\n" not in str(error)


def test_one_process_trains_run_after_run(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Noted(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **how: Any) -> None:
            super().__init__(*args, **how)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Noted)
    runs = [RunDirectory(tmp_path / name) for name in ("one", "two")]
    for run in runs:
        run.create(load_settings(config).as_toml())
    missing = tmp_path / "missing"
    errors = errors_of(LocalEngine(jobs=1), runs[0].path, missing, runs[1].path)
    assert [error is None for error in errors] == [True, False, True]
    assert [run.rounds_done for run in runs] == [6, 6]
    assert [process.returncode for process in started] == [0]


def test_a_process_that_dies_takes_one_run_with_it(config: Path, tmp_path: Path) -> None:
    """The first run's model ends the process as the system does when memory runs out."""
    (tmp_path / "ends.py").write_text(
        "import os, signal\n\n\ndef net():\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    deadly, sound = RunDirectory(tmp_path / "deadly"), RunDirectory(tmp_path / "sound")
    settings = load_settings(config).as_toml()
    sound.create(settings)
    deadly.create({**settings, "model": {"name": "ends:net"}})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        errors = errors_of(LocalEngine(jobs=1), deadly.path, sound.path)
    assert "SIGKILL" in str(errors[0])
    assert errors[1] is None
    assert sound.rounds_done == 6
