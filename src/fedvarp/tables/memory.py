"""Rows in memory: the everyday table."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from fedvarp.tables.row_table import RowTable
from fedvarp.tables.store import Store, StoreError

_SLAB_BYTES: Final = 16 * 2**20
_SMALL_TABLE: Final = 4 * 2**20  # bytes, up to which one slab has room for every client's row
_ALIGNMENT: Final = 64  # bytes


class MemoryTable(RowTable):
    """Memory for the rows that were ever written; a million silent clients cost nothing.

    Its arguments are those of `RowTable`. Rows are cut from slabs of some megabytes. One allocation
    per row would leave, between those that stay, holes of just the size that the allocator's
    alignment keeps it from using again.

    >>> table = MemoryTable(num_clients=1_000_000, dim=3)
    >>> table.put(torch.tensor([7, 42]), torch.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]))
    >>> table.get(torch.tensor([42, 5]))
    tensor([[3., 2., 1.],
            [0., 0., 0.]])
    >>> table.mean() * 1_000_000
    tensor([4., 4., 4.])
    """

    def _make_room(self) -> None:
        self._rows: dict[int, Tensor] = {}
        self._slab = torch.empty(0, 0, dtype=torch.uint8)
        self._taken = 0
        self._free: list[Tensor] = []  # places of rows that were dropped, all zeros

    def __getstate__(self) -> dict[str, Any]:
        """For other processes: rows by themselves, since each would bring its whole slab along."""
        rows = {number: row.clone() for number, row in self._rows.items()}
        slab = self._slab[:0].clone()
        fresh = {"_slab": slab, "_taken": 0, "_free": [], "_v": None}
        return {**self.__dict__, "_rows": rows, **fresh}

    def _find(self, row: int) -> Tensor | None:
        return self._rows.get(row)

    @property
    def _slab_shape(self) -> tuple[int, int]:
        """The bytes from one row of a slab to the next, and how many rows it has at most."""
        stride = -(-self.codec.row_bytes(self.dim) // _ALIGNMENT) * _ALIGNMENT
        return stride, max(1, _SLAB_BYTES // stride)

    def _blank(self) -> Tensor:
        if self._free:
            return self._free.pop()
        size = self.codec.row_bytes(self.dim)
        if self._taken == len(self._slab):
            stride, at_most = self._slab_shape
            count = min(at_most, 4 + len(self._rows))
            if self.num_clients * stride <= _SMALL_TABLE:  # rows together are exchanged sooner
                count = self.num_clients
            # NumPy's zeros are pages that take no memory until they are touched; torch's are not.
            zeros = torch.from_numpy(np.zeros((count, stride), dtype=np.uint8))
            self._slab, self._taken = zeros.to(self.device), 0
        self._taken += 1
        return self._slab[self._taken - 1, :size]

    def _keep(self, row: int, encoded: Tensor) -> None:
        self._rows[row] = encoded

    def _discard(self, row: int) -> None:
        self._free.append(self._rows.pop(row))

    def rows_written(self) -> Iterable[int]:
        """Numbers of the rows that have been written."""
        return self._rows.keys()

    @property
    def num_rows(self) -> int:
        """How many rows have been written."""
        return len(self._rows)

    def _adopt_rows(self, store: Store) -> None:
        size = self.codec.row_bytes(self.dim)
        stride, at_once = self._slab_shape
        saved = store.items(f"rows/{self.name}")
        rows: dict[int, Tensor] = {}
        while some := dict(islice(saved, at_once)):
            if wrong := [len(row) for row in some.values() if len(row) != size]:
                raise StoreError(f"{store.path} has a row of {wrong[0]} bytes, not {size}.")
            slab = np.zeros((len(some), stride), dtype=np.uint8)
            joined = np.frombuffer(b"".join(some.values()), dtype=np.uint8)
            slab[:, :size] = joined.reshape(-1, size)
            places = torch.from_numpy(slab).to(self.device)[:, :size].unbind()
            rows.update(zip(map(int, some), places, strict=True))
        self._rows = rows
