"""Long vectors are worked on in blocks, which stay in the cache between operations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

BLOCK: Final = 2**17  # numbers; several float64 temporaries of a stretch stay in the cache


def blocks(length: int) -> Iterator[slice]:
    """A vector of that length, piece by piece."""
    for start in range(0, length, BLOCK):
        yield slice(start, min(start + BLOCK, length))


def longest_block(length: int) -> int:
    """What a buffer for any piece of it must hold.

    A buffer is made once, not for each piece: large ones go to the system and back each time.
    """
    return min(length, BLOCK)
