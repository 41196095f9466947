"""Line 8 and lines 10-14 of Algorithm 2 in one pass over memory.

The plain expressions (`ClientStates.exchange`) write several (M, d) temporaries; at the size of
ResNet-18 they cost twenty times what moving the numbers costs. Here each stretch of the rows is
read once, and the average, the row and the running sum are brought up to date together, in float64.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from fedvarp.client_states.codecs import Codec

_STRETCH: Final = 2**17  # numbers; the float64 temporaries of a stretch stay in the cache
_COMPILE_FROM: Final = 2**20  # numbers in a row from which a compiled kernel is worth its seconds
_KERNELS_KEPT: Final = 4  # cohort sizes compiled for; dropouts must not compile for ever

_logger = logging.getLogger(__name__)


def exchange_rows(
    codec: Codec,
    encoded: Sequence[Tensor],
    updates: Tensor,
    weights: Tensor,
    shares: Tensor,
    total: Tensor,
) -> Tensor:
    """Overwrites M rows, keeps `total` = Σ share · row, returns Σ weight · (update - old row).

    Args:
        codec: How the rows are written.
        encoded: M rows as bytes, changed in place.
        updates: (M, d) finite numbers of dtype `codec.values`.
        weights: (M,) float64.
        shares: (M,) float64, how many clients each row stands for.
        total: (d,) float64, changed in place.
    """
    average = torch.empty(updates.shape[1], dtype=codec.values, device=updates.device)
    if codec.lossless and updates.shape[1] >= _COMPILE_FROM and _fits_a_kernel(len(encoded)):
        try:
            rows = [row.view(codec.values) for row in encoded]
            _kernels[len(encoded)](rows, updates, weights, shares, total, average)
            return average
        except Exception as reason:  # raised while compiling, before anything was written
            _kernels.clear()
            _compiling.allowed = False
            _logger.warning(
                "torch.compile does not work here (%s). Large models use plain tensor "
                "operations, about three times slower in each server update. A missing C++ "
                "compiler is the usual cause.",
                " ".join(str(reason).split())[:300],
            )
    _in_stretches(codec, encoded, updates, weights.tolist(), shares.tolist(), total, average)
    return average


def _in_stretches(
    codec: Codec,
    encoded: Sequence[Tensor],
    updates: Tensor,
    weights: list[float],
    shares: list[float],
    total: Tensor,
    average: Tensor,
) -> None:
    dim = updates.shape[1]
    for start in range(0, dim, _STRETCH):
        stop = min(start + _STRETCH, dim)
        step = torch.zeros(stop - start, dtype=torch.float64, device=updates.device)
        grown = torch.zeros_like(step)
        for row, update, weight, share in zip(encoded, updates, weights, shares, strict=True):
            new = update[start:stop]
            old = codec.decode(row, start, stop).double()
            change = new.double() - old
            step += change * weight
            codec.encode(row, start, new)
            if not codec.lossless:
                # The sum follows what was stored, not what was sent: mean() stays that of get().
                change = codec.decode(row, start, stop).double() - old
            grown += change * share
        average[start:stop] = step
        total[start:stop] += grown


Kernel = Callable[[list[Tensor], Tensor, Tensor, Tensor, Tensor, Tensor], Any]


def _fused(
    rows: list[Tensor],
    updates: Tensor,
    weights: Tensor,
    shares: Tensor,
    total: Tensor,
    average: Tensor,
) -> None:
    """The same arithmetic as `_in_stretches`, in the same order, for the compiler to fuse."""
    step = torch.zeros_like(total)
    grown = torch.zeros_like(total)
    for m, row in enumerate(rows):
        change = updates[m].double() - row.double()
        step = step + change * weights[m]
        grown = grown + change * shares[m]
    average.copy_(step)
    total.add_(grown)
    for m, row in enumerate(rows):
        row.copy_(updates[m])


@dataclass
class _Compiling:
    allowed: bool = True


_compiling = _Compiling()
_kernels: dict[int, Kernel] = {}


def _fits_a_kernel(num_rows: int) -> bool:
    """Whether there is, or may still be made, a fused kernel for that many rows."""
    if _compiling.allowed and num_rows not in _kernels and len(_kernels) < _KERNELS_KEPT:
        _kernels[num_rows] = torch.compile(_fused, dynamic=False, fullgraph=True)
    return num_rows in _kernels
