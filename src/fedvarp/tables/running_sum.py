"""Σ share · row in float64: what makes a table's mean cost O(d), whatever N is."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import torch
from torch import Tensor

from fedvarp.tables.blocks import blocks, longest_block

_OUTLIER: Final = 1e6  # a value this much above the present ones has cost digits that matter
_EQUAL_SHARES: Final = "equal"


class RunningSum:
    """The sum of all rows, each as often as it has clients, and what keeps it exact.

    It heals: 1e30 + 1 − 1e30 is 0, so an enormous row that comes and goes takes the others with it.
    Once it is gone the sum has to be made afresh: rare, and O(rows written · d) then.

    Args:
        num_rows: How many rows there are, written or not.
        dim: d.
        device: Where the sum lives.

    Attributes:
        total: (d,) float64, the sum.
        total_share: Σ share over all rows.
        digest: Says what the shares are; "equal" if every row counts once, or as it is weighed.
        weighed: What each row counts for, (num_rows,) float64, where that changes as time goes;
            None: it does not.
    """

    def __init__(self, num_rows: int, dim: int, device: torch.device) -> None:
        self.total = torch.zeros(dim, dtype=torch.float64, device=device)
        self.total_share = float(num_rows)
        self.digest = _EQUAL_SHARES
        self._shares: Tensor | None = None  # (num_rows,) float64; None: 1 each
        self.weighed: Tensor | None = None
        self._made_with = _EQUAL_SHARES  # digest of the shares that the sum was made with
        self._largest = 0.0  # largest value the sum has digested since it was last made afresh
        self._largest_in: int | None = None  # the row that holds it; None once overwritten

    @property
    def fixed_shares(self) -> bool:
        """Whether rows count differently, once for all."""
        return self.digest != _EQUAL_SHARES

    @property
    def out_of_date(self) -> bool:
        """Whether the shares have changed since the sum was made."""
        return self._made_with != self.digest

    def share(self, shares: Tensor, total: float | None = None) -> None:
        """Says what each row counts for; the sum is out of date then.

        Args:
            shares: (num_rows,), finite, none below zero.
            total: What all rows together count for; None: the sum of the shares.
        """
        self._shares = shares.detach().double().cpu().clone()
        self.digest = digest_of(self._shares)
        self.total_share = float(self._shares.sum()) if total is None else total

    def weigh(self, shares: Tensor, total: float) -> None:
        """Says what each row counts for, in a sum that has been changed accordingly.

        Args:
            shares: (num_rows,) float64.
            total: What all rows together count for.
        """
        self._shares = self.weighed = shares.clone()
        self.total_share = total

    def resize(self, num_rows: int, more: int) -> None:
        """Lets rows in that count once, or rows go that are zero and did.

        Args:
            num_rows: Their number from now on.
            more: How many of them are new; below zero: how many have gone.
        """
        self.total_share += more
        if self.weighed is not None:
            kept = self.weighed[:num_rows]
            ones = torch.ones(num_rows - len(kept), dtype=torch.float64)
            self._shares = self.weighed = torch.cat([kept, ones])

    def shares_of(self, rows: Tensor) -> Tensor:
        """What these rows count for.

        Args:
            rows: (M,) int64.

        Returns:
            (M,) float64.
        """
        if self._shares is None:
            return torch.ones(len(rows), dtype=torch.float64, device=self.total.device)
        return self._shares[rows.cpu()].to(self.total.device)

    def mean(self, dtype: torch.dtype) -> Tensor:
        """The sum divided by the number of clients, (d,) of that dtype."""
        mean = torch.empty(len(self.total), dtype=dtype, device=self.total.device)
        quotient = self.total.new_empty(longest_block(len(mean)))
        for here in blocks(len(mean)):
            part = quotient[: here.stop - here.start]
            mean[here] = torch.div(self.total[here], self.total_share, out=part)
        return mean

    def has_lost_digits(
        self, rows: list[int], largest: list[float], num_written: Callable[[], int]
    ) -> bool:
        """Notes that rows were overwritten, and whether the sum must be made afresh for it.

        Args:
            rows: Whose rows.
            largest: The largest entry of each new row, times its share.
            num_written: Counts the rows that have been written.

        Returns:
            Whether a row far larger than what remains has gone; while it stays, it counts.
        """
        self._note_largest(rows, largest)
        present = max(largest)
        if self._largest_in is not None or self._largest <= _OUTLIER * present:
            return False
        remaining = max(present, float(self.total.abs().max()) / max(1, num_written()))
        return self._largest > _OUTLIER * remaining

    def make_afresh(self, rows: Iterable[tuple[int, Tensor]]) -> None:
        """Sums up all rows written, in the order given.

        Args:
            rows: The number of each row and its entries, (d,).
        """
        self.total.zero_()
        self._made_with = self.digest
        self._largest, self._largest_in = 0.0, None
        for row, entries in rows:
            share = 1.0 if self._shares is None else float(self._shares[row])
            self._note_largest([row], [share * float(entries.abs().max())])
            self.total.add_(entries.double() * share)

    def _note_largest(self, rows: list[int], largest: list[float]) -> None:
        present = max(largest)
        if present >= self._largest:
            self._largest, self._largest_in = present, rows[largest.index(present)]
        elif self._largest_in in rows:
            self._largest_in = None

    def about(self) -> Mapping[str, object]:
        """What a checkpoint keeps beside `total`."""
        told: dict[str, object] = {
            "row_weights": self.digest,
            "largest": self._largest,
            "largest_in": self._largest_in,
        }
        return told if self.weighed is None else {**told, "total_share": self.total_share}

    def load(self, total: Tensor, about: Mapping[str, Any], weighed: Tensor | None) -> None:
        """Takes back what was saved.

        Args:
            total: (d,) float64.
            about: What `about` gave.
            weighed: What `weighed` was.
        """
        self.total = total.to(self.total.device)
        if weighed is not None:
            self.weigh(weighed, about["total_share"])
        self._made_with = about["row_weights"]
        self._largest, self._largest_in = about["largest"], about["largest_in"]


def digest_of(shares: Tensor) -> str:
    """A short hash that tells shares apart.

    Args:
        shares: (num_rows,) float64.

    Returns:
        Hexadecimal digits.
    """
    return hashlib.sha256(shares.numpy().tobytes()).hexdigest()[:16]
