"""Lines 8 to 14 of Algorithm 2 in one pass over memory.

The plain expressions (`ClientTable.exchange`) write several (M, d) temporaries; at the size of
ResNet-18 they cost twenty times what moving the numbers costs. Here each stretch of the rows is
read once, and the row, the running sum and the model are brought up to date together. v itself is
never written down.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from fedvarp.server.optimizers import walk
from fedvarp.tables.blocks import blocks, longest_block
from fedvarp.tables.codecs import Codec

_COMPILE_FROM: Final = 2**20  # numbers in a row from which a compiled kernel is worth its seconds
_KERNELS_KEPT: Final = 4  # cohort sizes compiled for; dropouts must not compile for ever

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Step:
    """w ← w − rate · v, with v = total / total_share + Σ weight · (update − old row)."""

    w: Tensor  # (d,) of dtype `codec.dtype`, changed in place
    rate: float
    weights: Tensor  # (M,) float64
    total_share: float


def exchange_rows(
    codec: Codec,
    encoded: Sequence[Tensor],
    updates: Tensor,
    shares: Tensor,
    total: Tensor,
    step: Step | None = None,
) -> None:
    """Overwrites M rows, keeps `total` = Σ share · row, and takes the step with the old ones.

    Args:
        codec: How the rows are written.
        encoded: M rows as bytes, changed in place.
        updates: (M, d) finite numbers of dtype `codec.dtype`.
        shares: (M,) float64, how many clients each row stands for.
        total: (d,) float64, changed in place.
        step: What to do with v; None if nobody asks for it.
    """
    if step is None or not _fused_if_large(codec, encoded, updates, shares, total, step):
        _in_stretches(codec, encoded, updates, shares.tolist(), total, step)


def _in_stretches(
    codec: Codec,
    encoded: Sequence[Tensor],
    updates: Tensor,
    shares: list[float],
    total: Tensor,
    step: Step | None,
) -> None:
    dim = updates.shape[1]
    weights = None if step is None else step.weights.tolist()
    buffers = total.new_empty(5, longest_block(dim))
    for here in blocks(dim):
        old, change, product, average, grown = buffers[:, : here.stop - here.start]
        average.zero_()
        grown.zero_()
        for m, (row, share) in enumerate(zip(encoded, shares, strict=True)):
            new = updates[m, here]
            old.copy_(codec.decode(row, here.start, here.stop))
            if weights is not None:
                torch.sub(change.copy_(new), old, out=change)
                average += torch.mul(change, weights[m], out=product)
            codec.encode(row, here.start, new)
            # The sum follows what was stored, not what was sent: mean() stays that of get().
            stored = new if codec.lossless else codec.decode(row, here.start, here.stop)
            torch.sub(change.copy_(stored), old, out=change)
            grown += torch.mul(change, share, out=product)
        if step is not None:
            mean = torch.div(total[here], step.total_share, out=product).to(codec.dtype)
            walk(step.w[here], average.add_(mean).to(codec.dtype), step.rate)
        total[here] += grown


Kernel = Callable[[list[Tensor], Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Any]


def _fused(
    rows: list[Tensor],
    updates: Tensor,
    shares: Tensor,
    total: Tensor,
    w: Tensor,
    rate: Tensor,
    weights: Tensor,
    total_share: Tensor,
) -> None:
    """The same arithmetic as `_in_stretches`, in the same order, for the compiler to fuse."""
    average = torch.zeros_like(total)
    grown = torch.zeros_like(total)
    for m, row in enumerate(rows):
        change = updates[m].double() - row.double()
        average = average + change * weights[m]
        grown = grown + change * shares[m]
    mean = (total / total_share).to(w.dtype)
    v = (average + mean).to(w.dtype)
    w.sub_(v * rate)
    total.add_(grown)
    for m, row in enumerate(rows):
        row.copy_(updates[m])


def _fused_if_large(
    codec: Codec,
    encoded: Sequence[Tensor],
    updates: Tensor,
    shares: Tensor,
    total: Tensor,
    step: Step,
) -> bool:
    """Whether a compiled kernel did the work; False: it is still to be done."""
    if not codec.lossless or updates.shape[1] < _COMPILE_FROM or not _fits_a_kernel(len(encoded)):
        return False
    rows = [row.view(codec.dtype) for row in encoded]
    # As tensors: a number would be compiled in, and the rate may change every round.
    rate = torch.tensor(step.rate, dtype=codec.dtype, device=total.device)
    total_share = torch.tensor(step.total_share, dtype=torch.float64, device=total.device)
    try:
        kernel = _kernels[len(encoded)]
        kernel(rows, updates, shares, total, step.w, rate, step.weights, total_share)
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
