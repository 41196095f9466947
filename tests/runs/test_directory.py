"""The files of a run, and how one begins."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch

from fedvarp.runs.directory import RunDirectory
from fedvarp.runs.errors import RunError


def test_a_run_begins_with_its_settings_and_versions_and_no_drafts(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "folder" / "run")
    assert not run.exists
    run.create({"rounds": 3, "workers": None, "local_sgd": {"lr": 0.1}})
    assert run.exists
    assert run.settings() == {"rounds": 3, "local_sgd": {"lr": 0.1}}
    found = sorted(file.name for file in run.path.iterdir())
    assert found == [".lock", "config.toml", "versions.json"]


def test_of_two_who_begin_a_run_at_once_one_writes_nothing(tmp_path: Path) -> None:
    first, second = RunDirectory(tmp_path / "run"), RunDirectory(tmp_path / "run")
    with first._claimed():
        with pytest.raises(RunError, match=r"beginning a run.*right now"), second.begun({}):
            pass
        assert [file.name for file in first.path.iterdir()] == [".lock"]
    with first.begun({"rounds": 3}):
        pass
    assert first.settings() == {"rounds": 3}


def test_a_place_that_is_taken_is_refused_and_left_alone(tmp_path: Path) -> None:
    run, file = RunDirectory(tmp_path / "run"), tmp_path / "file"
    run.create({"rounds": 3})
    with pytest.raises(RunError, match=r"holds a run already.*another directory"):
        run.create({"rounds": 4})
    assert run.settings() == {"rounds": 3}
    file.touch()
    with pytest.raises(RunError, match="is a file"):
        RunDirectory(file).create({})


def test_settings_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    with pytest.raises(RunError, match="no run"):
        run.settings()
    run.config_file.write_bytes(b"rounds = \xff\n")
    with pytest.raises(RunError, match=r"config\.toml is damaged.*resume.*restore"):
        run.settings()


def test_settings_are_written_only_if_they_changed(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.create({"rounds": 3})
    os.utime(run.config_file, (0, 0))
    run.update_settings({"rounds": 3, "workers": None})
    assert run.config_file.stat().st_mtime == 0
    run.update_settings({"rounds": 4})
    assert run.settings() == {"rounds": 4}


def test_settings_are_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    code = (
        "import sys; from fedvarp.runs.directory import RunDirectory\n"
        "run = RunDirectory(sys.argv[1])\n"
        "run.write_settings({'name': 'gr\\u00f6\\u00dfer'}); print(ascii(run.settings()['name']))"
    )
    ascii_only = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    said = subprocess.check_output(
        [sys.executable, "-c", code, str(tmp_path)], env={**os.environ, **ascii_only}, text=True
    )
    assert said.strip() == r"'gr\xf6\xdfer'"
    assert "größer" in (tmp_path / "config.toml").read_text(encoding="utf-8")


def test_the_newest_round_is_that_of_the_last_whole_line(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert run.rounds_done == 0
    run.metrics_file.write_text('{"round": 0}\n{"round": 1}\n{"round": 2')
    assert run.rounds_done == 1


def test_rounds_without_a_checkpoint_cannot_be_gone_on_from(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.create({"rounds": 3})
    run.refuse_without_checkpoint()
    run.metrics_file.write_text('{"round": 0}\n{"round": 1}\n')
    with pytest.raises(RunError, match=r"1 rounds.*no checkpoint.*Restore"):
        run.refuse_without_checkpoint()
    run.checkpoint_folder.mkdir()
    run.checkpoint_file.touch()
    run.refuse_without_checkpoint()


def test_the_exported_model_tells_its_round(tmp_path: Path) -> None:
    run, w = RunDirectory(tmp_path), torch.arange(6.0).reshape(2, 3)
    run.metrics_file.write_text('{"round": 0}\n{"round": 1}\n')
    assert not run.has_the_newest_model
    run.export_model({"w": w.T}, after_round=0)
    assert not run.has_the_newest_model
    run.export_model({"w": w.T}, after_round=1)
    assert run.has_the_newest_model
    assert torch.equal(safetensors.torch.load_file(run.model_file)["w"], w.T)


def test_looking_at_runs_loads_no_torch(tmp_path: Path) -> None:
    RunDirectory(tmp_path).create({"rounds": 3})
    code = (
        "import sys, fedvarp.runs as runs\n"
        "for name in runs.__all__: getattr(runs, name)\n"
        "run = runs.RunDirectory(sys.argv[1])\n"
        "runs.is_finished(run, run.settings())\n"
        "runs.RunDirectory(sys.argv[1] + '/another').create({})\n"
        "print('torch' in sys.modules)"
    )
    said = subprocess.check_output([sys.executable, "-c", code, str(tmp_path)], text=True)
    assert said.strip() == "False"


def test_a_place_with_strangers_is_refused_and_left_alone(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt", "c.txt", "d.txt", ".hidden"):
        (tmp_path / name).touch()
    with pytest.raises(RunError, match=r"no run.*a\.txt, b\.txt, c\.txt and 1 more.*new or empty"):
        RunDirectory(tmp_path).create({"rounds": 3})
    assert len(list(tmp_path.iterdir())) == 5


def test_what_a_killed_process_left_before_the_settings_is_no_stranger(tmp_path: Path) -> None:
    for name in ("versions.json", "versions.json.part", "config.toml.part"):
        (tmp_path / name).write_text("{}")
    RunDirectory(tmp_path).create({"rounds": 3})
    assert RunDirectory(tmp_path).settings() == {"rounds": 3}


def test_a_run_that_fails_before_its_first_round_is_taken_back(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "new" / "run")

    def fail_after(lines: str) -> None:
        with run.begun({"rounds": 3}):
            run.metrics_file.write_text(lines)
            run.remember_data_folder(str(tmp_path))
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        fail_after('{"round": 0}\n')
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError, match="full"):
        fail_after('{"round": 0}\n{"round": 1}\n')
    assert run.exists


def test_the_data_folder_is_remembered_while_it_is_there(tmp_path: Path) -> None:
    run, data = RunDirectory(tmp_path / "run"), tmp_path / "data"
    run.create({"rounds": 3})
    assert run.data_folder is None
    data.mkdir()
    run.remember_data_folder(str(data))
    run.remember_data_folder(None)
    assert run.data_folder == str(data)
    data.rmdir()
    assert run.data_folder is None
