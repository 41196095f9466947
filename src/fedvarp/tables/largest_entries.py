"""How large the numbers of each update are: found in one read, and remembered while it is true."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from fedvarp.tables.blocks import blocks

LARGEST_MAGNITUDE: Final = 1e18
"""A number beyond this has a square that overflows float32: the client's training has diverged."""


@dataclass(frozen=True, eq=False)
class Magnitudes:
    """The largest absolute value of each row; NaN where the row holds one.

    At the size of ResNet-18 this read costs a third of the whole server update, so whoever has
    just made the rows should measure them: then the server need not. They are worth nothing once
    the rows have changed, which torch counts for every tensor.

    >>> rows = torch.tensor([[1.0, -3.0], [0.0, 2.0]])
    >>> magnitudes = Magnitudes.of(rows)
    >>> magnitudes.values
    (3.0, 2.0)
    >>> rows[0, 1] = float("nan")
    >>> magnitudes.hold_for(rows)
    False
    """

    values: tuple[float, ...]
    rows: Tensor  # (M, d), whose they are
    version: int  # how often the rows had been written to by then

    @classmethod
    def of(cls, rows: Tensor) -> Magnitudes:
        """Measures these rows."""
        return cls.known(row_magnitudes(rows), rows)

    @classmethod
    def known(cls, values: Sequence[float], rows: Tensor) -> Magnitudes:
        """What somebody else has measured of these rows, as they are now."""
        if len(values) != len(rows):
            raise ValueError(f"{len(values)} magnitudes for {len(rows)} rows; give one for each.")
        return cls(tuple(values), rows, _version(rows))

    def hold_for(self, rows: Tensor) -> bool:
        """Whether they are those of these rows, unchanged since."""
        return rows is self.rows and _version(rows) == self.version


def row_magnitudes(rows: Tensor) -> list[float]:
    """The largest absolute value of each row in one read of it; NaN where the row holds one."""
    if rows.shape[0] == 0 or rows.shape[1] == 0:
        return [0.0] * rows.shape[0]
    return _largest([torch.aminmax(row) for row in rows])


def stacked(rows: Sequence[Tensor]) -> tuple[Tensor, Magnitudes]:
    """torch.stack of at least one row, and their magnitudes from the same pass over memory."""
    stack = rows[0].new_empty(len(rows), *rows[0].shape)
    values = []
    for copy, row in zip(stack, rows, strict=True):
        bounds = [torch.aminmax(copy[here].copy_(row[here])) for here in blocks(len(row))]
        values.append(float(torch.tensor(_largest(bounds)).max()))
    return stack, Magnitudes.known(values, stack)


def _largest(bounds: Sequence[torch.return_types.aminmax]) -> list[float]:
    lows = torch.stack([bound.min for bound in bounds])
    highs = torch.stack([bound.max for bound in bounds])
    largest: list[float] = torch.maximum(-lows, highs).tolist()
    return largest


def _version(rows: Tensor) -> int:
    # Tensors made in inference mode keep no count.
    return 0 if rows.is_inference() else rows._version
