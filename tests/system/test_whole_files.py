"""Files are written whole or not at all."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fedvarp.system.whole_files import write_whole


def test_texts_are_utf_8_with_their_own_line_ends_and_bytes_stay_as_they_are(
    tmp_path: Path,
) -> None:
    write_whole(tmp_path / "text", "größer\r\n\n")
    assert (tmp_path / "text").read_bytes() == "größer\r\n\n".encode()
    write_whole(tmp_path / "bytes", b"\xff\r\n")
    assert (tmp_path / "bytes").read_bytes() == b"\xff\r\n"


def test_an_older_file_is_replaced_and_no_draft_stays(tmp_path: Path) -> None:
    file = tmp_path / "figure.svg"
    file.write_text("older and longer")
    write_whole(file, "new")
    assert file.read_text() == "new"
    assert list(tmp_path.iterdir()) == [file]


def test_what_fails_half_way_leaves_the_older_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config.toml"
    write_whole(file, "older")

    def refuse(descriptor: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", refuse)
    with pytest.raises(OSError, match="disk full"):
        write_whole(file, "newer")
    assert file.read_text() == "older"
    assert list(tmp_path.iterdir()) == [file]  # no draft, and no empty file


def test_files_have_the_mode_of_their_neighbours(tmp_path: Path) -> None:
    (tmp_path / "neighbour").touch()
    write_whole(tmp_path / "whole", b"")
    assert (tmp_path / "whole").stat().st_mode == (tmp_path / "neighbour").stat().st_mode


def test_of_many_writers_at_once_none_fails_and_none_mixes_with_another(tmp_path: Path) -> None:
    file = tmp_path / "sweep.json"
    contents = [letter * 100_000 for letter in "abcdefgh"]
    with ThreadPoolExecutor(len(contents)) as writers:
        for _ in range(5):
            list(writers.map(lambda content: write_whole(file, content), contents))
            assert file.read_text() in contents
    assert list(tmp_path.iterdir()) == [file]


def test_a_draft_of_somebody_who_was_killed_or_a_link_is_no_hindrance(tmp_path: Path) -> None:
    file, draft, elsewhere = (tmp_path / name for name in ("x", "x.part", "elsewhere"))
    elsewhere.write_text("not to be touched")

    def half_written() -> None:
        draft.write_text("much longer than what follows")

    for made in (
        half_written,
        lambda: draft.symlink_to(elsewhere),
        lambda: draft.hardlink_to(elsewhere),
        lambda: os.mkfifo(draft),
    ):
        made()
        write_whole(file, "new")
        assert file.read_text() == "new"
        assert not file.is_symlink()
        assert elsewhere.read_text() == "not to be touched"
        assert not draft.exists()


def test_who_locks_the_folder_is_not_waited_for_and_who_never_ends_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fcntl = pytest.importorskip("fcntl")
    folder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)  # as flock(1) does
    write_whole(tmp_path / "x", "new")
    os.close(folder)
    monkeypatch.setattr("fedvarp.system.whole_files._PATIENCE", 0.05)
    with (tmp_path / "x.part").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(OSError, match=r"another process has been writing .*x\.part"):
            write_whole(tmp_path / "x", "newer")
    assert (tmp_path / "x").read_text() == "new"
    write_whole(tmp_path / "x", "newer")  # once the other has died
    assert sorted(tmp_path.iterdir()) == [tmp_path / "x"]
