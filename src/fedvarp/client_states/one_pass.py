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

STRETCH: Final = 2**17  # numbers; the float64 temporaries of a stretch stay in the cache
_COMPILE_FROM: Final = 2**20  # numbers in a row from which a compiled kernel is worth its seconds
_KERNELS_KEPT: Final = 4  # cohort sizes compiled for; dropouts must not compile for ever

_logger = logging.getLogger(__name__)


def exchange_rows(
    codec: Codec,
    encoded: Sequence[Tensor],
    updates: Tensor,
    shares: Tensor,
    total: Tensor,
    weights: Tensor | None = None,
    v: Tensor | None = None,
) -> None:
    """Overwrites M rows, keeps `total` = Σ share · row, adds Σ weight · (update − old row) to v.

    Args:
        codec: How the rows are written.
        encoded: M rows as bytes, changed in place.
        updates: (M, d) finite numbers of dtype `codec.values`.
        shares: (M,) float64, how many clients each row stands for.
        total: (d,) float64, changed in place.
        weights: (M,) float64; None if nobody asks for the average.
        v: (d,) of dtype `codec.values`, changed in place; None likewise.
    """
    if weights is None or v is None:
        _in_stretches(codec, encoded, updates, shares.tolist(), total)
    elif not _fused_if_large(codec, encoded, updates, shares, total, weights, v):
        _in_stretches(codec, encoded, updates, shares.tolist(), total, weights.tolist(), v)


def _in_stretches(
    codec: Codec,
    encoded: Sequence[Tensor],
    updates: Tensor,
    shares: list[float],
    total: Tensor,
    weights: list[float] | None = None,
    v: Tensor | None = None,
) -> None:
    dim = updates.shape[1]
    # Made once: an allocation of this size goes to the system and back each time.
    buffers = total.new_empty(5, min(dim, STRETCH))
    for start in range(0, dim, STRETCH):
        stop = min(start + STRETCH, dim)
        old, change, product, step, grown = buffers[:, : stop - start]
        step.zero_()
        grown.zero_()
        for m, (row, share) in enumerate(zip(encoded, shares, strict=True)):
            new = updates[m, start:stop]
            old.copy_(codec.decode(row, start, stop))
            if weights is not None:
                torch.sub(change.copy_(new), old, out=change)
                step += torch.mul(change, weights[m], out=product)
            codec.encode(row, start, new)
            # The sum follows what was stored, not what was sent: mean() stays that of get().
            stored = new if codec.lossless else codec.decode(row, start, stop)
            torch.sub(change.copy_(stored), old, out=change)
            grown += torch.mul(change, share, out=product)
        total[start:stop] += grown
        if v is not None:
            v[start:stop] = step.add_(v[start:stop])


Kernel = Callable[[list[Tensor], Tensor, Tensor, Tensor, Tensor, Tensor], Any]


def _fused(
    rows: list[Tensor], updates: Tensor, shares: Tensor, total: Tensor, weights: Tensor, v: Tensor
) -> None:
    """The same arithmetic as `_in_stretches`, in the same order, for the compiler to fuse."""
    step = torch.zeros_like(total)
    grown = torch.zeros_like(total)
    for m, row in enumerate(rows):
        change = updates[m].double() - row.double()
        step = step + change * weights[m]
        grown = grown + change * shares[m]
    total.add_(grown)
    v.copy_(v.double() + step)
    for m, row in enumerate(rows):
        row.copy_(updates[m])


def _fused_if_large(
    codec: Codec,
    encoded: Sequence[Tensor],
    updates: Tensor,
    shares: Tensor,
    total: Tensor,
    weights: Tensor,
    v: Tensor,
) -> bool:
    """Whether a compiled kernel did the work; False: it is still to be done."""
    if not codec.lossless or updates.shape[1] < _COMPILE_FROM or not _fits_a_kernel(len(encoded)):
        return False
    rows = [row.view(codec.values) for row in encoded]
    try:
        _kernels[len(encoded)](rows, updates, shares, total, weights, v)
    except Exception as reason:  # raised while compiling, before anything was written
        _kernels.clear()
        _compiling.allowed = False
        _logger.warning(
            "torch.compile does not work here (%s). Large models use plain tensor operations, "
            "about three times slower in each server update. A missing C++ compiler is the usual "
            "cause.",
            " ".join(str(reason).split())[:300],
        )
        return False
    return True


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
