"""Reads LMDB's file by itself, page by page: proves it whole before LMDB maps it.

LMDB trusts its pages. A damaged page number makes it read outside the file, which kills the process
instead of raising an error, and a damaged free list makes it overwrite pages in use. Here every
number is checked before it is followed, and the file is read, not mapped: a failing disk raises an
error. The layout is that of LMDB 0.9 on 64-bit little-endian machines.

The file has two meta pages, written in turn: each names the pages of one whole snapshot, and a
transaction never overwrites a page of the one before. So the snapshot before the newest is always
there too, and shares with it whatever did not change; `earlier.py` keeps more of them.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

IS_KNOWN: Final = sys.byteorder == "little" and sys.maxsize > 2**32 and hasattr(os, "pread")
"""Whether this machine has the layout that is read here, and can read it so; Windows cannot."""

_MAGIC: Final = 0xBEEFC0DE
_VERSION: Final = 1
_NO_PAGE: Final = 2**64 - 1
_HEADER: Final = struct.Struct("<QHHHH")  # number, pad, flags, lower, upper
_TREE: Final = struct.Struct("<IHHQQQQQ")
_META: Final = struct.Struct(f"<IIQQ{_TREE.size}s{_TREE.size}sQQ")
META_BYTES: Final = _HEADER.size + _META.size
"""How much of a meta page there is to know."""
_NODE: Final = struct.Struct("<HHHH")  # low, high, flags, size of the key
_BRANCH, _LEAF, _OVERFLOW, _META_PAGE = 0x01, 0x02, 0x04, 0x08
_BIG, _SUB_TREE = 0x01, 0x02
_INTEGER_KEYS: Final = 0x08
_MOST_LEVELS: Final = 32
_PAGE_SIZES: Final = tuple(2**n for n in range(9, 17))


class DamagedPagesError(Exception):
    """The pages contradict each other; says how."""


class Value(NamedTuple):
    """A value: its database, its key there, where its bytes are in the file, and how many.

    Those of a short one, which were read with its page, are there too; else None.
    """

    database: bytes
    key: bytes
    offset: int
    length: int
    data: bytes | None


_Node = tuple[bytes, int, int, bytes | None, bool]  # key, offset, length, data, is it a tree?


class _Tree(NamedTuple):
    pad: int
    flags: int
    depth: int
    branch_pages: int
    leaf_pages: int
    overflow_pages: int
    entries: int
    root: int


@dataclass(frozen=True)
class Snapshot:
    """One of the states that a file holds.

    Attributes:
        meta: The beginning of the meta page that names it.
        transaction: The number of the transaction that made it.
        page_size: Of the file.
        last_page: The last page in use.
        free: The tree of pages that are free.
        main: The tree of databases.
    """

    meta: bytes
    transaction: int
    page_size: int
    last_page: int
    free: _Tree
    main: _Tree


def snapshots(file: int) -> list[Snapshot]:
    """The states that the file's meta pages name.

    Args:
        file: A descriptor to read from.

    Returns:
        Those that can be meant, the newest first; none where neither meta page is one.

    Raises:
        OSError: The disk cannot be read.
    """
    first = snapshot_of(os.pread(file, META_BYTES, 0), page=0)
    sizes = _PAGE_SIZES if first is None else (first.page_size,)
    seconds = (snapshot_of(os.pread(file, META_BYTES, size), page=1) for size in sizes)
    second = next((found for found in seconds if found is not None), None)
    both = [found for found in (first, second) if found is not None]
    return sorted(both, key=lambda found: found.transaction, reverse=True)


def snapshot_of(meta: bytes, page: int | None = None) -> Snapshot | None:
    """The state that a meta page names.

    Args:
        meta: The beginning of the page.
        page: Its number; None: 0 or 1.

    Returns:
        The state; None where that is no meta page.
    """
    if len(meta) < META_BYTES:
        return None
    number, _, flags, _, _ = _HEADER.unpack_from(meta)
    magic, version, _, _, free, main, last, transaction = _META.unpack_from(meta, _HEADER.size)
    trees = _Tree(*_TREE.unpack(free)), _Tree(*_TREE.unpack(main))
    is_one = flags == _META_PAGE and (magic, version) == (_MAGIC, _VERSION)
    if not is_one or number not in ((0, 1) if page is None else (page,)):
        return None
    if trees[0].pad not in _PAGE_SIZES:
        return None
    return Snapshot(meta, transaction, trees[0].pad, last, *trees)


def go_back(file: int, to: Snapshot) -> None:
    """Makes a snapshot the newest of its file, by letting both meta pages name it.

    Args:
        file: A descriptor to write to, of a file that nobody has open otherwise.
        to: The snapshot.
    """
    for page in (0, 1):
        os.pwrite(file, page.to_bytes(8, "little") + to.meta[8:], page * to.page_size)
    os.fsync(file)


def values(file: int, snapshot: Snapshot) -> Iterator[Value]:
    """Walks over all values of a snapshot, and proves its pages whole on the way.

    Args:
        file: A descriptor to read from.
        snapshot: One of `snapshots`.

    Yields:
        Every value, a database at a time, in the order of their keys.

    Raises:
        DamagedPagesError: A page contradicts another. What was yielded before may be wrong too.
        OSError: The disk cannot be read.
    """
    walk = _Walk(file, snapshot)
    for key, offset, length, data, _ in list(walk.leaves(snapshot.free)):
        walk.note_free(key, os.pread(file, length, offset) if data is None else data)
    for name, _, length, data, is_tree in walk.leaves(snapshot.main):
        if not is_tree or length != _TREE.size or data is None:
            raise DamagedPagesError(f"the entry {name!r} is no database")
        for key, at, size, short, nested in walk.leaves(_Tree(*_TREE.unpack(data))):
            if nested:
                raise DamagedPagesError(f"{name!r} holds a database of its own")
            yield Value(name, key, at, size, short)
    walk.refuse_lost_pages()


class _Walk:
    """Follows page numbers, each at most once."""

    def __init__(self, file: int, snapshot: Snapshot) -> None:
        self._file = file
        self._size = snapshot.page_size
        self._last = snapshot.last_page
        self._transaction = snapshot.transaction
        there = os.fstat(file).st_size
        if (self._last + 1) * self._size > there:
            raise DamagedPagesError(
                f"it has {there} bytes of at least {(self._last + 1) * self._size}, so it was cut "
                f"off, perhaps by an incomplete copy"
            )
        self._seen = bytearray(self._last + 1)
        self._seen[0] = self._seen[1] = 1

    def leaves(self, tree: _Tree) -> Iterator[_Node]:
        """The nodes of a tree, in the order of their keys."""
        counts = [0, 0, 0, 0]  # branch pages, leaf pages, overflow pages, entries
        of_integers = bool(tree.flags & _INTEGER_KEYS)
        if tree.root != _NO_PAGE:
            last = b""  # no key is
            for number in self._leaf_pages(tree.root, tree.depth, counts):
                for node in self._nodes(number, counts):
                    key = node[0][::-1] if of_integers else node[0]  # the last byte counts most
                    if not last < key:
                        raise DamagedPagesError(f"keys of page {number} are in no order")
                    last = key
                    yield node
        said = [tree.branch_pages, tree.leaf_pages, tree.overflow_pages, tree.entries]
        if counts != said or (tree.root == _NO_PAGE and tree.depth):
            raise DamagedPagesError(f"a tree has {counts} pages and entries where {said} are noted")

    def _leaf_pages(self, number: int, levels: int, counts: list[int]) -> Iterator[int]:
        if not 0 < levels <= _MOST_LEVELS:
            raise DamagedPagesError(f"page {number} lies at the wrong depth of its tree")
        if levels == 1:
            yield number
            return
        page, places = self._page(number, _BRANCH)
        counts[0] += 1
        for at in places:
            low, high, flags, key_size = _NODE.unpack_from(page, at)
            if at + _NODE.size + key_size > self._size:
                raise DamagedPagesError(f"a key of page {number} is too long")
            yield from self._leaf_pages(low | high << 16 | flags << 32, levels - 1, counts)

    def _nodes(self, number: int, counts: list[int]) -> Iterator[_Node]:
        page, places = self._page(number, _LEAF)
        counts[1] += 1
        counts[3] += len(places)
        size, start = self._size, number * self._size
        for at in places:
            low, high, flags, key_size = _NODE.unpack_from(page, at)
            begin, length = at + _NODE.size + key_size, low | high << 16
            key = page[at + _NODE.size : begin]
            if begin > size or not key or flags not in (0, _BIG, _SUB_TREE):
                raise DamagedPagesError(f"page {number} holds what this program never writes")
            if flags == _BIG:
                first = int.from_bytes(page[begin : begin + 8], "little")
                counts[2] += self._take_overflow(first, length)
                yield key, first * size + _HEADER.size, length, None, False
            elif begin + length > size:
                raise DamagedPagesError(f"a value of page {number} is too long")
            else:
                data = page[begin : begin + length]
                yield key, start + begin, length, data, flags == _SUB_TREE

    def _page(self, number: int, kind: int) -> tuple[bytes, tuple[int, ...]]:
        """A page of a tree, and where its nodes are in it."""
        self._take(number, 1)
        page = os.pread(self._file, self._size, number * self._size)
        own, _, flags, lower, upper = _HEADER.unpack_from(page)
        if own != number or flags != kind or not 16 <= lower <= upper <= self._size or lower % 2:
            raise DamagedPagesError(f"page {number} is not what its tree expects")
        places = struct.unpack_from(f"<{(lower - 16) // 2}H", page, 16)
        if any(at < upper or at > self._size - _NODE.size or at % 2 for at in places):
            raise DamagedPagesError(f"page {number} points outside itself")
        return page, places

    def _take(self, first: int, count: int) -> None:
        if not 1 < first <= first + count - 1 <= self._last:
            raise DamagedPagesError(f"page {first} is outside the file")
        if any(self._seen[first : first + count]):
            raise DamagedPagesError(f"page {first} is used twice")
        self._seen[first : first + count] = b"\x01" * count

    def _take_overflow(self, first: int, length: int) -> int:
        if not 1 < first <= self._last:
            raise DamagedPagesError(f"page {first} is outside the file")
        own, _, flags, low, high = _HEADER.unpack(os.pread(self._file, 16, first * self._size))
        count: int = low | high << 16
        # More pages than needed are in order: a value that shrinks within a transaction keeps them.
        enough = count * self._size >= _HEADER.size + length
        if own != first or flags != _OVERFLOW or not enough:
            raise DamagedPagesError(f"page {first} does not begin a value of {length} bytes")
        self._take(first, count)
        return count

    def note_free(self, key: bytes, listed: bytes) -> None:
        """Takes the pages that one record of the free list names."""
        length = len(listed)
        if len(key) != 8 or length < 8 or length % 8:
            raise DamagedPagesError("the list of free pages cannot be read")
        count, *pages = struct.unpack(f"<{length // 8}Q", listed)
        if count > len(pages) or int.from_bytes(key, "little") > self._transaction:
            raise DamagedPagesError("the list of free pages contradicts itself")
        for page in pages[:count]:
            self._take(page, 1)

    def refuse_lost_pages(self) -> None:
        """Every page up to the last is used, or free."""
        if lost := self._seen.count(0):
            raise DamagedPagesError(f"{lost} pages are neither used nor free")
