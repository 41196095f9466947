"""Who says what, by LEAF's rules; the counts on the real text are LEAF's."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from fedvarp.data import DataError, shakespeare
from fedvarp.data.shakespeare_text import Play, Role, parse_plays, read_text, roles_of

COLLECTED_WORKS = """\
The Project Gutenberg EBook, by William Shakespeare (this first line does not count)
THE SONNETS

by William Shakespeare

  Speaker. Nobody speaks here, it is before the second byline.

HIGH SPIRITS


by William Shakespeare

ACT I
  Ghost. Boo to
    you  all,
      and  you.
A stage direction does not end the speech
    Again.
  HOST. Who
   is there (indented by three: dropped)
  GHOST. Me.
  HOST2. a digit is no name, and two spaces are no continuation
    but this line still belongs to GHOST

THE COMEDY OF ERRORS

by William Shakespeare

TWIN. One
of us
ACT II. Scene 1
dropped, for nobody speaks
OTHER. Two
<<A notice ends the speech>>
dropped as well
OTHER. Three
of us

A MONOLOGUE

by William Shakespeare

  Alone. I speak alone,
    so I am no play.
"""


def test_leafs_rules_on_a_small_text() -> None:
    plays = parse_plays(COLLECTED_WORKS)
    assert plays == [
        Play(
            "HIGH SPIRITS",
            {
                "GHOST": [
                    "Boo to",
                    "you  all,",
                    "  and  you.",
                    "Again.",
                    "Me.",
                    "but this line still belongs to GHOST",
                ],
                "HOST": ["Who"],
            },
        ),
        Play(
            "THE COMEDY OF ERRORS",
            {
                "TWIN": ["One", "of us"],
                "OTHER": ["Two", "Three", "of us", "", "A MONOLOGUE", ""],
            },
        ),
    ]
    assert roles_of(plays) == [
        Role(
            "HIGH SPIRITS",
            "GHOST",
            "Boo to you all, and you. Again. Me. but this line still belongs to GHOST ",
        ),
        Role("THE COMEDY OF ERRORS", "OTHER", "Two Three of us A MONOLOGUE "),
    ]


def test_line_endings_and_packing_do_not_matter(tmp_path: Path) -> None:
    windows = tmp_path / "pg100.txt"
    windows.write_bytes(b"\xef\xbb\xbf" + COLLECTED_WORKS.replace("\n", "\r\n").encode())
    packed = tmp_path / "1994-01-100.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("100.txt", COLLECTED_WORKS)
    expected = parse_plays(COLLECTED_WORKS)
    assert parse_plays(read_text(windows)) == expected
    assert parse_plays(read_text(packed)) == expected


def test_another_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "pg100.txt"
    file.write_text("It was the best of times,\nit was the worst of times.\n")
    with pytest.raises(DataError, match=r"not the text.*download_shakespeare"):
        shakespeare(tmp_path)
    file.write_text(COLLECTED_WORKS)
    with pytest.raises(DataError, match=r"gives 2 plays with 4 roles instead of 36 with 1301"):
        shakespeare(file)


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_damaged_zip_is_refused(tmp_path: Path, compression: int) -> None:
    packed = tmp_path / "1994-01-100.zip"
    with zipfile.ZipFile(packed, "w", compression) as archive:
        archive.writestr("100.txt", COLLECTED_WORKS)
    raw = bytearray(packed.read_bytes())
    raw[40:60] = b"\xff" * 20  # right after the header
    packed.write_bytes(raw)
    with pytest.raises(DataError, match="damaged"):
        shakespeare(tmp_path)


def test_leafs_counts(plays: list[Play]) -> None:
    assert len(plays) == 36
    assert sum(len(play.lines_of) for play in plays) == 1301
    roles = roles_of(plays)
    assert len(roles) == 1144
    users = [role for role in roles if len(role.text) > 80]
    assert len(users) == 1129
    assert sum(len(role.text) - 80 for role in users) == 4_226_158
