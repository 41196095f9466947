"""Files are written whole or not at all."""

from __future__ import annotations

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
