"""Rows on disk, for tables larger than memory."""

from __future__ import annotations

import os
from collections.abc import Iterable

import torch
from torch import Tensor

from fedvarp.errors import InvalidError
from fedvarp.settings.bounds import Count
from fedvarp.settings.checked import checked
from fedvarp.tables.row_table import RowTable
from fedvarp.tables.store import Store, StoreError
from fedvarp.tables.tensors import Weights


class DiskTable(RowTable):
    """Rows in an LMDB folder; memory holds the running sum and the rows not yet written out.

    Alone, every write is one transaction. With a `Checkpoint` in the same folder, rows wait for its
    `commit`, so that the model and the table are always of one round. A folder that holds a table
    already is opened as it is.

    Args:
        path: The folder.
        num_clients: N.
        dim: d, the length of a row.
        codec: How rows are stored: float64, float32, bfloat16, float16 or int8.
        client_weights: (N,) p_i of the objective Σ p_i f_i; None for 1/N each.
        name: Tells tables of one algorithm apart.
        device: Where the running sum lives and rows are handed out.
        fsync: Whether a transaction waits for the disk.
        max_rows: As in `RowTable`.

    Raises:
        StoreError: The folder is damaged or in use, or holds a table of another shape.
        ValueError: As for `RowTable`.
    """

    @checked
    def __init__(
        self,
        path: str | os.PathLike[str],
        num_clients: Count,
        dim: Count,
        codec: str = "float32",
        *,
        client_weights: Weights | None = None,
        name: str = "rows",
        device: torch.device | str = "cpu",
        fsync: bool = True,
        max_rows: Count | None = None,
    ) -> None:
        super().__init__(
            num_clients,
            dim,
            codec,
            client_weights=client_weights,
            name=name,
            device=device,
            max_rows=max_rows,
        )
        self._waiting: dict[int, Tensor] = {}
        self._gone: set[int] = set()  # rows that the disk still has, and should not
        self._database = f"rows/{name}"
        self.store = Store.open(path, fsync=fsync)
        self._saved_in = self.store.identity
        self._is_open = True
        try:
            if name in self.store.tables_open:
                raise StoreError(
                    f"The table {name!r} in {self.store.path} is open already in this process, and "
                    f"two of them would overwrite each other. Close the other one first."
                )
            if self.store.read("tables", f"{name}/about") is not None:
                self.load(self.store)
        except BaseException:
            self.store.close()
            raise
        self.store.tables_open.add(name)

    def _find(self, row: int) -> Tensor | None:
        if row in self._waiting:
            return self._waiting[row]
        if row in self._gone:
            return None
        found = self.store.read(self._database, str(row))
        return None if found is None else found.to(self.device)

    def _keep(self, row: int, encoded: Tensor) -> None:
        self._waiting[row] = encoded
        self._gone.discard(row)

    def _discard(self, row: int) -> None:
        self._waiting.pop(row, None)
        if self.store.contains(self._database, str(row)):
            self._gone.add(row)

    def rows_written(self) -> Iterable[int]:
        """Numbers of the rows that have been written."""
        on_disk = {int(key) for key in self.store.keys(self._database)}
        return (on_disk - self._gone) | self._waiting.keys()

    @property
    def num_rows(self) -> int:
        """How many rows have been written."""
        new = sum(not self.store.contains(self._database, str(row)) for row in self._waiting)
        return self.store.count(self._database) + new - len(self._gone)

    def _before_overwrite(self) -> None:
        if self.store.checkpoints_open == 0 and self.store.contains("state", "about"):
            raise StoreError(
                f"The rows in {self.store.path} belong to a run that is saved round by round; "
                f"changed without its model they would fit no round. Open the Checkpoint of that "
                f"folder first, or use another folder."
            )

    def _after_overwrite(self) -> None:
        if self.store.checkpoints_open == 0:
            self.flush()

    def flush(self) -> None:
        """Writes the waiting rows and the sum in one transaction."""
        batch: dict[tuple[str, str], Tensor | None] = {}
        self.save(batch, self.store)
        self.store.write(batch, self.replaces(self.store))
        self.saved(self.store)

    def saved(self, store: Store) -> None:
        """What `save` collected is on disk; memory lets go of it."""
        super().saved(store)
        self._waiting.clear()
        self._gone.clear()

    def _adopt_rows(self, store: Store) -> None:
        if store is not self.store:
            raise InvalidError(
                f"The rows are in {self.store.path}, the checkpoint is in {store.path}. One "
                f"transaction cannot span two folders: give both the same path."
            )

    def close(self) -> None:
        """Gives the folder back."""
        if self._is_open:
            self._is_open = False
            self.store.tables_open.discard(self.name)
            self.store.close()

    def __enter__(self) -> DiskTable:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
