"""Verifying and backing up runs, while they are trained or not."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import filelock
import pytest

from fedvarp import LocalSGD, StoreError
from fedvarp.errors import DamageWarning
from fedvarp.models import Quadratic, quadratic_loss
from fedvarp.runs.directory import RunDirectory
from fedvarp.runs.errors import RunError
from fedvarp.runs.mendable import is_to_be_mended
from fedvarp.server.server import Server
from fedvarp.simulation.callbacks import Record
from fedvarp.simulation.safekeeping import backup, verify
from simulating import simulate
from small_problems import unequal_clients


def train(out: Path, rounds: int, *callbacks: Callable[[Record, Server], None]) -> None:
    simulate(
        unequal_clients(6, 10),
        Quadratic(10),
        quadratic_loss,
        local_sgd=LocalSGD(lr=0.1, batch_size=1, epochs=1),
        clients_per_round=2,
        rounds=rounds,
        algorithm="fedvarp",
        evaluate_every=1,
        out=out,
        resume=True,
        fsync=False,
        callbacks=list(callbacks),
    )


@pytest.fixture
def run(tmp_path: Path) -> Path:
    train(tmp_path / "run", 3)
    return tmp_path / "run"


def content(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def wrong(run: Path) -> dict[str, str]:
    return {found.file: found.said for found in verify(run) if not found.is_sound}


def test_a_run_of_python_that_nothing_happened_to_is_not_mended(run: Path) -> None:
    assert not is_to_be_mended(RunDirectory(run))
    cut = (run / "config.toml").read_text().rpartition("fsync")[0]
    (run / "config.toml").write_text(cut)
    assert is_to_be_mended(RunDirectory(run))


def test_a_sound_run_is_sound_and_stays_as_it_is(run: Path) -> None:
    before = content(run)
    said = {found.file: found.said for found in verify(run)}
    assert wrong(run) == {}
    assert "values, digest" in said["checkpoint/data.mdb"]
    assert "4 lines" in said["metrics.jsonl"]
    assert "after round 3" in said["model.safetensors"]
    assert content(run) == before
    assert verify(run / "checkpoint")[0].is_sound  # as Flower's stands alone


@pytest.mark.parametrize("name", ["metrics.jsonl", "model.safetensors", "config.toml"])
def test_a_changed_file_is_named(run: Path, name: str) -> None:
    data = bytearray((run / name).read_bytes())
    at = data.index(b"lr = 0.1") + 7 if name == "config.toml" else len(data) - 3
    data[at] ^= 2
    (run / name).write_bytes(data)
    assert name in wrong(run)


def test_a_damaged_newest_round_is_told_from_a_damaged_checkpoint(run: Path) -> None:
    file = run / "checkpoint" / "data.mdb"
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])
    assert "cut off" in wrong(run)["checkpoint/data.mdb"]
    at = data.rindex(b'{"format": 2')
    while at >= 0:
        data = data[: at + 20] + bytes([data[at + 20] ^ 1]) + data[at + 21 :]
        file.write_bytes(data)
        said = wrong(run).get("checkpoint/data.mdb", "")
        if said:
            break
        at = data.rfind(b'{"format": 2', 0, at)
    assert "the one before it is whole" in said


def test_a_backup_made_while_it_is_trained_can_be_gone_on_with(tmp_path: Path) -> None:
    run, copy, straight = tmp_path / "run", tmp_path / "copies" / "copy", tmp_path / "straight"

    def copy_in_the_middle(record: Record, server: Server) -> None:
        if record["round"] == 3:
            findings = backup(run, copy)
            assert all(found.is_sound for found in findings)
            assert not wrong(run)

    train(run, 5, copy_in_the_middle)
    train(straight, 5)
    assert (copy / "metrics.jsonl").read_bytes().count(b"\n") == 3  # rounds 0 to 2 were committed
    train(copy, 5)
    for name in ("metrics.jsonl", "model.safetensors", "config.toml"):
        assert (copy / name).read_bytes() == (straight / name).read_bytes()


def test_what_cannot_be_backed_up_is_refused_and_nothing_is_left(run: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(RunError, match="there already"):
        backup(run, tmp_path / "taken")
    with pytest.raises(RunError, match="nothing to back up"):
        backup(tmp_path / "nowhere", tmp_path / "copy")
    with pytest.raises(RunError, match="nothing to verify"):
        verify(tmp_path / "nowhere")
    file = run / "checkpoint" / "data.mdb"
    file.write_bytes(file.read_bytes()[:20_000])
    with pytest.raises(StoreError, match=r"run.checkpoint.data.mdb is damaged: .*cut off"):
        backup(run, tmp_path / "copy")
    assert sorted(f.name for f in tmp_path.iterdir()) == ["run", "taken"]


def test_a_run_without_a_checkpoint_is_held_to_its_model(run: Path) -> None:
    shutil.rmtree(run / "checkpoint")
    assert wrong(run) == {}
    metrics = run / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes().replace(b'"round": 2', b'"round": 9'))
    assert "model.safetensors" in wrong(run)


def test_a_folder_in_the_way_of_a_backup_is_left_as_it_is(run: Path, tmp_path: Path) -> None:
    somebodys = tmp_path / "copy.part"
    shutil.copytree(run, somebodys)
    before = content(somebodys)
    with pytest.raises(RunError, match="left as it is"):
        backup(run, tmp_path / "copy")
    assert content(somebodys) == before
    (somebodys / ".backup").touch()  # now it is what a killed backup leaves
    with filelock.FileLock(somebodys / ".backup"), pytest.raises(RunError, match="right now"):
        backup(run, tmp_path / "copy")
    backup(run, tmp_path / "copy")
    assert not somebodys.exists()
    assert not (tmp_path / "copy" / ".backup").exists()


@pytest.mark.parametrize("lines", [0, 1, 5, None])
@pytest.mark.parametrize("name", ["config.toml", "versions.json"])
def test_what_was_cut_off_is_told_and_mended(
    run: Path, tmp_path: Path, name: str, lines: int | None
) -> None:
    before = (run / name).read_bytes()
    if lines is None:
        (run / name).unlink()
    else:
        (run / name).write_bytes(b"".join(before.splitlines(keepends=True)[:lines]))
    assert name in wrong(run)
    backup(run, tmp_path / "copy")
    with pytest.warns(DamageWarning, match=f"{name} was"):
        train(run, 3)
    assert (run / name).read_bytes() == (tmp_path / "copy" / name).read_bytes() == before
    assert not wrong(run)


@pytest.mark.parametrize("round", [1, 3])
def test_edited_figures_are_told_put_right_and_kept(run: Path, round: int) -> None:
    metrics = run / "metrics.jsonl"
    before = metrics.read_bytes()
    edited = before.replace(
        b'"round": %d, "clients": [' % round, b'"round": %d, "clients":  [' % round
    )
    metrics.write_bytes(edited)
    assert "changed since it was written" in wrong(run)["metrics.jsonl"]
    with pytest.warns(DamageWarning, match=r"metrics\.jsonl was"):
        train(run, 3)
    assert metrics.read_bytes() == before
    assert (run / "metrics.jsonl.changed").read_bytes() == edited
    assert not wrong(run)


def test_figures_that_are_taken_away_while_it_trains_come_back_from_the_checkpoint(
    tmp_path: Path,
) -> None:
    run, straight = tmp_path / "run", tmp_path / "straight"

    def take_away(record: Record, server: Server) -> None:
        if record["round"] == 3:
            (run / "metrics.jsonl").unlink()

    with pytest.warns(DamageWarning, match=r"metrics\.jsonl was gone"):
        train(run, 5, take_away)
    train(straight, 5)
    assert (run / "metrics.jsonl").read_bytes() == (straight / "metrics.jsonl").read_bytes()
    assert wrong(run) == {}


@pytest.mark.parametrize("left", [None, b"\0" * 400 + b"\n"], ids=["gone", "damaged"])
def test_a_run_that_fails_without_its_figures_keeps_its_rounds(
    left: bytes | None, tmp_path: Path
) -> None:
    run = tmp_path / "run"

    def fail(record: Record, server: Server) -> None:
        if record["round"] == 3:
            (run / "metrics.jsonl").unlink()
            if left is not None:
                (run / "metrics.jsonl").write_bytes(left)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(run, 5, fail)
    with pytest.warns(DamageWarning):
        train(run, 5)
    train(tmp_path / "straight", 5)
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (run / name).read_bytes() == (tmp_path / "straight" / name).read_bytes()


def test_a_backup_needs_no_figures_beside_the_checkpoint(run: Path, tmp_path: Path) -> None:
    figures = (run / "metrics.jsonl").read_bytes()
    (run / "metrics.jsonl").unlink()
    backup(run, tmp_path / "copy")
    assert (tmp_path / "copy" / "metrics.jsonl").read_bytes() == figures


def test_a_backup_of_what_resuming_would_put_right_says_so(run: Path, tmp_path: Path) -> None:
    file = run / "checkpoint" / "data.mdb"
    data = bytearray(file.read_bytes())
    data[16:20] = bytes(4)  # what tells the first meta page from others
    file.write_bytes(data)
    with pytest.raises(StoreError, match="resume it, then copy it"):
        backup(run, tmp_path / "copy")
    with pytest.warns(DamageWarning, match="gone on from"):
        train(run, 4)
    backup(run, tmp_path / "copy")


def test_a_damaged_note_of_the_data_folder_is_named_and_does_not_stop_the_run(run: Path) -> None:
    (run / "data_folder.txt").write_bytes(b"\x8a\x00\xff")
    assert "data_folder.txt" in wrong(run)
    train(run, 4)
    assert (run / "metrics.jsonl").read_bytes().count(b"\n") == 5
