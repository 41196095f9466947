"""`fedvarp verify` and `fedvarp backup`."""

from __future__ import annotations

import json
from pathlib import Path

import filelock
import pytest
from typer.testing import CliRunner

from fedvarp.cli.app import app
from fedvarp.errors import DamageWarning
from fedvarp.tables.data_file import LOCK

CONFIG = """
rounds = 2
clients_per_round = 2
[data]
name = "quadratics"
[local_sgd]
lr = 0.01
batch_size = 5
epochs = 1
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    config = tmp_path / "small.toml"
    config.write_text(CONFIG)
    done = CliRunner().invoke(app, ["run", str(config), "--out", str(tmp_path / "run"), "-q"])
    assert done.exit_code == 0, done.output
    return tmp_path / "run"


def test_a_sound_run_ends_with_0_and_a_damaged_one_with_1(run: Path) -> None:
    sound = CliRunner().invoke(app, ["verify", str(run)])
    assert sound.exit_code == 0
    assert "sound  checkpoint/data.mdb is whole" in sound.output
    file = run / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    damaged = CliRunner().invoke(app, ["verify", str(run), "--json"])
    assert damaged.exit_code == 1
    wrong = [found["file"] for found in json.loads(damaged.output) if not found["is_sound"]]
    assert wrong == ["model.safetensors"]


def test_a_backup_is_a_run_of_its_own(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    assert CliRunner().invoke(app, ["backup", str(run), str(copy)]).exit_code == 0
    again = CliRunner().invoke(app, ["resume", str(copy), "--set", "rounds=3", "-q"])
    assert again.exit_code == 0, again.output
    assert CliRunner().invoke(app, ["verify", str(copy)]).exit_code == 0
    assert (run / "metrics.jsonl").read_bytes() in (copy / "metrics.jsonl").read_bytes()
    assert CliRunner().invoke(app, ["backup", str(run), str(copy)]).exit_code == 2


@pytest.mark.parametrize(
    ("written", "instead"),
    [
        ("seed = 0\n\n[data]", "sead = 0\n\n[data]"),
        ("rounds = 2", "roundz = 2"),
        ("epochs = 1\n", ""),
    ],
)
def test_settings_with_lost_names_are_noticed_and_put_right(
    written: str, instead: str, run: Path
) -> None:
    config = run / "config.toml"
    before = config.read_text()
    assert before.count(written) == 1
    config.write_text(before.replace(written, instead))

    verified = CliRunner().invoke(app, ["verify", str(run)])
    assert verified.exit_code == 1
    assert "WRONG  config.toml" in verified.output

    with pytest.warns(DamageWarning, match=r"config\.toml was damaged"):
        resumed = CliRunner().invoke(app, ["resume", str(run), "--set", "rounds=3", "-q"])
    assert resumed.exit_code == 0, resumed.output
    assert config.read_text() == before.replace("rounds = 2", "rounds = 3")
    assert (run / "config.toml.changed").read_text() == before.replace(written, instead)
    assert CliRunner().invoke(app, ["verify", str(run)]).exit_code == 0


def test_who_finds_the_run_in_use_leaves_its_drafts_alone(run: Path) -> None:
    draft = run / "config.toml.part"
    draft.touch()
    further = ["resume", str(run), "--set", "rounds=3", "-q"]
    with filelock.FileLock(run / "checkpoint" / LOCK):
        refused = CliRunner().invoke(app, further)
    assert refused.exit_code != 0
    assert draft.exists()
    assert CliRunner().invoke(app, further).exit_code == 0
    assert not draft.exists()
