"""A table that holds encoded rows of its own: all but where their bytes live."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from fedvarp.errors import InvalidError
from fedvarp.settings.bounds import Count
from fedvarp.settings.checked import checked
from fedvarp.tables.base import ClientTable
from fedvarp.tables.bounded import OldestFirst
from fedvarp.tables.checks import Beta, check_clients, check_rows, check_shares, check_weights
from fedvarp.tables.codecs import codec_named
from fedvarp.tables.exchange import Direction, exchange_rows
from fedvarp.tables.largest_entries import LargestEntries
from fedvarp.tables.running_sum import RunningSum
from fedvarp.tables.store import Store, as_json, from_json, refuse_differences
from fedvarp.tables.tensors import Weights, weights


class RowTable(ClientTable):
    """Rows in encoded form and their running sum, kept up to date at every write.

    A subclass says where the bytes live. The sum is that of the *decoded* rows: with a lossy codec
    the mean of what was sent would make E[v] biased.

    Args:
        num_clients: N. Costs nothing: rows take memory once they are written.
        dim: d, the length of a row.
        codec: How rows are stored: float64, float32, bfloat16, float16 or int8.
        client_weights: (N,) p_i of the objective Σ p_i f_i; None for 1/N each.
        name: Tells tables of one algorithm apart in a checkpoint.
        device: Where the running sum lives and rows are handed out.
        max_rows: How many rows there may be at a time; the oldest are dropped from the rows and the
            mean alike. None: as many as clients.

    Raises:
        ValueError: There are no clients or no numbers, or no codec of that name, or the weights
            do not fit.
    """

    @checked
    def __init__(
        self,
        num_clients: Count,
        dim: Count,
        codec: str = "float32",
        *,
        client_weights: Weights | None = None,
        name: str = "rows",
        device: torch.device | str = "cpu",
        max_rows: Count | None = None,
    ) -> None:
        self.num_clients = num_clients
        self.dim = dim
        self.codec = codec_named(codec)
        self.dtype = self.codec.dtype
        self.name = name
        self.device = torch.device(device)
        self._sum = RunningSum(num_clients, dim, self.device)
        self._v: Tensor | None = None  # what `exchange` gives: fresh memory costs more than v
        self._changed: set[int] = set()  # rows, since the last save, the dropped ones too
        self._order = None if max_rows is None else OldestFirst(max_rows)
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
    def _discard(self, row: int) -> None:
        """Lets go of a row, which is all zeros by now."""

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

    def _before_overwrite(self) -> None:
        """A chance for a subclass to refuse, before anything has changed."""

    def _after_overwrite(self) -> None:
        """A chance for a subclass to save what has just changed."""

    def close(self) -> None:
        """Lets go of whatever the rows are kept in; memory needs nothing."""

    # The four operations

    def get(self, clients: Tensor) -> Tensor:
        """The rows of these clients, (M, d), a copy; see `ClientTable.get`."""
        check_clients(clients, self.num_clients)
        rows = torch.zeros(len(clients), self.dim, dtype=self.dtype, device=self.device)
        for row, client in zip(rows, clients.tolist(), strict=True):
            encoded = self._find(client)
            if encoded is not None:
                row.copy_(self.codec.decode(encoded, 0, self.dim))
        return rows

    def put(self, clients: Tensor, rows: Tensor, largest: LargestEntries | None = None) -> None:
        """Overwrites the rows of these clients, O(M·d); see `ClientTable.put`."""
        self._overwrite(clients, rows, check_rows(self, clients, rows, largest), None)

    def mean(self) -> Tensor:
        """The mean row over all clients, (d,), a copy."""
        self._bring_sum_up_to_date()
        return self._sum.mean(self.dtype)

    def exchange(
        self,
        clients: Tensor,
        rows: Tensor,
        a: Tensor,
        beta: Beta,
        largest: LargestEntries | None = None,
    ) -> Tensor:
        """v and then y_i ← Δ_i in one pass over memory; see `ClientTable.exchange`."""
        largest = check_rows(self, clients, rows, largest)
        check_weights(a, beta, clients, self.dim)
        if self._v is None:
            self._v = torch.empty(self.dim, dtype=self.dtype, device=self.device)
        a = a.to(self.device, torch.float64)
        if isinstance(beta, Tensor):
            beta = beta.to(self.device, torch.float64)
        self._overwrite(clients, rows, largest, Direction(self._v, a, beta, self._sum.total_share))
        return self._v

    def _overwrite(
        self, clients: Tensor, rows: Tensor, largest: LargestEntries, direction: Direction | None
    ) -> None:
        numbers, shares = clients.tolist(), self._sum.shares_of(clients)
        self._before_overwrite()
        self._bring_sum_up_to_date()
        encoded = [self._encoded(client) for client in numbers]
        exchange_rows(self.codec, encoded, rows, shares, self._sum.total, direction)
        if not numbers:
            return
        for client, row in zip(numbers, encoded, strict=True):
            self._keep(client, row)
        self._changed.update(numbers)
        weighted = [e * share for e, share in zip(largest.values, shares.tolist(), strict=True)]
        if self._order is not None:
            self._drop(self._order.written(numbers))
        if self._sum.has_lost_digits(numbers, weighted, lambda: self.num_rows):
            self._sum_afresh()
        self._after_overwrite()

    def forget(self, clients: Tensor) -> None:
        """Lets go of rows as if they had never been written; see `ClientTable.forget`."""
        check_clients(clients, self.num_clients)
        self._before_overwrite()
        self._bring_sum_up_to_date()
        written = [row for row in sorted(set(clients.tolist())) if self._find(row) is not None]
        if self._order is not None:
            self._order.forget(written)
        self._drop(written)
        self._after_overwrite()

    def _drop(self, rows: list[int]) -> None:
        """Rows of zeros for the sum, and then no rows at all."""
        if not rows:
            return
        encoded, shares = (
            [self._encoded(row) for row in rows],
            self._sum.shares_of(torch.tensor(rows)),
        )
        zeros = torch.zeros(len(rows), self.dim, dtype=self.dtype, device=self.device)
        exchange_rows(self.codec, encoded, zeros, shares, self._sum.total)
        for row in rows:
            self._discard(row)
        self._changed.update(rows)
        if self._sum.has_lost_digits(rows, [0.0] * len(rows), lambda: self.num_rows):
            self._sum_afresh()

    def _encoded(self, row: int) -> Tensor:
        found = self._find(row)
        return self._blank() if found is None else found

    def _bring_sum_up_to_date(self) -> None:
        if self._sum.out_of_date:
            self._sum_afresh()

    def _sum_afresh(self) -> None:
        in_one_order = sorted(self.rows_written())  # whatever order they came in
        self._sum.make_afresh(
            (row, self.codec.decode(self._encoded(row), 0, self.dim)) for row in in_one_order
        )

    # How many clients there are, and how many a row stands for

    def share(self, shares: Tensor, total: float | None = None) -> None:
        """Says what each row counts for in `mean`: cluster sizes, or unequal client weights.

        Args:
            shares: (N,), none below zero.
            total: What all rows together count for; None: the sum of the shares, above zero.

        Raises:
            ValueError: Their number is another, or one is negative or not finite, or all are zero.
        """
        if total is None:
            shares = weights("row weights", shares, self.num_clients, "row")
        self._sum.share(shares, total)

    def weigh(self, shares: Tensor, total: float) -> None:
        """O(d) for each row that counted otherwise before; see `ClientTable.weigh`."""
        check_shares(shares, total, self.num_clients)
        self._before_overwrite()
        self._bring_sum_up_to_date()
        before = self._sum.shares_of(torch.arange(self.num_clients)).cpu()
        changed, largest = [], []
        for row in (before != shares).nonzero().flatten().tolist():
            encoded = self._find(row)
            if encoded is not None:
                entries = self.codec.decode(encoded, 0, self.dim).double()
                self._sum.total.add_(entries, alpha=float(shares[row] - before[row]))
                changed.append(row)
                largest.append(float(shares[row]) * float(entries.abs().max()))
        self._sum.weigh(shares, total)
        if changed and self._sum.has_lost_digits(changed, largest, lambda: self.num_rows):
            self._sum_afresh()
        self._after_overwrite()

    def add_clients(self, count: int) -> range:
        """Lets more clients in, O(1); their rows are zero.

        Args:
            count: How many.

        Returns:
            Their numbers.

        Raises:
            ValueError: The table has row weights, or `count` is below one.
        """
        if self._sum.fixed_shares:
            raise InvalidError(
                "This table has row weights, and a new client needs one too. Make a new table with "
                "the weights of all clients and put the rows of this one into it."
            )
        if count < 1:
            raise InvalidError(f"add_clients({count}): let at least one client in.")
        added = self.add_rows(count)
        self._sum.resize(self.num_clients, count)
        return added

    def drop_clients(self, count: int) -> None:
        """Lets the last clients go, who have never written a row, O(count).

        Args:
            count: How many.

        Raises:
            ValueError: The table has row weights, nobody would go or stay, or one of those who are
                to go has written a row.
        """
        left = self.num_clients - count
        if self._sum.fixed_shares or not 0 < left < self.num_clients:
            raise InvalidError(
                f"drop_clients({count}) of {self.num_clients}: at least one must go and one stay, "
                f"in a table without row weights."
            )
        if any(self._find(row) is not None for row in range(left, self.num_clients)):
            raise InvalidError(f"drop_clients({count}): one of them has written a row.")
        self._sum.resize(left, -count)
        self.num_clients = left

    def resize(self, num_clients: int) -> None:
        """Lets clients in, or those go who have never written; see `ClientTable.resize`."""
        more = num_clients - self.num_clients
        if more > 0:
            self.add_clients(more)
        elif more < 0:
            self.drop_clients(-more)

    def add_rows(self, count: int) -> range:
        """Makes room for more rows, O(1), in a table whose owner then calls `share`.

        Args:
            count: How many.

        Returns:
            Their numbers.
        """
        first = self.num_clients
        self.num_clients += count
        return range(first, self.num_clients)

    # Saving and loading

    @property
    def num_bytes(self) -> int:
        """Bytes of the rows written so far and of the running sum."""
        return self.num_rows * self.codec.row_bytes(self.dim) + self._sum.total.nbytes

    def tables(self) -> tuple[RowTable, ...]:
        """This table."""
        return (self,)

    def describe(self) -> Mapping[str, object]:
        """What must be the same for a saved table to be read back into this one."""
        return {**self._layout(), "row_weights": self._sum.digest}

    def _layout(self) -> dict[str, object]:
        told = {"num_clients": self.num_clients, "dim": self.dim, "codec": self.codec.name}
        return told if self._order is None else {**told, "max_rows": self._order.max_rows}

    def save(self, batch: dict[tuple[str, str], Tensor | None], store: Store) -> None:
        """Collects what has changed since the last save there: O(M·d) whatever N is.

        Args:
            batch: What to write, by database and key; added to.
            store: Where it will be written; one that has not seen this table gets all of it.
        """
        self._bring_sum_up_to_date()
        about = {**self._layout(), **self._sum.about()}
        batch["tables", f"{self.name}/about"] = as_json(about)
        batch["tables", f"{self.name}/sum"] = self._sum.total
        batch["tables", f"{self.name}/shares"] = self._sum.weighed
        rows = list(self._changed if self._is_known_to(store) else self.rows_written())
        for row in rows:
            batch[f"rows/{self.name}", str(row)] = self._find(row)  # None: it was dropped
        if self._order is not None:
            batch.update(self._order.save(self.name, rows))

    def replaces(self, store: Store) -> tuple[str, ...]:
        """The databases to empty before `save`: rows of another table, in a store new to this."""
        if self._is_known_to(store):
            return ()
        order = () if self._order is None else self._order.databases(self.name)
        return (f"rows/{self.name}", *order)

    def _is_known_to(self, store: Store) -> bool:
        return store.identity == self._saved_in

    def saved(self, store: Store) -> None:
        """Notes that what `save` collected is safe in that store, and need not be written again."""
        self._saved_in = store.identity
        self._changed.clear()

    def load(self, store: Store) -> None:
        """Becomes the table that was saved there; reads everything before it changes anything.

        Args:
            store: Where it was saved.

        Raises:
            StoreError: It was made for another table, or is damaged.
        """
        about = from_json(store.read("tables", f"{self.name}/about"))
        refuse_differences(about, self._layout(), f"The table in {store.path}")
        total = store.read_tensor("tables", f"{self.name}/sum", torch.float64, (self.dim,))
        shares = None
        if "total_share" in about:
            size = (self.num_clients,)
            shares = store.read_tensor("tables", f"{self.name}/shares", torch.float64, size)
        self._adopt_rows(store)
        if self._order is not None:
            self._order.load(self.name, store)
        self._sum.load(total, about, shares)
        self.saved(store)
