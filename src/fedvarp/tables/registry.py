"""The kinds of tables by the names that settings use for where rows live."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from fedvarp.tables.disk import DiskTable
from fedvarp.tables.memory import MemoryTable
from fedvarp.tables.row_table import RowTable


def _in_memory(folder: str | None, *shape: Any, fsync: bool, **options: Any) -> MemoryTable:
    return MemoryTable(*shape, **options)


TABLES: Final[dict[str, Callable[..., RowTable]]] = {"memory": _in_memory, "disk": DiskTable}
"""A maker takes (folder, num_clients, dim, codec, *, client_weights, name, device, max_rows,
fsync), where
memory has no use for folder and fsync. One that is added here has to keep every law in
tests/laws."""
