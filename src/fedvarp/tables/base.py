"""What a table of client rows can do: get, put, mean, and all three at once in exchange."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedvarp.errors import InvalidError
from fedvarp.tables.checks import Beta, check_weights
from fedvarp.tables.largest_entries import LargestEntries

if TYPE_CHECKING:
    from fedvarp.tables.row_table import RowTable


class ClientTable(ABC):
    """y_1 … y_N, zero until first written. Law: mean() equals get(all clients).mean(0).

    With unequal client weights p_i the mean is Σ p_i y_i / Σ p_i; `weigh` changes them.

    Attributes:
        num_clients: N.
        dim: d, the length of a row.
        dtype: Of the rows given and taken: float32, or float64 for a float64 table.
    """

    num_clients: int
    dim: int
    dtype: torch.dtype

    @abstractmethod
    def get(self, clients: Tensor) -> Tensor:
        """Looks up rows.

        Args:
            clients: (M,) int64.

        Returns:
            The rows of these clients, (M, d), a copy.

        Raises:
            IndexError: A client is unknown.
        """

    @abstractmethod
    def put(self, clients: Tensor, rows: Tensor, largest: LargestEntries | None = None) -> None:
        """Overwrites the rows of these clients, O(M·d): y_i ← Δ_i.

        Args:
            clients: (M,) int64, distinct.
            rows: (M, d) of the table's dtype.
            largest: The rows' largest entries, if somebody has measured them; spares a read.

        Raises:
            ValueError: A shape or dtype does not fit, a client is repeated, or a row is not finite.
                Nothing has changed.
            IndexError: A client is unknown. Nothing has changed.
        """

    @abstractmethod
    def mean(self) -> Tensor:
        """The mean row over all clients, O(d) whatever N is.

        Returns:
            ȳ, (d,), a copy.
        """

    def exchange(
        self,
        clients: Tensor,
        rows: Tensor,
        a: Tensor,
        beta: Beta,
        largest: LargestEntries | None = None,
    ) -> Tensor:
        """v = β·ȳ + Σ a_i (Δ_i − β·y_i) with the rows as they are; then y_i ← Δ_i.

        This is the plain version, in the words of the equation. Tables of the package do the same
        in one pass over memory and are tested against it.

        Args:
            clients: (M,) int64, S, distinct.
            rows: (M, d) of the table's dtype, Δ_i for i ∈ S.
            a: (M,), what each client counts for.
            beta: β, what the stored rows count for: 0 not at all (FedAvg), 1 fully (FedVARP); or
                (d,), one for each number of a row.
            largest: The rows' largest entries, if somebody has measured them; spares a read.

        Returns:
            v, (d,) of the table's dtype; good until the next exchange, which reuses its memory.

        Raises:
            ValueError: As for `put`, a has not one finite number for each client, or β is none.
                Nothing has changed.
            IndexError: A client is unknown. Nothing has changed.
        """
        check_weights(a, beta, clients, self.dim)
        y = self.get(clients).double()
        changes = [
            a_i * (delta - beta * y_i)
            for a_i, delta, y_i in zip(a.tolist(), rows.double(), y, strict=True)
        ]
        v: Tensor = beta * self.mean().double() + sum(changes)
        self.put(clients, rows, largest)
        return v.to(self.dtype)

    def resize(self, num_clients: int) -> None:
        """Makes N another number: newcomers have no row yet, and only such clients can go.

        Args:
            num_clients: The new N.

        Raises:
            ValueError: The table cannot change its size, or somebody who is to go has a row.
        """
        raise InvalidError(f"A {type(self).__name__} has its {self.num_clients} clients for ever.")

    def weigh(self, shares: Tensor, total: float) -> None:
        """Says what each client counts for in `mean`, which is Σ share·row / total from now on.

        Args:
            shares: (N,) float64, none below zero; 0: its row is kept, but does not count.
            total: What all clients together count for, above zero. It may be another number than
                the sum of the shares: that of clients without a row is of no account.

        Raises:
            ValueError: They are no such numbers, or not one a client. Nothing has changed.
        """
        for table in self._made_of_others("weigh"):
            table.weigh(shares, total)

    def forget(self, clients: Tensor) -> None:
        """Makes rows as if they had never been written, and with them those who share them.

        Args:
            clients: (M,) int64, whose rows.

        Raises:
            IndexError: A client is unknown. Nothing has changed.
        """
        for table in self._made_of_others("forget"):
            table.forget(clients)

    def _made_of_others(self, operation: str) -> tuple[ClientTable, ...]:
        below = self.made_of()
        if any(table is self for table in below):
            raise InvalidError(f"A {type(self).__name__} has no {operation}().")
        return below

    def made_of(self) -> tuple[ClientTable, ...]:
        """The tables that this one reads its rows from; itself where it holds its own."""
        return (self,)

    def metrics(self) -> Mapping[str, float]:
        """What the record of a round says of the table; nothing for most."""
        return {}

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Bytes that the rows written so far take, wherever they live, and the running sum."""

    @abstractmethod
    def tables(self) -> tuple[RowTable, ...]:
        """The tables that hold the rows, for a checkpoint to save."""

    def state_dict(self) -> Mapping[str, Tensor]:
        """What a checkpoint has to keep beside the rows; nothing for most tables."""
        return {}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:  # noqa: B027
        """Takes back what `state_dict` gave, once the rows are loaded.

        Args:
            tensors: What `state_dict` gave; nothing for most tables.
        """

    @abstractmethod
    def describe(self) -> Mapping[str, object]:
        """What must be the same for a saved table to be read back into this one."""
