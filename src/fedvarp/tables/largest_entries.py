"""The largest entry of each row: found in one read of it, and known for as long as it holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from fedvarp.errors import InvalidError
from fedvarp.tables.blocks import blocks

DIVERGED_ABOVE: Final = 1e18
"""An entry beyond this has a square that overflows float32: the client's training has diverged."""


@dataclass(frozen=True, eq=False)
class LargestEntries:
    """The largest absolute value of each row; NaN where the row holds one.

    At the size of ResNet-18 finding them costs a third of the whole server update, so whoever has
    just made the rows should measure them: then neither server nor table need look. They hold for
    that very tensor and only until it is changed, which torch counts.

    Attributes:
        values: One number for each row.
        rows: (M, d), whose they are.
        version: How often the rows had been written to when they were measured.
        norms: How long each row is, where it was measured in the same read.

    >>> rows = torch.tensor([[1.0, -3.0], [0.0, 2.0]])
    >>> largest = LargestEntries.of(rows)
    >>> largest.values
    (3.0, 2.0)
    >>> rows[0, 1] = float("nan")
    >>> largest.hold_for(rows)
    False
    """

    values: tuple[float, ...]
    rows: Tensor
    version: int
    norms: tuple[float, ...] | None = None

    @classmethod
    def of(cls, rows: Tensor, known: LargestEntries | None = None) -> LargestEntries:
        """The largest entries of these rows, read only if they are not known.

        Args:
            rows: (M, d).
            known: What was measured earlier; taken if it still holds for these very rows.

        Returns:
            `known`, or what was measured now.
        """
        if known is not None and known.hold_for(rows):
            return known
        return cls.known(_measured(rows), rows)

    @classmethod
    def known(
        cls, values: Sequence[float], rows: Tensor, norms: Sequence[float] | None = None
    ) -> LargestEntries:
        """What somebody else has measured of these rows, as they are now.

        Args:
            values: The largest absolute value of each row; NaN where the row holds one.
            rows: (M, d).
            norms: How long each row is; None: nobody has looked.

        Returns:
            The values, tied to the rows.

        Raises:
            ValueError: There are not as many values as rows.
        """
        if len(values) != len(rows):
            raise InvalidError(
                f"{len(values)} largest entries for {len(rows)} rows; give one for each."
            )
        return cls(tuple(values), rows, _version(rows), None if norms is None else tuple(norms))

    def hold_for(self, rows: Tensor) -> bool:
        """Whether these are the rows that were measured, unchanged since.

        Args:
            rows: (M, d).

        Returns:
            True if the values can be relied on.
        """
        return rows is self.rows and _version(rows) == self.version


def stacked(rows: Sequence[Tensor]) -> tuple[Tensor, LargestEntries]:
    """Stacks rows and finds their largest entries in the same pass over memory.

    Args:
        rows: At least one row, each (d,).

    Returns:
        The rows, (M, d), and the largest entry of each.
    """
    stack = rows[0].new_empty(len(rows), *rows[0].shape)
    values = []
    for copy, row in zip(stack, rows, strict=True):
        bounds = [torch.aminmax(copy[here].copy_(row[here])) for here in blocks(len(row))]
        values.append(float(torch.tensor(_largest(bounds)).max()))
    return stack, LargestEntries.known(values, stack)


def _measured(rows: Tensor) -> list[float]:
    if rows.shape[0] == 0 or rows.shape[1] == 0:
        return [0.0] * rows.shape[0]
    return _largest([torch.aminmax(row) for row in rows])


def _largest(bounds: Sequence[torch.return_types.aminmax]) -> list[float]:
    lows = torch.stack([bound.min for bound in bounds])
    highs = torch.stack([bound.max for bound in bounds])
    largest: list[float] = torch.maximum(-lows, highs).tolist()
    return largest


def _version(rows: Tensor) -> int:
    # Tensors made in inference mode keep no count.
    return 0 if rows.is_inference() else rows._version
