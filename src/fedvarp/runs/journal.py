"""Files of JSON lines: appended to round by round, cut back to a checkpoint, and read.

Lines may be chained: each ends with the CRC-32 of all lines so far, so that one which was edited,
damaged, removed or moved is noticed by whoever reads the file. A file stays as it was begun: those
of earlier versions have no chain.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from fedvarp.runs.errors import RunError
from fedvarp.runs.record_kinds import refuse_other_kinds, refuse_other_place
from fedvarp.system.parsing import parse_json
from fedvarp.system.whole_files import write_whole

_CRC: Final = "crc"
_LINK: Final = f', "{_CRC}": "%08x"}}'
_LINK_LENGTH: Final = len(_LINK % 0)
_FIRST_LOOK: Final = 4096  # bytes at the end of a file; a usual line has some hundreds


class Journal:
    """A file of JSON lines that can be cut back to where a checkpoint left it.

    Args:
        path: The file; it is made if there is none, and appended to otherwise.
        chained: Whether lines are chained, unless there are some already that are not.
    """

    def __init__(self, path: Path, *, chained: bool = False) -> None:
        self.path = path
        self._file = path.open("ab", buffering=0)  # what could not be written is not tried again
        self._is_chained = chained and not _begins_without_chain(path.read_bytes())

    @functools.cached_property
    def _before(self) -> int | None:
        """What the next line is chained to; None where lines are not."""
        if not self._is_chained:
            return None
        *_, last, _ = (b"", *self.path.read_bytes().rsplit(b"\n", 2))
        return _crc_in(last) or 0

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._file.tell()

    @property
    def num_lines(self) -> int:
        """Lines in the file."""
        return self.path.read_bytes().count(b"\n")

    def append(self, record: Mapping[str, Any]) -> None:
        """Adds one line.

        Args:
            record: What JSON can hold; numbers that are not finite become null.
        """
        written = line_of(record, self._before)
        left = memoryview(written)
        while left:
            left = left[self._file.write(left) :]
        self._before = None if self._before is None else _crc_in(written[:-1])

    def become(self, records: Iterable[Mapping[str, Any]]) -> bool:
        """Drops what follows these records; where the file does not begin with them, writes it.

        Args:
            records: Those that were committed.

        Returns:
            Whether what was there had been changed by somebody: it differs in more than a crash
            or a power failure can do to it, and is kept with ``.changed`` behind its name.
        """
        wanted = lines_of(records, chained=self._is_chained)
        found = self.path.read_bytes() if self.path.exists() else b""
        if found.startswith(wanted):
            self.cut_back(len(wanted))
            return False
        # A page that never reached the disk reads as zeros.
        changed = any(there and there != due for there, due in zip(found, wanted, strict=False))
        self._file.close()
        if changed:
            write_whole(self.path.with_name(f"{self.path.name}.changed"), found)
        write_whole(self.path, wanted)
        self._file = self.path.open("ab", buffering=0)
        self.__dict__.pop("_before", None)
        return changed

    def cut_back(self, size: int) -> None:
        """Drops all but the first bytes.

        Args:
            size: How many bytes stay.

        Raises:
            RunError: The file is shorter than that.
        """
        if self.path.stat().st_size < size:
            raise RunError(
                f"{self.path} has {self.path.stat().st_size} bytes, but {size} when the checkpoint "
                f"was written: lines are missing. Restore the file from a copy; without one the "
                f"run has to be begun anew, in another directory."
            )
        self._file.truncate(size)
        self._file.seek(size)
        self.__dict__.pop("_before", None)

    def cut_back_or_further(self, size: int) -> None:
        """Drops all but the whole lines within the first bytes, up to the first damaged one.

        Args:
            size: How many bytes stay at most; the file may have fewer.
        """
        sound = 0
        for line in self.path.read_bytes()[:size].splitlines(keepends=True):
            try:
                parse_json(line)
            except ValueError:  # of JSON, or of the encoding
                break
            sound += len(line) if line.endswith(b"\n") else 0
        self.cut_back(sound)

    def sync(self) -> None:
        """Waits until the disk has everything that was appended."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def line_of(record: Mapping[str, Any], before: int | None = None) -> bytes:
    """A record as its line of a journal.

    Args:
        record: What JSON can hold; numbers that are not finite become null.
        before: What the line is chained to: 0 for the first; None leaves it without a chain.
    """
    text = json.dumps(without_nan(record), allow_nan=False).encode()
    if before is not None:
        text = text[:-1] + (_LINK % zlib.crc32(text, before)).encode()
    return text + b"\n"


def lines_of(records: Iterable[Mapping[str, Any]], *, chained: bool) -> bytes:
    """Records as the lines of a journal.

    Args:
        records: All of them, from the first on.
        chained: Whether lines are chained.
    """
    lines, before = [], 0 if chained else None
    for record in records:
        lines.append(line_of(record, before))
        before = _crc_in(lines[-1][:-1]) if chained else None
    return b"".join(lines)


def is_chained(file: Path) -> bool:
    """Whether the lines of a journal are chained, as far as its first line tells."""
    return not _begins_without_chain(file.read_bytes())


def read_lines(file: Path) -> list[dict[str, Any]]:
    """Reads all whole lines; one without its end is a round that is being written right now.

    Args:
        file: Of JSON lines.

    Returns:
        One record for each line.

    Raises:
        RunError: The file does not exist, or a line of it is damaged, or was edited.
    """
    if not file.exists():
        raise RunError(f"{file} does not exist: no round of that run was recorded.")
    content = file.read_bytes()
    *whole, unfinished = content.split(b"\n")
    before = None if _begins_without_chain(content) else 0
    records: list[dict[str, Any]] = []
    for n, line in enumerate(whole, start=1):
        records.append(_parsed(line, file, f"line {n}", before, records))
        before = None if before is None else _crc_in(line)
    if b"\0" in unfinished:  # which JSON has none of: no round is being written there
        zeros = ValueError("zeros, which a disk has where something was never written")
        raise _damage(file, f"line {len(whole) + 1}", zeros)
    return records


def read_sound_lines(file: Path, *names: str) -> list[dict[str, Any]]:
    """Reads what can be read of a file that nothing depends on.

    Args:
        file: Of JSON lines; it need not exist.
        names: What each record must hold.

    Returns:
        One record for each whole line before the first damaged one.
    """
    found: list[dict[str, Any]] = []
    if not file.exists():
        return found
    with contextlib.suppress(RunError):
        for line in file.read_bytes().split(b"\n")[:-1]:
            record = _parsed(line, file, "lines", None)
            if not all(isinstance(record.get(name), int | float) for name in names):
                break
            found.append(record)
    return found


def read_last_line(file: Path) -> dict[str, Any] | None:
    """Reads the last whole line and none before it, since a sweep asks for it all the time.

    Args:
        file: Of JSON lines.

    Returns:
        Its record; None where there is no file, or no whole line in it.

    Raises:
        RunError: The line is damaged.
    """
    if not file.exists():
        return None
    with file.open("rb") as opened:
        size = opened.seek(0, os.SEEK_END)
        length = _FIRST_LOOK
        while True:
            start = opened.seek(max(0, size - length))
            *whole, _ = opened.read(size - start).split(b"\n")
            if not whole and start == 0:
                return None
            if start == 0 or len(whole) > 1:  # else its beginning may lie further back
                is_linked = _crc_in(whole[-1]) is not None
                before = _crc_in(whole[-2]) if len(whole) > 1 else 0 if is_linked else None
                return _parsed(whole[-1], file, "last whole line", before)
            length *= 2


def without_nan(value: Any) -> Any:
    """Puts None in place of numbers that are not finite, which JSON cannot hold.

    Args:
        value: A number, or a mapping that may hold some at any depth; others stay as they are.

    Returns:
        The same without infinities and NaN.

    >>> without_nan({"loss": float("nan"), "round": 3})
    {'loss': None, 'round': 3}
    """
    if isinstance(value, Mapping):
        return {name: without_nan(part) for name, part in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _begins_without_chain(content: bytes) -> bool:
    first = content.split(b"\n", 1)[0]
    if _crc_in(first) is not None:
        return False
    with contextlib.suppress(ValueError):
        return isinstance(parse_json(first), dict)
    return False  # an empty file, or one whose first line is damaged


def _crc_in(line: bytes) -> int | None:
    """What a line that is chained ends with; None where it is not."""
    end = line[-_LINK_LENGTH:].decode(errors="replace")
    try:
        crc = int(end[-10:-2], 16)
    except ValueError:
        return None
    return crc if end == _LINK % crc else None


def _parsed(
    line: bytes,
    file: Path,
    where: str,
    before: int | None,
    earlier: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    try:
        record: dict[str, Any] = parse_json(line)
        crc = _crc_in(line)
        if (crc is None) != (before is None):
            raise ValueError("its checksum is missing, or that of the line before it")
        if before is not None and crc != zlib.crc32(line[:-_LINK_LENGTH] + b"}", before):
            raise ValueError("it was changed since it was written, or a line before it was removed")
        refuse_other_kinds(record)
        if earlier:
            refuse_other_place(record, earlier[0], earlier[-1])
    except (ValueError, TypeError, KeyError) as error:  # of JSON, or the encoding
        raise _damage(file, where, error) from error
    if before is not None:
        del record[_CRC]
    return record


def _damage(file: Path, where: str, error: Exception) -> RunError:
    return RunError(
        f"{file} is damaged in its {where} ({type(error).__name__}: {error}). `fedvarp resume` "
        f"puts it right from the run's checkpoint; without one, restore it from a copy, or "
        f"leave the run out."
    )
