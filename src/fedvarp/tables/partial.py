"""Rows of part of the model: its last layer, say, where updates differ most between clients."""

from __future__ import annotations

import fnmatch
import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import Tensor

from fedvarp.settings.problems import SettingsError
from fedvarp.tables.base import ClientTable
from fedvarp.tables.checks import Beta, check_clients, check_rows, check_weights
from fedvarp.tables.derived import DerivedTable
from fedvarp.tables.largest_entries import LargestEntries

LAST_LAYER: Final = "last_layer"


class PartialTable(DerivedTable):
    """y_i holds some of the d numbers, and is zero elsewhere, where v is FedAvg's.

    E[v] is that of full participation for any fixed choice of the numbers.

    Args:
        rows: A table of the numbers that are kept, in their order.
        kept: (d',) int64, which of the d numbers they are, ascending.
        dim: d.

    >>> from fedvarp import MemoryTable
    >>> table = PartialTable(MemoryTable(2, dim=1), torch.tensor([2]), dim=3)
    >>> table.put(torch.tensor([0]), torch.tensor([[1.0, 2.0, 3.0]]))
    >>> table.get(torch.tensor([0]))
    tensor([[0., 0., 3.]])
    """

    def __init__(self, rows: ClientTable, kept: Tensor, dim: int) -> None:
        self.rows = rows
        self.below = (rows,)
        self.kept = kept
        self.num_clients = rows.num_clients
        self.dim = dim
        self.dtype = rows.dtype

    def get(self, clients: Tensor) -> Tensor:
        """The rows of these clients, (M, d), zero but for what is kept."""
        check_clients(clients, self.num_clients)
        return self._widened(self.rows.get(clients))

    def put(self, clients: Tensor, rows: Tensor, largest: LargestEntries | None = None) -> None:
        """Overwrites what is kept of these clients; see `ClientTable.put`."""
        check_rows(self, clients, rows, largest)
        self.rows.put(clients, self._narrowed(rows))

    def mean(self) -> Tensor:
        """The mean row over all clients, (d,), zero but for what is kept."""
        return self._widened(self.rows.mean())

    def exchange(
        self,
        clients: Tensor,
        rows: Tensor,
        a: Tensor,
        beta: Beta,
        largest: LargestEntries | None = None,
    ) -> Tensor:
        """Σ a_i Δ_i, and where rows are kept what they make of it."""
        check_rows(self, clients, rows, largest)
        check_weights(a, beta, clients, self.dim)
        v = a.to(rows) @ rows
        narrow = self._narrowed(beta) if isinstance(beta, Tensor) else beta
        kept = self.kept.to(v.device)
        v[kept] = self.rows.exchange(clients, self._narrowed(rows), a, narrow)
        return v

    def _narrowed(self, rows: Tensor) -> Tensor:
        return rows[..., self.kept.to(rows.device)]

    def _widened(self, rows: Tensor) -> Tensor:
        wide = torch.zeros(*rows.shape[:-1], self.dim, dtype=rows.dtype, device=rows.device)
        wide[..., self.kept.to(rows.device)] = rows
        return wide

    def describe(self) -> Mapping[str, object]:
        """What must be the same for a saved table to be read back into this one."""
        digest = hashlib.sha256(self.kept.cpu().numpy().tobytes()).hexdigest()[:16]
        return {**self.rows.describe(), "dim": self.dim, "numbers_kept": digest}


def numbers_kept(rows: Sequence[str], parameters: Mapping[str, slice]) -> Tensor:
    """Finds the numbers of a model that belong to some of its parameters.

    >>> numbers_kept(["last_layer"], {"a.weight": slice(0, 4), "b.weight": slice(4, 6)})
    tensor([4, 5])

    Args:
        rows: "last_layer", the module of the last parameter, or patterns of names such as "fc*".
        parameters: Where each parameter lies in the vector, in order.

    Returns:
        (d',) int64, ascending.

    Raises:
        SettingsError: A pattern matches no parameter.
    """
    chosen: set[str] = set()
    for pattern in rows:
        if pattern == LAST_LAYER:
            *_, last = parameters
            pattern = f"{last.rpartition('.')[0]}.*" if "." in last else last
        matching = fnmatch.filter(parameters, "*" if pattern == "all" else pattern)
        if not matching:
            raise SettingsError(
                f"rows = {pattern!r} matches no parameter of the model, which has "
                f'{", ".join(parameters)}. Write "all", "last_layer" or patterns such as '
                f'"{next(iter(parameters))}".'
            )
        chosen.update(matching)
    places = [part for name, part in parameters.items() if name in chosen]
    return torch.cat([torch.arange(part.start, part.stop) for part in places])
