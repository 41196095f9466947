"""What a trainer and its forked workers write for each other to read."""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedvarp.clients.local_training import LocalResult


@dataclass(frozen=True, eq=False)
class Board:
    """Memory that a process and its forked children share: the model of a round, and its updates.

    A client of the round has a slot, which one worker writes and the parent reads afterwards.
    """

    w: Tensor  # (d,)
    buffers: Tensor  # (b,) bytes: those of the model that goes out
    corrections: Tensor  # (M, d)
    deltas: Tensor  # (M, d)
    sent_buffers: Tensor  # (M, b) bytes
    counts: Tensor  # (M, 2) int64: steps and examples
    figures: Tensor  # (M, 3) float64: walk, mean loss, magnitude
    scores: Tensor  # (parts of an evaluation, scores of each) float64

    @classmethod
    def sized(
        cls, slots: int, w: Tensor, buffers: Mapping[str, Tensor], parts: int, scores: int
    ) -> Board:
        """A board for `slots` clients of a model like this one."""
        num_bytes = sum(buffer.nbytes for buffer in buffers.values())
        return cls(
            w=_shared((len(w),), w.dtype),
            buffers=_shared((num_bytes,), torch.uint8),
            corrections=_shared((slots, len(w)), w.dtype),
            deltas=_shared((slots, len(w)), w.dtype),
            sent_buffers=_shared((slots, num_bytes), torch.uint8),
            counts=_shared((slots, 2), torch.int64),
            figures=_shared((slots, 3), torch.float64),
            scores=_shared((parts, scores), torch.float64),
        )

    def show(self, w: Tensor, buffers: Mapping[str, Tensor]) -> None:
        """The model that the workers start from."""
        self.w.copy_(w)
        _pack(buffers.values(), self.buffers)

    def write(self, slot: int, result: LocalResult, buffers: Mapping[str, Tensor]) -> None:
        """What the client of that slot sends back."""
        self.deltas[slot] = result.delta
        self.counts[slot] = torch.tensor([result.num_steps, result.num_examples])
        figures = [result.walk, result.mean_loss, result.magnitude]
        self.figures[slot] = torch.tensor(figures, dtype=torch.float64)
        _pack(buffers.values(), self.sent_buffers[slot])

    def read(self, slot: int) -> LocalResult:
        """What was written; its delta is the slot's memory, another client's in the next round."""
        num_steps, num_examples = self.counts[slot].tolist()
        walk, mean_loss, magnitude = self.figures[slot].tolist()
        return LocalResult(
            delta=self.deltas[slot],
            num_steps=num_steps,
            walk=walk,
            mean_loss=mean_loss,
            num_examples=num_examples,
            magnitude=magnitude,
        )


def unpacked(packed: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Buffers from their bytes, copied; `like` gives names, shapes and dtypes."""
    sizes = [buffer.nbytes for buffer in like.values()]
    return {
        name: part.clone().view(buffer.dtype).view(buffer.shape)
        for (name, buffer), part in zip(like.items(), torch.split(packed, sizes), strict=True)
    }


def _pack(buffers: Iterable[Tensor], into: Tensor) -> None:
    parts = [buffer.contiguous().reshape(-1).view(torch.uint8) for buffer in buffers]
    if parts:
        torch.cat(parts, out=into)


def _shared(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros that forked processes share.

    The mapping has no name, so nothing is left behind however the processes end; and its pages take
    memory only once they are written.
    """
    size = math.prod(shape) * dtype.itemsize
    if size == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(mmap.mmap(-1, size), dtype=dtype).view(shape)
