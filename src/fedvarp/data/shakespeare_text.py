"""Who says what in the Gutenberg Shakespeare, by the rules of LEAF (Caldas et al., 2018).

The rules suit one edition: the World Library text that Project Gutenberg published as #100 in 1994
and posted anew in 2011. Later editions are laid out differently.
`docs/decisions/data-shakespeare.md` tells how LEAF's counts are met.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedvarp.data.federated_dataset import DataError

_BYLINE: Final = "by William Shakespeare"
_LAST_LINE: Final = 124_195  # of the plays, counted from the second line of the file
_UNINDENTED: Final = "THE COMEDY OF ERRORS"
_SPEAKER: Final = re.compile(r"([a-zA-Z][a-zA-Z ]*)\. (.*)")
_EDITION: Final = (
    "LEAF's rules need the World Library text of Project Gutenberg's #100 (files pg100.txt of 2011 "
    "or 1994-01-100.zip); today's pg100.txt is another edition. "
    "fedvarp.data.download.download_shakespeare(folder) fetches the right one."
)


@dataclass(frozen=True)
class Play:
    """A play and the lines of each of its roles, in the order they are first heard."""

    title: str
    lines_of: dict[str, list[str]]


@dataclass(frozen=True)
class Role:
    """All that one role says in one play."""

    play: str
    name: str
    text: str


def read_text(path: Path) -> str:
    """Reads a text file, or the one text file in a zip archive.

    Args:
        path: The file.

    Returns:
        Its text.

    Raises:
        DataError: The archive is damaged, or holds no text.
    """
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                name = next(n for n in archive.namelist() if n.lower().endswith(".txt"))
                raw = archive.read(name)  # checks the CRC-32 of the file
        else:
            raw = path.read_bytes()
    except (zipfile.BadZipFile, StopIteration, EOFError, zlib.error) as error:
        raise DataError(f"{path} is damaged or holds no text. {_EDITION}") from error
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def parse_plays(text: str) -> list[Play]:
    """Splits the collected works into plays with more than one role.

    A byline opens a work. A role is named at the start of a line, indented by two; lines indented
    by four or more go on with the speech; other lines are dropped and do not end it. The Comedy of
    Errors is not indented at all: there every line goes on, until an act or a "<" notice.

    Args:
        text: The collected works.

    Returns:
        The plays in their order.

    Raises:
        DataError: There are no bylines, or no title above one.
    """
    lines = text.splitlines()[1:]
    bylines = [i for i, line in enumerate(lines) if _BYLINE in line]
    if len(bylines) < 2:
        raise DataError(f"Found {len(bylines)} lines {_BYLINE!r}: this is not the text. {_EDITION}")
    plays: list[Play] = []
    role: str | None = None
    indented = True
    # The first byline is that of the sonnets.
    for i in range(bylines[1], min(_LAST_LINE + 1, len(lines))):
        line = lines[i]
        if _BYLINE in line:
            plays.append(Play(_title_above(lines, i), {}))
            role, indented = None, plays[-1].title != _UNINDENTED
            continue
        lines_of = plays[-1].lines_of
        spoken = _SPEAKER.match(line, 2 if indented else 0)
        if spoken and (not indented or line.startswith("  ")):
            role = spoken[1].upper()
            if not indented and role.startswith("ACT "):
                role = None
            else:
                lines_of.setdefault(role, []).append(spoken[2])
        elif role is not None:
            if not indented and line.startswith("<"):
                role = None
            elif not indented or line.startswith("    "):
                lines_of[role].append(line[4:] if indented else line)
    return [play for play in plays if len(play.lines_of) > 1]


def roles_of(plays: list[Play]) -> list[Role]:
    """Lists the roles with at least three lines, each with its text as LEAF joins it.

    Lines are joined by spaces and runs of spaces collapsed. LEAF ends each line with a line break
    before it joins them, which leaves one space at the end; without it the counts do not match.

    Args:
        plays: The plays.

    Returns:
        The roles, play by play.
    """
    return [
        Role(play.title, name, re.sub("  +", " ", " ".join([*lines, ""])))
        for play in plays
        for name, lines in play.lines_of.items()
        if len(lines) > 2
    ]


def check_edition(plays: list[Play], source: Path) -> None:
    """Refuses a text that does not give the plays and roles LEAF finds.

    Args:
        plays: What was found.
        source: Where, for the message.

    Raises:
        DataError: The counts are not LEAF's.
    """
    found = len(plays), sum(len(play.lines_of) for play in plays)
    if found != (36, 1301):
        raise DataError(
            f"{source} gives {found[0]} plays with {found[1]} roles instead of 36 with 1301: it is "
            f"another edition, or incomplete. {_EDITION}"
        )


def _title_above(lines: list[str], byline: int) -> str:
    for above in range(2, 8):
        if title := lines[byline - above].strip():
            return title
    raise DataError(f"No title stands above the byline in line {byline + 2}. {_EDITION}")
