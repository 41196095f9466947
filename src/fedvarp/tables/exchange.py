"""`ClientTable.exchange` for encoded rows and their running sum, in one pass over memory.

The plain version writes several (M, d) temporaries; at the size of ResNet-18 they cost twenty times
what moving the numbers costs. Here each block of the rows is read once, and v, the row and the
running sum are written together: by a compiled kernel for large models, block by block for others,
and for small ones by a few operations on all rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from fedvarp.tables.blocks import blocks, longest_block
from fedvarp.tables.checks import Beta
from fedvarp.tables.codecs import Codec

_COMPILE_FROM: Final = 2**20  # numbers in a row from which a compiled kernel is worth its seconds
_AT_ONCE_UP_TO: Final = 2**17  # numbers in all rows up to which copies of them stay in the cache
_KERNELS_KEPT: Final = 4  # cohort sizes compiled for; dropouts must not compile for ever

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Direction:
    """What is asked for: v = β · total / total_share + Σ a_i (Δ_i − β · y_i).

    Attributes:
        v: (d,) of the codec's dtype, where it is written.
        a: (M,) float64.
        beta: β, a number or (d,) float64.
        total_share: How many clients all rows stand for.
    """

    v: Tensor
    a: Tensor
    beta: Beta
    total_share: float


@torch.no_grad()
def exchange_rows(
    codec: Codec,
    encoded: Sequence[Tensor],
    rows: Tensor,
    shares: Tensor,
    total: Tensor,
    direction: Direction | None = None,
) -> None:
    """Overwrites M rows, keeps `total` = Σ share · row, and computes v from the old ones.

    Args:
        codec: How the rows are written.
        encoded: M rows as bytes, changed in place.
        rows: (M, d) finite numbers of dtype `codec.dtype` to write there.
        shares: (M,) float64, how many clients each row stands for.
        total: (d,) float64, changed in place.
        direction: What v is to be; None if nobody asks for it.
    """
    if codec.lossless and 0 < rows.numel() <= _AT_ONCE_UP_TO:
        _at_once(codec, encoded, rows, shares, total, direction)
    elif direction is None or not _fused_if_large(codec, encoded, rows, shares, total, direction):
        _in_blocks(codec, encoded, rows, shares.tolist(), total, direction)


def _at_once(
    codec: Codec,
    encoded: Sequence[Tensor],
    rows: Tensor,
    shares: Tensor,
    total: Tensor,
    direction: Direction | None,
) -> None:
    """The same arithmetic as `_in_blocks`, in the same order, for all rows of a small model."""
    stored = _Stored.of(encoded, codec.dtype, rows.shape[1])
    new, old = rows.double(), stored.read().double()
    change = new - old
    if direction is not None:
        beta, a = direction.beta, direction.a.unsqueeze(1)
        mean = (total / direction.total_share).to(codec.dtype).double()
        if isinstance(beta, Tensor) or beta != 1:
            mean *= beta
            change_of_v = _row_by_row(a * (new - old * beta))
        else:
            change_of_v = _row_by_row(a * change)
        direction.v.copy_(change_of_v + mean)
    total += _row_by_row(shares.unsqueeze(1) * change)
    stored.write(rows)


@dataclass(frozen=True, eq=False)
class _Stored:
    """Rows of numbers that lie in one piece of memory, or each in its own."""

    apart: Sequence[Tensor]  # each (d,)
    memory: Tensor | None = None  # (places, d), where they lie together
    places: Tensor | None = None  # (M,) int64

    @classmethod
    def of(cls, encoded: Sequence[Tensor], dtype: torch.dtype, dim: int) -> _Stored:
        """Finds out, for a row of its own costs as much to read as all that lie together."""
        slab = encoded[0]._base
        if slab is not None and slab.ndim == 2 and all(row._base is slab for row in encoded):
            places = [divmod(int(row.storage_offset()), slab.stride(0)) for row in encoded]
            if all(within == 0 for _, within in places):
                at = torch.tensor([place for place, _ in places], device=slab.device)
                return cls((), slab.view(dtype)[:, :dim], at)
        return cls([row.view(dtype) for row in encoded])

    def read(self) -> Tensor:
        """(M, d), a copy."""
        if self.memory is None or self.places is None:
            return torch.stack(list(self.apart))
        return self.memory.index_select(0, self.places)

    def write(self, rows: Tensor) -> None:
        """Overwrites all of them, (M, d)."""
        if self.memory is not None and self.places is not None:
            self.memory.index_copy_(0, self.places, rows)
            return
        for row, values in zip(self.apart, rows, strict=True):
            row.copy_(values)


def _row_by_row(terms: Tensor) -> Tensor:
    """Adds rows up one after the other, which torch's `sum` does not."""
    if terms.is_cpu and terms.shape[1] > 1:  # NumPy does, but for one column: cumsum's time / 6
        return torch.from_numpy(terms.contiguous().numpy().sum(0))
    return terms.cumsum(0)[-1]


def _in_blocks(
    codec: Codec,
    encoded: Sequence[Tensor],
    rows: Tensor,
    shares: list[float],
    total: Tensor,
    direction: Direction | None,
) -> None:
    dim = rows.shape[1]
    a = None if direction is None else direction.a.tolist()
    buffers = total.new_empty(5, longest_block(dim))
    for here in blocks(dim):
        beta = 0.0 if direction is None else direction.beta
        if isinstance(beta, Tensor):
            beta = beta[here]
        old, change, product, change_of_v, grown = buffers[:, : here.stop - here.start]
        change_of_v.zero_()
        grown.zero_()
        for m, (row, share) in enumerate(zip(encoded, shares, strict=True)):
            new = rows[m, here]
            old.copy_(codec.decode(row, here.start, here.stop))
            if direction is not None and a is not None:
                torch.mul(old, beta, out=product)
                torch.sub(change.copy_(new), product, out=change)
                change_of_v += torch.mul(change, a[m], out=product)
            codec.encode(row, here.start, new)
            # The sum follows what was stored, not what was sent: mean() stays that of get().
            stored = new if codec.lossless else codec.decode(row, here.start, here.stop)
            torch.sub(change.copy_(stored), old, out=change)
            grown += torch.mul(change, share, out=product)
        if direction is not None:
            mean = torch.div(total[here], direction.total_share, out=product).to(codec.dtype)
            direction.v[here] = change_of_v.add_(product.copy_(mean).mul_(beta))
        total[here].add_(grown)


Kernel = Callable[..., Any]  # `_fused`


def _fused(
    encoded: list[Tensor],
    rows: Tensor,
    shares: Tensor,
    total: Tensor,
    v: Tensor,
    a: Tensor,
    beta: Tensor | None,
    total_share: Tensor,
) -> None:
    """The same arithmetic as `_in_blocks`, in the same order, for the compiler to fuse.

    None stands for β = 1: without the products the kernel gives the same bits sooner.
    """
    change_of_v = torch.zeros_like(total)
    grown = torch.zeros_like(total)
    for m, row in enumerate(encoded):
        new, old = rows[m].double(), row.double()
        change = new - old
        change_of_v = change_of_v + (change if beta is None else new - old * beta) * a[m]
        grown = grown + change * shares[m]
    mean = (total / total_share).to(v.dtype).double()
    v.copy_(change_of_v + (mean if beta is None else mean * beta))
    total.add_(grown)
    for m, row in enumerate(encoded):
        row.copy_(rows[m])


def _fused_if_large(
    codec: Codec,
    encoded: Sequence[Tensor],
    rows: Tensor,
    shares: Tensor,
    total: Tensor,
    direction: Direction,
) -> bool:
    """Whether a compiled kernel did the work; False: it is still to be done."""
    if not codec.lossless or rows.shape[1] < _COMPILE_FROM or not _fits_a_kernel(len(encoded)):
        return False
    # As tensors: a number would be compiled in, and β may change every round.
    total_share = total.new_tensor(direction.total_share)
    given = direction.beta
    beta = given if isinstance(given, Tensor) else total.new_tensor(given)
    try:
        _kernels[len(encoded)](
            [row.view(codec.dtype) for row in encoded],
            rows,
            shares,
            total,
            direction.v,
            direction.a,
            None if isinstance(given, float | int) and given == 1 else beta,
            total_share,
        )
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
    # torch 2.4 compiles with -ffast-math, which gives other bits and has the whole process flush
    # small numbers to zero from then on; 2.13 is the oldest that was seen not to.
    allowed: bool = torch.__version__ >= "2.13"  # compared as versions, not as letters


_compiling = _Compiling()
_kernels: dict[int, Kernel] = {}


def _fits_a_kernel(num_rows: int) -> bool:
    """Whether there is, or may still be made, a fused kernel for that many rows."""
    if _compiling.allowed and num_rows not in _kernels and len(_kernels) < _KERNELS_KEPT:
        _kernels[num_rows] = torch.compile(_fused, dynamic=False, fullgraph=True)
    return num_rows in _kernels
