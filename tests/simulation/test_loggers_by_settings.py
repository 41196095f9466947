"""Loggers that settings name: every run of a sweep has them, whoever trains it."""

from __future__ import annotations

import importlib
import struct
from pathlib import Path
from typing import Any

import pytest

from fedvarp.simulation import WandbLogger
from small_federation import run

pytest.importorskip("tensorboard")


def points(folder: Path, name: str) -> list[tuple[int, float]]:
    name_of = "tensorboard.backend.event_processing.event_accumulator"
    events: Any = importlib.import_module(name_of).EventAccumulator(str(folder))
    events.Reload()
    return [(point.step, point.value) for point in events.Scalars(name)]


def test_a_run_logs_under_its_own_name_and_keeps_its_figures(tmp_path: Path) -> None:
    plain = run(rounds=3)
    logged = run(rounds=3, out=tmp_path / "mine", tensorboard=tmp_path / "board")
    assert logged.metrics == plain.metrics
    found = points(tmp_path / "board" / "mine", "train_loss")
    assert [step for step, _ in found] == [0, 2, 3]
    assert found[-1][1] == pytest.approx(logged.final("train_loss"))


def test_a_resumed_run_may_log_elsewhere_or_not_at_all(tmp_path: Path) -> None:
    run(rounds=2, out=tmp_path / "mine", tensorboard=tmp_path / "board")
    resumed = run(rounds=4, out=tmp_path / "mine", resume=True)
    assert resumed.metrics == run(rounds=4).metrics


@pytest.mark.slow
def test_weights_and_biases_gets_every_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offline, read back from the file that `wandb sync` would send."""
    wandb: Any = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.chdir(tmp_path)
    try:
        with WandbLogger("mine", run_name="one", folder=tmp_path, settings={"a": {"b": 3}}) as log:
            result = run(rounds=3, callbacks=[log])
    finally:
        wandb.teardown()
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    history = _history(file)
    assert [int(row["_step"]) for row in history] == [0, 1, 2, 3]
    assert float(history[-1]["train_loss"]) == pytest.approx(result.final("train_loss"))
    assert not _children(), "its service has ended"


def _history(file: Path) -> list[dict[str, str]]:
    messages: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
    rows = []
    for data in _records(file.read_bytes()):
        record = messages.Record()
        record.ParseFromString(data)
        if record.HasField("history"):
            rows.append(
                {(i.key or ".".join(i.nested_key)): i.value_json for i in record.history.item}
            )
    return rows


def _records(content: bytes) -> list[bytes]:
    """LevelDB's log: blocks of 32 kB with pieces of records, each after its checksum and length."""
    whole, at, found = b"", 7, []
    while at < len(content):
        if 32768 - at % 32768 < 7:  # the rest of a block is empty
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        whole += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last piece of one
            found.append(whole)
            whole = b""
    return found


def _children() -> list[str]:
    return [
        name
        for task in Path("/proc/self/task").iterdir()
        for pid in (task / "children").read_text().split()
        if "wandb" in (name := Path(f"/proc/{pid}/cmdline").read_text(errors="replace"))
    ]
