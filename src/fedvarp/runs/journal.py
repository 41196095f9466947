"""Files of JSON lines: appended to round by round, cut back to a checkpoint, and read."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from fedvarp.runs.errors import RunError
from fedvarp.runs.figures import FIGURES
from fedvarp.whole_files import write_whole

_NUMBERS: Final = frozenset(
    (*FIGURES, "bytes_up", "bytes_down", "server_bytes", "num_refused", "num_replies")
)
_FIRST_LOOK: Final = 4096  # bytes at the end of a file; a usual line has some hundreds


class Journal:
    """A file of JSON lines that can be cut back to where a checkpoint left it.

    Args:
        path: The file; it is made if there is none, and appended to otherwise.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("ab", buffering=0)  # what could not be written is not tried again

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
        line = memoryview(line_of(record))
        while line:
            line = line[self._file.write(line) :]

    def become(self, records: Iterable[Mapping[str, Any]]) -> bool:
        """Drops what follows these records; where the file does not begin with them, writes it.

        Args:
            records: Those that were committed.

        Returns:
            Whether what was there had been changed by somebody: it differs in more than a crash
            or a power failure can do to it, and is kept with ``.changed`` behind its name.
        """
        wanted, found = b"".join(map(line_of, records)), self.path.read_bytes()
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

    def cut_back_or_further(self, size: int) -> None:
        """Drops all but the whole lines within the first bytes, up to the first damaged one.

        Args:
            size: How many bytes stay at most; the file may have fewer.
        """
        sound = 0
        for line in self.path.read_bytes()[:size].splitlines(keepends=True):
            try:
                json.loads(line)
            except (ValueError, RecursionError):  # of JSON, or of the encoding
                break
            sound += len(line) if line.endswith(b"\n") else 0
        self.cut_back(sound)

    def sync(self) -> None:
        """Waits until the disk has everything that was appended."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def line_of(record: Mapping[str, Any]) -> bytes:
    """A record as its line of a journal.

    Args:
        record: What JSON can hold; numbers that are not finite become null.
    """
    return json.dumps(without_nan(record), allow_nan=False).encode() + b"\n"


def read_lines(file: Path) -> list[dict[str, Any]]:
    """Reads all whole lines; one without its end is a round that is being written right now.

    Args:
        file: Of JSON lines.

    Returns:
        One record for each line.

    Raises:
        RunError: The file does not exist, or a line of it is damaged.
    """
    if not file.exists():
        raise RunError(f"{file} does not exist: no round of that run was recorded.")
    *whole, _ = file.read_bytes().split(b"\n")
    return [_parsed(line, file, f"line {n}") for n, line in enumerate(whole, start=1)]


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
            record = _parsed(line, file, "lines")
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
            if start == 0 or len(whole) > 1:  # else its beginning may lie further back
                return _parsed(whole[-1], file, "last whole line") if whole else None
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


def _parsed(line: bytes, file: Path, where: str) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(line)
        _refuse_other_kinds(record)
    except (ValueError, TypeError, KeyError, RecursionError) as error:  # of JSON, or the encoding
        raise RunError(
            f"{file} is damaged in its {where} ({type(error).__name__}: {error}). `fedvarp resume` "
            f"puts it right from the run's checkpoint; without one, restore it from a copy, or "
            f"leave the run out."
        ) from error
    return record


def _refuse_other_kinds(record: Mapping[str, Any]) -> None:
    """Refuses values that no run writes, before somebody calculates with them."""
    if type(record["round"]) is not int or record["round"] < 0:
        raise ValueError("round is no whole number")
    if not isinstance(record.get("clients", []), list):
        raise TypeError("clients is no list")
    refused = record.get("refused", {})
    if not isinstance(refused, dict) or not all(isinstance(why, str) for why in refused.values()):
        raise TypeError("refused holds no reasons")
    for name in _NUMBERS & record.keys():
        if type(record[name]) not in (int, float, type(None)):
            raise TypeError(f"{name} is no number")
