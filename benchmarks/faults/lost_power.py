"""A disk that loses power: what it may hold at any moment of a logged run.

The model is what POSIX leaves open, and no more. Bytes are safe once their file was synced, or
written through a descriptor that waits for each write. Names are safe once their folder was synced.
Of all else, any subset of the 512-byte sectors written may have arrived, in any order, a file may
have grown without its bytes, which then read as zeros, and of the changes to a folder's names any
first part may have. A rename is there or not.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_HEAD: Final = struct.Struct("<QQqQQ")
_SECTOR: Final = 512


@dataclass(frozen=True)
class Call:
    """One call of a log.

    Attributes:
        kind: c(reate), w(rite), d (write and wait), t(runcate), s(ync), r(ename), u(nlink), m(ake
            folder), or ! for a round that was acknowledged.
        inode: Of the file.
        offset: Where it was written or cut off; the round.
        path: Of the file.
        data: What was written; the new name.
    """

    kind: str
    inode: int
    offset: int
    path: str
    data: bytes


def read_log(file: Path) -> list[Call]:
    """Reads what the shim has logged."""
    content, at, calls = file.read_bytes(), 0, []
    while at < len(content):
        kind, inode, offset, names, data = _HEAD.unpack_from(content, at)
        at += _HEAD.size
        path, written = content[at : at + names].decode(), content[at + names : at + names + data]
        at += names + data
        calls.append(Call(chr(kind), inode, offset, path, written))
    return calls


@dataclass(eq=False)
class _File:
    safe: bytearray = field(default_factory=bytearray)
    waiting: list[tuple[int, bytes | None]] = field(default_factory=list)  # None: cut off there

    def change(self, content: bytearray, offset: int, data: bytes | None) -> None:
        if data is None:
            del content[offset:]
            content.extend(bytes(offset - len(content)))
        else:
            content.extend(bytes(max(0, offset + len(data) - len(content))))
            content[offset : offset + len(data)] = data

    def sync(self) -> None:
        for offset, data in self.waiting:
            self.change(self.safe, offset, data)
        self.waiting.clear()

    def after_the_cut(self, share: float, draw: random.Random) -> bytes:
        content = bytearray(self.safe)
        for offset, data in self.waiting:
            if data is None:
                if draw.random() < share:
                    self.change(content, offset, None)
                continue
            if draw.random() < 0.5 and len(content) < offset + len(data):
                self.change(content, offset + len(data), None)  # grown, and nothing in it
            for begin, end in _sectors(offset, len(data)):
                if draw.random() < share:
                    self.change(content, begin, data[begin - offset : end - offset])
        return bytes(content)


def _sectors(offset: int, length: int) -> Iterator[tuple[int, int]]:
    at = offset
    while at < offset + length:
        end = min(offset + length, (at // _SECTOR + 1) * _SECTOR)
        yield at, end
        at = end


@dataclass(eq=False)
class _Folder:
    safe: dict[str, _File | _Folder] = field(default_factory=dict)
    live: dict[str, _File | _Folder] = field(default_factory=dict)
    waiting: list[tuple[str, str | None, _File | _Folder | None]] = field(default_factory=list)

    def change(self, name: str, new: str | None, node: _File | _Folder | None) -> None:
        """A name appears (new is None), changes (both), or goes (node is None)."""
        self.waiting.append((name, new, node))
        _apply(self.live, name, new, node)

    def sync(self) -> None:
        for change in self.waiting:
            _apply(self.safe, *change)
        self.waiting.clear()


def _apply(
    names: dict[str, _File | _Folder], name: str, new: str | None, node: _File | _Folder | None
) -> None:
    if node is None:
        names.pop(name, None)
    elif new is None:
        names[name] = node
    else:
        names.pop(name, None)
        names[new] = node


class Disk:
    """What a disk holds for sure, and what it may hold.

    Args:
        root: The folder that the log is about; it is there from the beginning.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._top = _Folder()
        self._files: dict[int, _File] = {}

    def do(self, call: Call) -> None:
        """Follows one call of the log."""
        if call.kind == "!":
            return
        if call.kind in "wdt" or (call.kind == "s" and call.inode in self._files):
            self._change_file(call)
            return
        if call.kind == "s":
            folder = self._at(Path(call.path))
            if isinstance(folder, _Folder):
                folder.sync()
            return
        path = Path(call.path)
        above, name = self._at(path.parent), path.name
        if not isinstance(above, _Folder):
            raise ValueError(f"{path.parent} is no folder of the log")
        if call.kind == "c":
            self._files[call.inode] = _File()
            above.change(name, None, self._files[call.inode])
        elif call.kind == "m":
            above.change(name, None, _Folder())
        elif call.kind == "u":
            above.change(name, None, None)
        elif call.kind == "r":
            above.change(name, Path(call.data.decode()).name, above.live[name])

    def _change_file(self, call: Call) -> None:
        file = self._files[call.inode]
        if call.kind == "s":
            file.sync()
        elif call.kind == "d":
            file.change(file.safe, call.offset, call.data)
        else:
            file.waiting.append((call.offset, None if call.kind == "t" else call.data))

    def _at(self, path: Path) -> _File | _Folder | None:
        node: _File | _Folder | None = self._top
        for part in path.relative_to(self._root).parts:
            node = node.live.get(part) if isinstance(node, _Folder) else None
        return node

    def after_the_cut(self, to: Path, draw: random.Random) -> None:
        """Writes out one of the states that the disk may be in if the power fails now.

        Args:
            to: A folder that stands for the root.
            draw: Decides what has arrived.
        """
        share = draw.choice((0.0, 0.3, 0.5, 0.9, 1.0))
        _write_out(self._top, to, share, draw)


def _write_out(folder: _Folder, to: Path, share: float, draw: random.Random) -> None:
    to.mkdir(parents=True, exist_ok=True)
    names = dict(folder.safe)
    for change in folder.waiting[: draw.choice((0, len(folder.waiting), draw.randint(0, 99)))]:
        _apply(names, *change)
    for name, node in names.items():
        if isinstance(node, _Folder):
            _write_out(node, to / name, share, draw)
        else:
            (to / name).write_bytes(node.after_the_cut(share, draw))
