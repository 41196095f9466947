"""Which rows a table that may hold only so many has to give up: the oldest."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Final

import torch
from torch import Tensor

from fedvarp.tables.store import Store

_DATABASE: Final = "written"


class OldestFirst:
    """The rows of a table by the time of their last write, at most so many.

    Who is dropped reads as never seen. In a federation so large that each client is seen once, only
    the newest rows are worth their memory: an old one says little of its client, and the client
    will hardly come back.

    Args:
        max_rows: How many rows may stay.

    >>> order = OldestFirst(max_rows=2)
    >>> order.written([7, 8]), order.written([7]), order.written([9])
    ([], [], [8])
    """

    def __init__(self, max_rows: int) -> None:
        self.max_rows = max_rows
        self._stamps: dict[int, int] = {}  # row: the number of its last write, oldest first
        self._writes = 0

    def written(self, rows: Iterable[int]) -> list[int]:
        """Notes a write, and says who has to go for it.

        Args:
            rows: Whose rows, in order.

        Returns:
            The rows to drop, oldest first; of those just written the first, if they alone are
            too many.
        """
        for row in rows:
            self._stamps.pop(row, None)
            self._stamps[row] = self._writes
            self._writes += 1
        surplus = len(self._stamps) - self.max_rows
        dropped = [row for row, _ in zip(self._stamps, range(surplus), strict=False)]
        for row in dropped:
            del self._stamps[row]
        return dropped

    def forget(self, rows: Iterable[int]) -> None:
        """Lets go of rows before their turn.

        Args:
            rows: Those that are dropped.
        """
        for row in rows:
            self._stamps.pop(row, None)

    def save(self, name: str, rows: Iterable[int]) -> Mapping[tuple[str, str], Tensor | None]:
        """What a store has to write for these rows.

        Args:
            name: Of the table.
            rows: Those that have changed; whoever is gone is deleted.
        """
        stamps = ((row, self._stamps.get(row)) for row in rows)
        return {
            (f"{_DATABASE}/{name}", str(row)): None if stamp is None else torch.tensor([stamp])
            for row, stamp in stamps
        }

    def load(self, name: str, store: Store) -> None:
        """Takes back what was saved.

        Args:
            name: Of the table.
            store: Where it was.
        """
        database = f"{_DATABASE}/{name}"
        found = [
            (int.from_bytes(stamp, sys.byteorder, signed=True), int(key))
            for key, stamp in store.items(database)
        ]
        self._stamps = {row: stamp for stamp, row in sorted(found)}
        self._writes = 1 + max((stamp for stamp, _ in found), default=-1)

    def databases(self, name: str) -> tuple[str, ...]:
        """What a store holds of it."""
        return (f"{_DATABASE}/{name}",)
