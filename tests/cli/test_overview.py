"""list, show, what Tab offers, and files that build on files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedvarp.cli.app import app
from fedvarp.cli.completion import complete_config, complete_setting
from fedvarp.experiments.files import load_settings
from fedvarp.runs import RunDirectory
from fedvarp.settings.problems import SettingsError
from some_runs import write_run


def printed(*words: object, code: int = 0) -> str:
    ended = CliRunner().invoke(app, [*map(str, words)])
    assert ended.exit_code == code, ended.output
    return ended.output


def test_list_tells_how_far_every_run_is(tmp_path: Path) -> None:
    write_run(
        tmp_path / "sweep" / "a", [0.1, 0.5], algorithm="fedavg", seed=3, settings={"rounds": 10}
    )
    write_run(tmp_path / "b", [0.1, 0.5], algorithm="mifa", settings={"rounds": 300})
    RunDirectory(tmp_path / "c").create({"algorithm": "fedvarp", "rounds": 5})
    (tmp_path / "no-run").mkdir()
    (tmp_path / "no-run" / "config.toml").write_text("")
    rows = {
        row["run"]: row for row in json.loads(printed("list", tmp_path, "--format", "json"))["rows"]
    }
    assert {name: row["state"] for name, row in rows.items()} == {
        "b": "unfinished",
        "c": "not begun",
        "sweep/a": "finished",
    }
    assert rows["b"]["rounds"] == "10 of 300"
    assert "test accuracy 50.0 %" in rows["b"]["last figures"]
    assert rows["sweep/a"]["seed"] == 3
    assert "no run" in printed("list", tmp_path / "no-run", code=2)
    assert "no folder" in printed("list", tmp_path / "nowhere", code=2)


def test_list_names_the_line_that_a_disk_has_lost(tmp_path: Path) -> None:
    run = RunDirectory(write_run(tmp_path / "b", [0.1, 0.5]))
    run.metrics_file.write_bytes(bytes(run.metrics_file.stat().st_size))
    (row,) = json.loads(printed("list", tmp_path, "--format", "json"))["rows"]
    assert "metrics.jsonl is damaged in its line 1" in row["state"]


def test_show_tells_settings_figures_and_the_way_on(tmp_path: Path) -> None:
    settings = {"rounds": 300, "data": {"name": "digits"}}
    write_run(tmp_path / "b", [0.1, 0.5], algorithm="mifa", settings=settings)
    told = printed("show", tmp_path / "b")
    for said in ("mifa, unfinished", "Test accuracy 50.0 % (round 10)", 'algorithm = "mifa"'):
        assert said in told
    assert f"fedvarp resume {tmp_path / 'b'}" in told
    assert "There is no run" in printed("show", tmp_path, code=2)


def test_show_commands_no_terminal(tmp_path: Path) -> None:
    """Reasons of refusals, names and objectives come from files that anybody may have written."""
    evil = "\x1b]0;evil\x07\x1b[2J"
    write_run(tmp_path / "b", [0.1, 0.5], algorithm=evil, refused={"3": f"a loss {evil}"})
    for told in (printed("show", tmp_path / "b"), printed("list", tmp_path)):
        assert "\\x1b]0;evil\\x07" in told
        assert not {"\x1b", "\x07"} & set(told)


def test_tab_offers_presets_files_settings_and_their_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text("")
    assert [name for name, _ in complete_config("cifar10")] == [
        "cifar10-lenet5",
        "cifar10-resnet18",
    ]
    assert [name for name, _ in complete_config("mi")] == ["mine.toml"]
    assert dict(complete_setting("local_sgd.e"))["local_sgd.epochs="].startswith("Passes over")
    assert "client_lr=" in dict(complete_setting("client"))
    assert ("table.codec=int8", "") in complete_setting("table.codec=")
    assert ("algorithm=fedvarp", "") in complete_setting("algorithm=fed")
    assert complete_setting("rounds=") == []
    assert complete_setting("nonsense.x=") == []


def test_a_file_may_build_on_another_and_that_on_a_preset(tmp_path: Path) -> None:
    below = tmp_path / "more"
    below.mkdir()
    (tmp_path / "common.toml").write_text('preset = "digits"\nrounds = 7\nlocal_sgd.lr = 0.2\n')
    (below / "mine.toml").write_text('preset = "../common.toml"\nrounds = 9\n')
    settings = load_settings(below / "mine.toml", ["seed=4"])
    assert (settings.rounds, settings.local_sgd.lr, settings.seed) == (9, 0.2, 4)
    assert (settings.name, settings.local_sgd.epochs) == ("mine", 5)


def test_files_that_build_on_themselves_or_on_nothing_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('preset = "b.toml"\n')
    (tmp_path / "b.toml").write_text('preset = "a.toml"\n')
    with pytest.raises(SettingsError, match=r"builds on itself: a\.toml → b\.toml → a\.toml"):
        load_settings(tmp_path / "a.toml")
    (tmp_path / "b.toml").write_text('preset = "c.toml"\n')
    with pytest.raises(SettingsError, match=r"c\.toml is not there"):
        load_settings(tmp_path / "a.toml")
