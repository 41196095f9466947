"""versions.json: what a run was made with, from its first round to its last."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedvarp
from fedvarp.runs import versions
from fedvarp.runs.versions import note_change, present, write_versions


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_versions(tmp_path / "versions.json")
    return tmp_path / "versions.json"


def change(monkeypatch: pytest.MonkeyPatch, **changes: str) -> None:
    now = versions.present() | changes
    monkeypatch.setattr(versions, "present", lambda: now)


def test_a_run_is_made_with_the_versions_that_are_loaded(file: Path) -> None:
    made_with = json.loads(file.read_text())
    assert made_with["torch"] == torch.__version__
    assert made_with["numpy"] == np.__version__
    assert made_with["fedvarp"] == fedvarp.__version__


def test_each_change_is_noted_once_with_its_round(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first: dict[str, Any] = json.loads(file.read_text())
    assert note_change(file, 1) == []
    change(monkeypatch, numpy="99.1")
    assert note_change(file, 2) == [f"numpy = {first['numpy']} (now 99.1)"]
    assert note_change(file, 3) == []
    change(monkeypatch, torch="99.2")
    assert note_change(file, 4) == [f"torch = {first['torch']} (now 99.2)"]
    later = [{"after_round": 2, "numpy": "99.1"}, {"after_round": 4, "torch": "99.2"}]
    assert json.loads(file.read_text()) == {**first, "later": later}


def test_another_kernel_is_no_change(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = file.read_bytes()
    change(monkeypatch, platform="Linux-99")
    assert note_change(file, 2) == []
    assert file.read_bytes() == before


@pytest.mark.parametrize("damaged", [None, "half a li", "[]", '{"later": [3]}'])
def test_a_missing_or_damaged_file_is_written_anew(file: Path, damaged: str | None) -> None:
    if damaged is None:
        file.unlink()
    else:
        file.write_text(damaged)
    assert note_change(file, 2) == []
    assert json.loads(file.read_text()) == present()
