"""Where data files are looked for, and what is said if they are not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedvarp.data import DataError, cifar10, shakespeare


def test_without_a_folder_the_variable_and_the_download_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("FEDVARP_DATA", raising=False)
    with pytest.raises(DataError, match=r"FEDVARP_DATA.*download\.download_cifar10\(folder\)"):
        cifar10()
    with pytest.raises(DataError, match=r"FEDVARP_DATA.*download\.download_shakespeare\(folder\)"):
        shakespeare()


def test_a_folder_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"root names .*absent, which does not exist"):
        cifar10(tmp_path / "absent")
    monkeypatch.setenv("FEDVARP_DATA", str(tmp_path / "absent"))
    with pytest.raises(DataError, match=r"FEDVARP_DATA names .*absent, which does not exist"):
        shakespeare()


def test_a_folder_without_the_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDVARP_DATA", str(tmp_path))
    with pytest.raises(
        DataError, match=r"none of .*cifar-10-batches-py\.tar\.gz.*download_cifar10"
    ):
        cifar10()
    with pytest.raises(DataError, match=r"none of .*shakespeare/pg100\.txt"):
        shakespeare()
