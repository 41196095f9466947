"""The table's arithmetic: encoded rows and the running sum that makes `mean` cost O(d)."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import torch
from torch import Tensor

from fedvarp.algorithms.round_updates import RoundUpdates
from fedvarp.tables.base import ClientTable
from fedvarp.tables.blocks import blocks, longest_block
from fedvarp.tables.checks import check_clients, check_finite, check_put
from fedvarp.tables.codecs import codec_named
from fedvarp.tables.exchange import Step, exchange_rows
from fedvarp.tables.largest_entries import row_magnitudes
from fedvarp.tables.store import Store, as_json, from_json, refuse_differences

_OUTLIER: Final = (
    1e6  # a value this much above the present ones has cost the sum digits that matter
)
_EQUAL_SHARES: Final = "equal"


class RowTable(ClientTable):
    """Rows in encoded form and Σ share · row in float64, kept up to date at every write.

    A subclass says where the bytes live. The sum is that of the *decoded* rows: with a lossy codec
    the mean of what was sent would make E[v] biased.

    Args:
        num_clients: N. Costs nothing: rows take memory once they are written.
        dim: d, the length of a row.
        codec: How rows are stored: float64, float32, bfloat16, float16 or int8.
        client_weights: (N,) p_i of the objective Σ p_i f_i; None for 1/N each.
        name: Tells tables of one algorithm apart in a checkpoint.
        device: Where the running sum lives and rows are handed out.
    """

    def __init__(
        self,
        num_clients: int,
        dim: int,
        codec: str = "float32",
        *,
        client_weights: Tensor | None = None,
        name: str = "rows",
        device: torch.device | str = "cpu",
    ) -> None:
        if num_clients < 1 or dim < 1:
            raise ValueError(
                f"A table needs at least one client and one number per row, "
                f"not num_clients={num_clients} and dim={dim}."
            )
        self.num_clients = num_clients
        self.dim = dim
        self.codec = codec_named(codec)
        self.dtype = self.codec.dtype
        self.name = name
        self.device = torch.device(device)
        self._sum = torch.zeros(dim, dtype=torch.float64, device=self.device)
        self._largest = 0.0  # largest value the sum has digested since it was last made afresh
        self._largest_in: int | None = None  # the row that holds it; None once overwritten
        self._shares: Tensor | None = None
        self._total_share = float(num_clients)
        self._shares_digest = _EQUAL_SHARES
        self._sum_digest = _EQUAL_SHARES  # of the shares that the sum was made with
        self._changed: set[int] = set()  # rows, since the last save
        self._saved_in = ""  # the store that has all other rows
        if client_weights is not None:
            self.share(client_weights)
        self._make_room()

    # Where the bytes live

    def _make_room(self) -> None:
        """Called once, at the end of the constructor."""

    @abstractmethod
    def _find(self, row: int) -> Tensor | None:
        """The encoded row, free to be changed in place before `_keep`; None if never written."""

    def _blank(self) -> Tensor:
        """A row of zeros, encoded, for a client that had none."""
        size = self.codec.row_bytes(self.dim)
        return torch.zeros(size, dtype=torch.uint8, device=self.device)

    @abstractmethod
    def _keep(self, row: int, encoded: Tensor) -> None:
        """Takes an encoded row back."""

    @abstractmethod
    def rows_written(self) -> Iterable[int]:
        """Numbers of the rows that have been written."""

    @property
    @abstractmethod
    def num_rows(self) -> int:
        """How many rows have been written."""

    @abstractmethod
    def _adopt_rows(self, store: Store) -> None:
        """Makes the saved rows the table's rows."""

    # The three operations, and the one that does two of them at once

    def get(self, clients: Tensor) -> Tensor:
        """The rows of these clients, (M, d), a copy."""
        check_clients(clients, self.num_clients)
        rows = torch.zeros(len(clients), self.dim, dtype=self.dtype, device=self.device)
        for row, client in zip(rows, clients.tolist(), strict=True):
            encoded = self._find(client)
            if encoded is not None:
                row.copy_(self.codec.decode(encoded, 0, self.dim))
        return rows

    def put(self, clients: Tensor, rows: Tensor) -> None:
        """Overwrites the rows of these clients, O(M·d)."""
        check_put(self, clients, rows)
        self._overwrite(clients, rows, row_magnitudes(rows))

    def mean(self, out: Tensor | None = None) -> Tensor:
        """The mean row over all clients, (d,), in `out` or a new tensor."""
        self._bring_sum_up_to_date()
        mean = torch.empty(self.dim, dtype=self.dtype, device=self.device) if out is None else out
        quotient = self._sum.new_empty(longest_block(self.dim))
        for here in blocks(self.dim):
            part = quotient[: here.stop - here.start]
            mean[here] = torch.div(self._sum[here], self._total_share, out=part)
        return mean

    def exchange(self, updates: RoundUpdates, w: Tensor, rate: float) -> None:
        """Moves w by −rate · v; then y_i becomes Δ_i: lines 8 to 14 in one pass over memory."""
        check_put(self, updates.clients, updates.deltas)
        step = Step(w, rate, updates.averaging_weights, self._total_share)
        self._overwrite(updates.clients, updates.deltas, updates.magnitudes, step)

    def _overwrite(
        self,
        clients: Tensor,
        rows: Tensor,
        magnitudes: Sequence[float],
        step: Step | None = None,
    ) -> None:
        check_finite(clients, magnitudes)
        self._before_overwrite()
        numbers = clients.tolist()
        if not numbers:
            return
        self._bring_sum_up_to_date()
        encoded = [self._encoded(client) for client in numbers]
        exchange_rows(self.codec, encoded, rows, self._shares_of(clients), self._sum, step)
        for client, row in zip(numbers, encoded, strict=True):
            self._keep(client, row)
        self._changed.update(numbers)
        weighted = [m * self._share_of(i) for m, i in zip(magnitudes, numbers, strict=True)]
        self._note_largest(numbers, weighted)
        self._heal(max(weighted))
        self._after_overwrite()

    def _before_overwrite(self) -> None:
        """A chance for a subclass to refuse, before anything has changed."""

    def _after_overwrite(self) -> None:
        """A chance for a subclass to save what has just changed."""

    # A sum that heals: 1e30 + 1 - 1e30 is 0, so an enormous row that comes and goes takes the
    # others with it. Once it is gone the sum is made afresh: rare, and O(rows written · d) then.

    def _note_largest(self, rows: list[int], magnitudes: list[float]) -> None:
        present = max(magnitudes)
        if present >= self._largest:
            self._largest, self._largest_in = present, rows[magnitudes.index(present)]
        elif self._largest_in in rows:
            self._largest_in = None

    def _heal(self, present: float) -> None:
        """Sums afresh if a row far larger than what remains has gone; while it stays, it counts."""
        if self._largest_in is not None or self._largest <= _OUTLIER * present:
            return
        remaining = max(present, float(self._sum.abs().max()) / self.num_rows)
        if self._largest > _OUTLIER * remaining:
            self._sum_afresh()

    def _sum_afresh(self) -> None:
        self._sum.zero_()
        self._sum_digest = self._shares_digest
        self._largest, self._largest_in = 0.0, None
        for row in sorted(self.rows_written()):  # in one order, whatever order they came in
            numbers = self.codec.decode(self._encoded(row), 0, self.dim)
            share = self._share_of(row)
            self._note_largest([row], [share * float(numbers.abs().max())])
            self._sum.add_(numbers.double() * share)

    # How many clients a row stands for

    def share(self, shares: Tensor) -> None:
        """Says what each row counts for in `mean`: cluster sizes, or unequal client weights."""
        if tuple(shares.shape) != (self.num_clients,) or not bool(
            (shares.isfinite() & (shares >= 0)).all()
        ):
            raise ValueError(
                f"Row weights have shape {tuple(shares.shape)}; they must be {self.num_clients} "
                f"finite numbers, none below zero."
            )
        if not float(shares.sum()) > 0:
            raise ValueError("Row weights are all zero: there is no mean to speak of.")
        self._shares = shares.detach().double().cpu().clone()
        self._shares_digest = hashlib.sha256(self._shares.numpy().tobytes()).hexdigest()[:16]
        self._total_share = float(self._shares.sum())

    def _share_of(self, row: int) -> float:
        return 1.0 if self._shares is None else float(self._shares[row])

    def _shares_of(self, rows: Tensor) -> Tensor:
        if self._shares is None:
            return torch.ones(len(rows), dtype=torch.float64, device=self.device)
        return self._shares[rows.cpu()].to(self.device)

    def add_clients(self, count: int) -> range:
        """Lets `count` more clients in, O(1); returns their numbers. Their rows are zero."""
        if self._shares is not None:
            raise ValueError(
                "This table has row weights, and a new client needs one too. Make a new table with "
                "the weights of all clients and put the rows of this one into it."
            )
        if count < 1:
            raise ValueError(f"add_clients({count}): let at least one client in.")
        self._total_share += count
        return self.add_rows(count)

    def drop_clients(self, count: int) -> None:
        """Lets the last `count` clients go, who have never written a row, O(count)."""
        left = self.num_clients - count
        if self._shares is not None or not 0 < left < self.num_clients:
            raise ValueError(
                f"drop_clients({count}) of {self.num_clients}: at least one must go and one stay, "
                f"in a table without row weights."
            )
        if any(self._find(row) is not None for row in range(left, self.num_clients)):
            raise ValueError(f"drop_clients({count}): one of them has written a row.")
        self._total_share -= count
        self.num_clients = left

    def add_rows(self, count: int) -> range:
        """Makes room for more rows, O(1), of a table whose owner then calls `share`."""
        first = self.num_clients
        self.num_clients += count
        return range(first, self.num_clients)

    def _bring_sum_up_to_date(self) -> None:
        if self._sum_digest != self._shares_digest:
            self._sum_afresh()

    def close(self) -> None:
        """Lets go of whatever the rows are kept in; memory needs nothing."""

    # Saving and loading

    @property
    def num_bytes(self) -> int:
        """Bytes of the rows written so far and of the running sum."""
        return self.num_rows * self.codec.row_bytes(self.dim) + self._sum.nbytes

    def tables(self) -> tuple[RowTable, ...]:
        """This table."""
        return (self,)

    def describe(self) -> Mapping[str, object]:
        """What must be the same for a saved table to be read back into this one."""
        return {
            "num_clients": self.num_clients,
            "dim": self.dim,
            "codec": self.codec.name,
            "row_weights": self._shares_digest,
        }

    def save(self, batch: dict[tuple[str, str], Tensor], store: Store) -> None:
        """Adds to `batch` what has changed since the last save there: O(M·d) whatever N is.

        A store that has not seen this table before gets all of it.
        """
        self._bring_sum_up_to_date()
        batch["tables", f"{self.name}/about"] = as_json(
            {
                **RowTable.describe(self),
                "largest": self._largest,
                "largest_in": self._largest_in,
            }
        )
        batch["tables", f"{self.name}/sum"] = self._sum
        for row in self._changed if self._is_known_to(store) else self.rows_written():
            batch[f"rows/{self.name}", str(row)] = self._encoded(row)

    def replaces(self, store: Store) -> tuple[str, ...]:
        """The databases to empty before `save`: rows of another table, in a store new to this."""
        return () if self._is_known_to(store) else (f"rows/{self.name}",)

    def _is_known_to(self, store: Store) -> bool:
        return store.identity == self._saved_in

    def saved(self, store: Store) -> None:
        """What `save` collected is safe there; it need not be written again."""
        self._saved_in = store.identity
        self._changed.clear()

    def load(self, store: Store) -> None:
        """Becomes the table that was saved there; reads everything before it changes anything."""
        about = from_json(store.read("tables", f"{self.name}/about"))
        present = {"num_clients": self.num_clients, "dim": self.dim, "codec": self.codec.name}
        refuse_differences(about, present, f"The table in {store.path}")
        total = store.read_tensor("tables", f"{self.name}/sum", torch.float64, (self.dim,))
        self._adopt_rows(store)
        self._sum = total.to(self.device)
        self._sum_digest = about["row_weights"]
        self._largest, self._largest_in = about["largest"], about["largest_in"]
        self._saved_in = store.identity
        self._changed.clear()

    def _encoded(self, row: int) -> Tensor:
        found = self._find(row)
        return self._blank() if found is None else found
