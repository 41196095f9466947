"""How long rows are: squares of blocks, which stay in the cache, added up in float64."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Final

import torch
from torch import Tensor

from fedvarp.tables.blocks import blocks, longest_block

_SMALL_SQUARES: Final = 1e-20  # of float32, whose squares vanish below 1e-45
_LARGE_SQUARES: Final = 1e35  # and overflow above 3e38


def norm(row: Tensor, squares: Iterable[float] | None = None) -> float:
    """‖row‖, its blocks added up in float64; in float64 throughout if squares may be none.

    Args:
        row: (d,), which is read only if it must be.
        squares: ‖block‖² of blocks that make up the row, if somebody has taken them.

    Returns:
        The norm; NaN or infinity if the row holds such.

    >>> norm(torch.tensor([3.0, 4.0])), norm(torch.tensor([3.0, 4.0]) * 2.0**-100) * 2.0**100
    (5.0, 5.0)
    """
    parts = [row[here] for here in blocks(len(row))]
    total = math.fsum(_squares(parts) if squares is None else squares)
    if not _SMALL_SQUARES < total < _LARGE_SQUARES:
        buffer = row.new_empty(longest_block(len(row)), dtype=torch.float64)
        total = math.fsum(_squares(buffer[: len(part)].copy_(part) for part in parts))
    return math.sqrt(total)


def _squares(blocks: Iterable[Tensor]) -> Iterator[float]:
    return (float(torch.dot(block, block)) for block in blocks)
