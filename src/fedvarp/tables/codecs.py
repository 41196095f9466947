"""How a row is written down: float64, float32, bfloat16, float16 or int8 with a scale per block.

A codec turns a part of a row into bytes and back. Where the bytes live (memory, disk) is another
matter, and so is the mean, which is always that of the *decoded* rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from fedvarp.errors import InvalidError


class Codec(ABC):
    """A row of `dim` numbers as bytes; a row of zero bytes decodes to zeros.

    Parts start at a multiple of `block`, so that a row can be worked on piece by piece.
    """

    name: str
    dtype: torch.dtype = torch.float32  # what goes in and comes out
    lossless: bool = False
    block: int = 1

    @abstractmethod
    def row_bytes(self, dim: int) -> int:
        """Bytes that a row of `dim` numbers takes."""

    @abstractmethod
    def decode(self, encoded: Tensor, start: int, stop: int) -> Tensor:
        """Reads part of a row.

        Args:
            encoded: (row_bytes,) uint8, the row.
            start: The first number wanted, a multiple of `block`.
            stop: The one after the last.

        Returns:
            (stop − start,) of `dtype`; may be a view of `encoded`.
        """

    @abstractmethod
    def encode(self, encoded: Tensor, start: int, values: Tensor) -> None:
        """Writes part of a row.

        Args:
            encoded: (row_bytes,) uint8, the row, changed in place.
            start: Where to begin, a multiple of `block`.
            values: (n,) finite numbers of `dtype`.
        """


class Cast(Codec):
    """Each number in a floating-point format of its own; what is too large is clipped, not inf."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.name = str(dtype).removeprefix("torch.")
        self.stored_as = dtype
        self.dtype = torch.float64 if dtype == torch.float64 else torch.float32
        self.lossless = dtype == self.dtype

    def row_bytes(self, dim: int) -> int:
        """Bytes a row takes."""
        return dim * self.stored_as.itemsize

    def decode(self, encoded: Tensor, start: int, stop: int) -> Tensor:
        """Numbers start…stop of a row; a view where the codec is lossless."""
        return encoded.view(self.stored_as)[start:stop].to(self.dtype)

    def encode(self, encoded: Tensor, start: int, values: Tensor) -> None:
        """Writes finite `values` at `start`."""
        if not self.lossless:
            limit = torch.finfo(self.stored_as).max
            values = values.clamp(-limit, limit)
        encoded.view(self.stored_as)[start : start + len(values)].copy_(values)


class Int8(Codec):
    """Whole numbers from -127 to 127 and, for every 256 of them, a float32 scale.

    The scales stand first, so that both parts stay aligned whatever the length of the row.
    """

    name = "int8"
    block = 256

    def row_bytes(self, dim: int) -> int:
        """Bytes a row takes: one for each number and four for each block."""
        return dim + 4 * self._num_blocks(dim)

    def decode(self, encoded: Tensor, start: int, stop: int) -> Tensor:
        """Numbers start…stop of a row, start a multiple of the block."""
        scales, whole = self._parts(encoded)
        numbers = whole[start:stop].float()
        blocks = scales[start // self.block : self._num_blocks(stop)]
        return numbers.mul_(blocks.repeat_interleave(self.block)[: stop - start])

    def encode(self, encoded: Tensor, start: int, values: Tensor) -> None:
        """Writes finite `values` at `start`, a multiple of the block."""
        scales, whole = self._parts(encoded)
        count, stop = len(values), start + len(values)
        blocks = torch.nn.functional.pad(values, (0, -count % self.block)).view(-1, self.block)
        # The smallest normal number keeps the division finite where a block is all but zero.
        scale = (blocks.abs().amax(dim=1) / 127).clamp_min(torch.finfo(torch.float32).tiny)
        scales[start // self.block : self._num_blocks(stop)] = scale
        rounded = (blocks / scale[:, None]).round_()
        whole[start:stop].copy_(rounded.view(-1)[:count])

    def _num_blocks(self, dim: int) -> int:
        return -(-dim // self.block)

    def _parts(self, encoded: Tensor) -> tuple[Tensor, Tensor]:
        # bytes = dim + 4 * ceil(dim / block) has one solution: whole strides of block + 4 bytes.
        head = 4 * -(-len(encoded) // (self.block + 4))
        return encoded[:head].view(torch.float32), encoded[head:].view(torch.int8)


CODECS: Final[Mapping[str, Codec]] = {
    codec.name: codec
    for codec in (
        Cast(torch.float64),
        Cast(torch.float32),
        Cast(torch.bfloat16),
        Cast(torch.float16),
        Int8(),
    )
}


def codec_named(name: str) -> Codec:
    """The codec of that name.

    Args:
        name: A name in `CODECS`.

    Returns:
        The codec.

    Raises:
        ValueError: There is none of that name.
    """
    if name not in CODECS:
        raise InvalidError(f"No codec is called {name!r}; there are {', '.join(CODECS)}.")
    return CODECS[name]
