"""The seal of a store: how many values it holds, and one digest over all their names and checksums.

A checksum beside each value tells a damaged value from a sound one, but not that a value is gone.
The seal does. It is a sum over the values, so that a transaction which changes M of them has M
terms to take out and M to put in, however many others there are.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fedvarp.system.parsing import parse_json
from fedvarp.tables.pages import DamagedPagesError, Snapshot, Value, values

CHECKSUMS: Final = "checksums"
"""The database of checksums, by the names of databases and keys."""
SEAL: Final = "seal"
"""The database that holds the seal alone, under its own name."""

_CHECKSUMS, _SEAL = CHECKSUMS.encode(), SEAL.encode()
_RECORD: Final = struct.Struct("<QQ16sI")  # transaction, count, digest, CRC-32 of those
_ALL: Final = 2**128 - 1
_UNSEALED_FORMAT: Final = 1


def checksum(value: Any) -> bytes:
    """CRC-32 and length of some bytes."""
    return zlib.crc32(value).to_bytes(4, "little") + len(value).to_bytes(8, "little")


@dataclass(frozen=True)
class Seal:
    """What a store holds, in two numbers.

    Attributes:
        count: How many values.
        digest: The sum over them of a digest of name and checksum, modulo 2^128.
    """

    count: int = 0
    digest: int = 0

    def plus(self, name: bytes, recorded: bytes) -> Seal:
        """With one value more, of this name and checksum."""
        return Seal(self.count + 1, (self.digest + _term(name + recorded)) & _ALL)

    def minus(self, name: bytes, recorded: bytes) -> Seal:
        """With one value less."""
        return Seal(self.count - 1, (self.digest - _term(name + recorded)) & _ALL)

    def packed(self, transaction: int) -> bytes:
        """Its record, which belongs to one transaction."""
        numbers = struct.pack("<QQ", transaction, self.count) + self.digest.to_bytes(16, "little")
        return numbers + zlib.crc32(numbers).to_bytes(4, "little")

    @staticmethod
    def unpacked(record: bytes) -> Seal:
        """The seal of a record."""
        _, count, digest, _ = _RECORD.unpack(record)
        return Seal(count, int.from_bytes(digest, "little"))


def _term(name: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(name, digest_size=16).digest(), "little")


def examine(file: int, snapshot: Snapshot, *, with_values: bool) -> Seal | None:
    """Proves that a snapshot is whole: its pages, its keys, its checksums, perhaps its values.

    Args:
        file: A descriptor to read LMDB's file from.
        snapshot: Which of its states.
        with_values: Whether to read all values too; else only what stands in the trees.

    Returns:
        Its seal; None for what a version without seals has written.

    Raises:
        DamagedPagesError: It is not; says what is wrong.
        OSError: The disk cannot be read.
    """
    recorded = present = names = 0  # sums: of checksums; of values; of either's names
    counts = [0, 0]  # of checksums, of values
    found: bytes | None = None
    about: bytes | None = None
    for value in values(file, snapshot):
        database, key = value.database, value.key
        if database == _SEAL:
            found = _bytes(file, value)
            continue
        if database == _CHECKSUMS:
            counts[0] += 1
            recorded += _term(key + _bytes(file, value))
            names += 0 if with_values else _term(key)
            continue
        counts[1] += 1
        name = database + b"/" + key
        if with_values:
            present += _term(name + checksum(_bytes(file, value)))
        else:
            names -= _term(name)
        if name == b"state/about":
            about = _bytes(file, value)
    if about is not None and _format(about) == _UNSEALED_FORMAT:
        return None
    if found is None or len(found) != _RECORD.size:
        raise DamagedPagesError("the record of what it holds is missing")
    seal, transaction, crc = Seal.unpacked(found), *_RECORD.unpack(found)[::3]
    if crc != zlib.crc32(found[:-4]) or transaction != snapshot.transaction:
        raise DamagedPagesError("the record of what it holds is of another state")
    if with_values and present != recorded:
        raise DamagedPagesError(_first_mismatch(file, snapshot))
    if seal != Seal(counts[0], recorded & _ALL):
        raise DamagedPagesError(f"it has {counts[0]} values, and not the {seal.count} sealed")
    if counts[0] != counts[1] or names:
        raise DamagedPagesError("it has values under other keys than were written")
    return seal


def _bytes(file: int, value: Value) -> bytes:
    if value.data is not None:
        return value.data
    found = os.pread(file, value.length, value.offset)
    if len(found) != value.length:
        raise DamagedPagesError(f"{value.database.decode(errors='replace')} was cut off")
    return found


def _format(about: bytes) -> object:
    try:
        return parse_json(about).get("format")
    except (ValueError, AttributeError):
        return None


def _first_mismatch(file: int, snapshot: Snapshot) -> str:
    """Names a value that is not what its checksum says; only for what is known to be damaged."""
    recorded, found = {}, {}
    for value in values(file, snapshot):
        if value.database == _CHECKSUMS:
            recorded[value.key] = _bytes(file, value)
        elif value.database != _SEAL:
            found[value.database + b"/" + value.key] = checksum(_bytes(file, value))
    name = next(n for n in sorted({*recorded, *found}) if recorded.get(n) != found.get(n))
    return f"the checksum of {name.decode(errors='replace')} does not match"


def sealed_afresh(transaction: Any, databases: Mapping[str, Any], environment: Any) -> Seal:
    """The seal of what a version without seals has written.

    It left the checksums of databases that were emptied, which go.

    Args:
        transaction: Of LMDB, that writes.
        databases: Handles by name; the checksums' is among them.
        environment: LMDB's.

    Returns:
        The seal of all values that have a checksum.
    """
    seal, checksums, present = Seal(), databases[CHECKSUMS], set()
    for name in [bytes(name) for name, _ in transaction.cursor()]:  # of all databases
        if name not in (CHECKSUMS.encode(), SEAL.encode()):
            db = environment.open_db(name, txn=transaction)
            keys = transaction.cursor(db=db).iternext(values=False)
            present |= {name + b"/" + bytes(key) for key in keys}
    for name, recorded in list(with_prefix(transaction, checksums, "")):
        if name in present:
            seal = seal.plus(name, recorded)
        else:
            transaction.delete(name, db=checksums)
    return seal


def with_prefix(transaction: Any, db: Any, prefix: str) -> Iterator[tuple[bytes, bytes]]:
    """The entries of a database whose keys begin so.

    Args:
        transaction: Of LMDB.
        db: The database's handle.
        prefix: How they begin.

    Yields:
        Keys and values, in the order of keys.
    """
    cursor = transaction.cursor(db=db)
    if cursor.set_range(prefix.encode()):
        for key, value in cursor:
            if not key.startswith(prefix.encode()):
                return
            yield key, value
