"""The memory through which a trainer and its forked workers exchange models and updates."""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedvarp.clients.local_training import LocalResult


@dataclass(frozen=True, eq=False)
class SharedRound:
    """One round in shared memory: the model that goes out, and the updates that come back.

    Processes that are forked after it was allocated see the same bytes. Each client of the round
    has a slot, which one worker writes and the parent reads afterwards.
    """

    w: Tensor  # (d,)
    buffers: Tensor  # (b,) bytes: those of the model that goes out
    corrections: Tensor  # (M, d)
    proximal: Tensor  # (1,) float64: ρ of the round
    deltas: Tensor  # (M, d)
    sent_buffers: Tensor  # (M, b) bytes
    counts: Tensor  # (M, 2) int64: steps and examples
    figures: Tensor  # (M, 3) float64: number of gradients, mean loss, magnitude
    scores: Tensor  # (parts of an evaluation, scores of each) float64

    @classmethod
    def allocate(
        cls, slots: int, w: Tensor, buffers: Mapping[str, Tensor], parts: int, scores: int
    ) -> SharedRound:
        """Allocates the memory of a round, filled with zeros.

        Args:
            slots: How many clients there is room for.
            w: (d,), a model of the size and dtype to come.
            buffers: Buffers of the sizes to come.
            parts: Into how many parts an evaluation falls.
            scores: How many numbers each part is scored by.

        Returns:
            Memory that all processes share which are forked from now on.
        """
        num_bytes = sum(buffer.nbytes for buffer in buffers.values())
        return cls(
            w=shared_zeros((len(w),), w.dtype),
            buffers=shared_zeros((num_bytes,), torch.uint8),
            corrections=shared_zeros((slots, len(w)), w.dtype),
            proximal=shared_zeros((1,), torch.float64),
            deltas=shared_zeros((slots, len(w)), w.dtype),
            sent_buffers=shared_zeros((slots, num_bytes), torch.uint8),
            counts=shared_zeros((slots, 2), torch.int64),
            figures=shared_zeros((slots, 3), torch.float64),
            scores=shared_zeros((parts, scores), torch.float64),
        )

    def write_model(self, w: Tensor, buffers: Mapping[str, Tensor]) -> None:
        """Writes the model that the workers start from.

        Args:
            w: (d,), its parameters.
            buffers: Its buffers.
        """
        self.w.copy_(w)
        _pack(buffers.values(), self.buffers)

    def write_result(self, slot: int, result: LocalResult, buffers: Mapping[str, Tensor]) -> None:
        """Writes what the client of a slot sends back.

        Args:
            slot: The client's place.
            result: What LocalSGD left.
            buffers: The model's buffers after it.
        """
        self.deltas[slot] = result.delta
        self.counts[slot] = torch.tensor([result.num_steps, result.num_examples])
        figures = [result.num_gradients, result.mean_loss, result.magnitude]
        self.figures[slot] = torch.tensor(figures, dtype=torch.float64)
        _pack(buffers.values(), self.sent_buffers[slot])

    def read_result(self, slot: int) -> LocalResult:
        """Reads what `write_result` wrote.

        Args:
            slot: The client's place.

        Returns:
            The result; its delta is the slot's memory, another client's in the next round.
        """
        num_steps, num_examples = self.counts[slot].tolist()
        num_gradients, mean_loss, magnitude = self.figures[slot].tolist()
        return LocalResult(
            delta=self.deltas[slot],
            num_steps=num_steps,
            num_gradients=num_gradients,
            mean_loss=mean_loss,
            num_examples=num_examples,
            magnitude=magnitude,
        )


def unpack_buffers(packed: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Makes buffers from their bytes.

    Args:
        packed: (b,) bytes.
        like: Buffers of the same names, shapes and dtypes.

    Returns:
        Copies, by name.
    """
    sizes = [buffer.nbytes for buffer in like.values()]
    return {
        name: part.clone().view(buffer.dtype).view(buffer.shape)
        for (name, buffer), part in zip(like.items(), torch.split(packed, sizes), strict=True)
    }


def _pack(buffers: Iterable[Tensor], into: Tensor) -> None:
    parts = [buffer.contiguous().reshape(-1).view(torch.uint8) for buffer in buffers]
    if parts:
        torch.cat(parts, out=into)


def shared_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Allocates zeros that forked processes share.

    The mapping has no name, so nothing is left behind however the processes end; and its pages take
    memory only once they are written.
    """
    size = math.prod(shape) * dtype.itemsize
    if size == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(mmap.mmap(-1, size), dtype=dtype).view(shape)
