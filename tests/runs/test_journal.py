"""Journals: what is appended, cut back to, and read."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from fedvarp.runs.errors import RunError
from fedvarp.runs.journal import Journal, read_last_line, read_lines, read_sound_lines


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def journal_of(file: Path, rounds: int) -> Journal:
    journal = Journal(file)
    for t in range(rounds):
        journal.append({"round": t})
    return journal


def test_a_journal_writes_null_for_nan_and_reads_only_whole_lines(file: Path) -> None:
    journal = Journal(file)
    journal.append({"round": 0, "loss": math.nan, "of": {"0": math.inf}})
    size = journal.size
    journal.append({"round": 1})
    journal.cut_back(size)
    assert journal.size == size
    journal.append({"round": 2})
    journal.close()
    with file.open("a") as opened:
        opened.write('{"round": 3, "lo')
    assert read_lines(file) == [{"round": 0, "loss": None, "of": {"0": None}}, {"round": 2}]


def test_a_journal_is_gone_on_with(file: Path) -> None:
    journal_of(file, 2).close()
    again = Journal(file)
    assert (again.size, again.num_lines) == (file.stat().st_size, 2)
    again.append({"round": 2})
    again.close()
    assert [record["round"] for record in read_lines(file)] == [0, 1, 2]


def test_a_journal_that_lost_lines_is_not_cut_back(file: Path) -> None:
    journal = journal_of(file, 2)
    with pytest.raises(RunError, match=r"lines are missing.*Restore"):
        journal.cut_back(journal.size + 1)
    assert journal.num_lines == 2
    journal.close()


@pytest.mark.parametrize("lost", [b"", b'{"round": 3, "sec', b'\0\0\0\0\n{"round": 4}\n'])
def test_lines_lost_at_the_end_can_be_cut_off(file: Path, lost: bytes) -> None:
    journal_of(file, 3).close()
    file.write_bytes(file.read_bytes() + lost)
    journal = Journal(file)
    journal.cut_back_or_further(file.stat().st_size + 100)
    journal.close()
    assert [record["round"] for record in read_lines(file)] == [0, 1, 2]


@pytest.mark.parametrize("length", [10, 4000, 20_000])
def test_the_last_whole_line_is_found_without_those_before(file: Path, length: int) -> None:
    """Those before it are not read: the first is none that could be."""
    assert read_last_line(file) is None
    file.touch()
    assert read_last_line(file) is None
    record = {"round": 7, "note": "x" * length}
    file.write_text(f'not JSON\n{json.dumps(record)}\n{{"round": 8')
    assert read_last_line(file) == record


@pytest.mark.parametrize(
    ("found", "changed"),
    [
        (b'{"round": 0}\n{"round": 1}\n{"round": 2}\n{"ro', False),
        (b'{"round": 0}\n{"rou', False),
        (b'{"round": 0}\n' + bytes(100), False),
        (bytes(13) + b'{"round": 1}\n', False),
        (b"", False),
        (b'{"round": 0}\n{"round": 7}\n', True),
    ],
)
def test_a_journal_becomes_what_was_committed(file: Path, found: bytes, changed: bool) -> None:
    file.write_bytes(found)
    journal = Journal(file)
    assert journal.become([{"round": 0}, {"round": 1}]) == changed
    journal.append({"round": 2})
    journal.close()
    assert read_lines(file) == [{"round": 0}, {"round": 1}, {"round": 2}]
    kept = file.with_name("metrics.jsonl.changed")
    assert (kept.read_bytes() if kept.exists() else None) == (found if changed else None)


@pytest.mark.parametrize("line", ["[1]", '{"rounds": 3}', "[" * 100_000, "null"])
def test_lines_that_are_no_records_are_damage(file: Path, line: str) -> None:
    file.write_text(f"{line}\n")
    with pytest.raises(RunError, match="damaged in its line 1"):
        read_lines(file)


def test_damaged_lines_are_named(file: Path) -> None:
    file.write_text('{"round": 0}\nhalf\n')
    with pytest.raises(RunError, match=r"damaged in its line 2 .*resume.*restore"):
        read_lines(file)
    with pytest.raises(RunError, match=r"damaged in its last whole line .*resume.*restore"):
        read_last_line(file)
    with pytest.raises(RunError, match="no round"):
        read_lines(file.with_name("nowhere"))


@pytest.mark.parametrize("damage", [b"\x00\xff", b'{"round": 2}', b'{"round": 2, "seconds": "x"}'])
def test_what_nothing_depends_on_is_read_up_to_its_damage(file: Path, damage: bytes) -> None:
    assert read_sound_lines(file, "seconds") == []
    sound = b'{"round": 0, "seconds": 1.5}\n{"round": 1, "seconds": 2}\n'
    file.write_bytes(sound + damage + b"\n" + sound)
    assert read_sound_lines(file, "seconds") == [
        {"round": 0, "seconds": 1.5},
        {"round": 1, "seconds": 2},
    ]


@pytest.mark.parametrize(
    "edited",
    [
        '"round": 2.5',
        '"round": true',
        '"round": -3',
        '"round": 1, "clients": 7',
        '"round": 1, "refused": [1]',
        '"round": 1, "refused": {"3": 1}',
        '"round": 1, "test_accuracy": "x"',
        '"round": 1, "bytes_up": "x"',
        '"round": 1, "server_bytes": {}',
        '"round": 1, "num_refused": "x"',
        f'"round": {2**63}',
        '"round": 1, "clients": [-1]',
        '"round": 1, "clients": ["x"]',
        '"round": 1, "clients": [null]',
        '"round": 1, "clients": [[1]]',
        '"round": 1, "clients": [1.5]',
        '"round": 1, "clients": [true]',
        '"round": 1, "clients": [2, 2]',
        '"round": 1, "num_clients": 0',
        '"round": 1, "num_clients": -5',
        '"round": 1, "num_clients": "<b>"',
        '"round": 1, "num_clients": null',
        '"round": 1, "by_client": 5',
        '"round": 1, "by_client": {"train_loss": "x"}',
        '"round": 1, "by_client": {"train_loss": ["x"]}',
        '"round": 1, "by_cluster": {"train_loss": [[1]]}',
        f'"round": 1, "by_cluster": {{"train_loss": [0.5, {10**400}]}}',
        f'"round": 1, "server_bytes": {10**400}',
        '"round": 1, "server_bytes": null',
        '"round": 1, "bytes_up": -1',
        f'"round": 1, "train_loss": {10**400}',
        '"round": 1, "train_loss": NaN',
        '"round": 1, "test_auc": [1]',
        '"round": 1, "test_accuracy": 1e308',
        '"round": 1, "refused_because": 5',
        f'"round": 1, "seconds": {10**400}',
    ],
)
def test_values_that_no_run_writes_are_damage(file: Path, edited: str) -> None:
    file.write_text(f'{{"round": 0}}\n{{{edited}}}\n')
    with pytest.raises(RunError, match="is damaged in its line 2"):
        read_lines(file)
    with pytest.raises(RunError, match="is damaged in its last whole line"):
        read_last_line(file)


@pytest.mark.parametrize(
    "edited", ['"round": 0', '"round": 1, "clients": [7]', f'"round": 1, "clients": [{2**62}]']
)
def test_records_that_cannot_follow_those_before_them_are_damage(file: Path, edited: str) -> None:
    """Rounds go up, and of seven clients the last is 6."""
    file.write_text(f'{{"round": 0, "num_clients": 7}}\n{{{edited}}}\n')
    with pytest.raises(RunError, match="is damaged in its line 2"):
        read_lines(file)


@pytest.mark.parametrize("sound", [0, 1, 3])
def test_zeros_in_place_of_lines_are_damage_and_no_line_that_is_being_written(
    file: Path, sound: int
) -> None:
    lines = chained_file(file)
    file.write_bytes(b"".join(lines[:sound]) + bytes(len(b"".join(lines[sound:]))))
    with pytest.raises(RunError, match=rf"is damaged in its line {sound + 1} .*zeros.*resume"):
        read_lines(file)


def chained_file(file: Path, rounds: int = 5) -> list[bytes]:
    """The lines of a journal with a chain."""
    journal = Journal(file, chained=True)
    for t in range(rounds):
        journal.append({"round": t, "test_accuracy": t / 10})
    journal.close()
    return file.read_bytes().splitlines(keepends=True)


def test_a_chain_goes_on_where_it_was_left_or_cut_back_to(file: Path) -> None:
    whole = b"".join(chained_file(file))
    records = read_lines(file)
    assert records == [{"round": t, "test_accuracy": t / 10} for t in range(5)]
    assert read_last_line(file) == records[-1]
    file.write_bytes(whole[: len(whole) // 2])
    journal = Journal(file, chained=True)
    assert journal.become(records[:2]) is False
    for record in records[2:]:
        journal.append(record)
    journal.close()
    assert file.read_bytes() == whole
    again = Journal(file, chained=True)
    again.append({"round": 5})
    again.close()
    assert read_lines(file)[-1] == {"round": 5}


def test_edited_removed_and_moved_lines_are_noticed(file: Path) -> None:
    lines = chained_file(file)
    edited = [
        [*lines[:2], lines[2].replace(b"0.2", b"0.9"), *lines[3:]],
        [*lines[:2], *lines[3:]],
        lines[1:],
        [lines[0], lines[2], lines[1], *lines[3:]],
        [*lines[:3], b'{"round": 3, "test_accuracy": 0.9}\n'],
        [b'{"round": 0, "test_accuracy": 0.9}\n', *lines[1:]],
        [*lines[:3], lines[3].replace(b", ", b",  "), lines[4]],
    ]
    for content in edited:
        file.write_bytes(b"".join(content))
        with pytest.raises(RunError, match=r"is damaged in its line \d.*fedvarp resume"):
            read_lines(file)


def test_an_edited_last_line_is_noticed_without_reading_those_before(file: Path) -> None:
    lines = chained_file(file)
    for some in (lines[:1], lines):
        file.write_bytes(b"".join(some).replace(b'"test_accuracy": 0.', b'"test_accuracy": 1.'))
        with pytest.raises(RunError, match="changed since it was written"):
            read_last_line(file)


def test_files_without_a_chain_stay_so(file: Path) -> None:
    journal_of(file, 2).close()
    journal = Journal(file, chained=True)
    assert journal.become([{"round": 0}, {"round": 1}]) is False
    journal.append({"round": 2})
    journal.close()
    assert file.read_bytes() == b'{"round": 0}\n{"round": 1}\n{"round": 2}\n'
    assert read_last_line(file) == {"round": 2}


@pytest.mark.parametrize("damage", [bytes(60), b"\xff\xfe\n", b'"crc": "'])
def test_a_chained_file_whose_beginning_is_lost_is_written_anew_with_its_chain(
    file: Path, damage: bytes
) -> None:
    whole = b"".join(chained_file(file))
    records = read_lines(file)
    file.write_bytes(damage + whole[len(damage) :])
    journal = Journal(file, chained=True)
    journal.become(records)
    journal.close()
    assert file.read_bytes() == whole
