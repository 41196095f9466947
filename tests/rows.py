"""Rows to put into tables, and the law that every table keeps."""

from __future__ import annotations

import torch
from torch import Tensor

from fedvarp import ClientTable, stream


def rows_like(table: ClientTable, count: int, seed: int, size: float = 1.0) -> Tensor:
    generator = stream(seed, "rows")
    return size * torch.randn(count, table.dim, generator=generator, dtype=table.dtype)


def everyone(table: ClientTable) -> Tensor:
    return table.get(torch.arange(table.num_clients))


def assert_law(table: ClientTable) -> None:
    """mean() is the mean of what get() gives, to float32's last digits of the largest row."""
    rows = everyone(table).double()
    tolerance = 3e-7 * float(rows.abs().max()) + 1e-44
    torch.testing.assert_close(table.mean().double(), rows.mean(0), rtol=0, atol=tolerance)
