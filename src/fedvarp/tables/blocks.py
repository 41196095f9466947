"""Long vectors are worked on in blocks, which stay in the cache between operations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

BLOCK: Final = 2**17  # numbers; several float64 temporaries of a block stay in the cache


def blocks(length: int) -> Iterator[slice]:
    """Cuts a vector into blocks.

    Args:
        length: Of the vector.

    Yields:
        The place of each block, in order.
    """
    for start in range(0, length, BLOCK):
        yield slice(start, min(start + BLOCK, length))


def longest_block(length: int) -> int:
    """What a buffer for any block must hold.

    A buffer is made once, not for each block: large ones go to the system and back each time.

    Args:
        length: Of the vector.

    Returns:
        How many numbers the longest of its blocks has.
    """
    return min(length, BLOCK)
