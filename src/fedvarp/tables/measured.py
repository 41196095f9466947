"""Rows that are believed as far as they have proved right."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import torch
from pydantic import InstanceOf
from torch import Tensor

from fedvarp.errors import InvalidError
from fedvarp.settings.bounds import Momentum
from fedvarp.settings.checked import checked
from fedvarp.tables.base import ClientTable
from fedvarp.tables.blocks import blocks
from fedvarp.tables.checks import Beta, check_clients, check_rows, check_weights
from fedvarp.tables.derived import DerivedTable
from fedvarp.tables.largest_entries import LargestEntries

_OF_NO_USE: Final = 1e-12  # of the largest: a direction with less in it than rounding


class MeasuredTable(DerivedTable):
    """The best guess of what each client would send, from what several tables say of it.

    Its row of client i is ``Σ_k b_k·y_i⁽ᵏ⁾``, a mixture of the client's rows in other tables: its
    own latest update, that of its cluster. FedVARP over this table is

        v = Σ_k b_k·ȳ⁽ᵏ⁾ + Σ_{i∈S} a_i (Δ_i − Σ_k b_k·y_i⁽ᵏ⁾).

    How good the guesses are is seen at those who reply. b solves the least squares of Δ_i − v of
    the round before on the centred rows y_i⁽ᵏ⁾ − ȳ⁽ᵏ⁾, over the repliers of *earlier* rounds, the
    late ones counting most; b ≥ 0 and Σ b ≤ 1. That is the b with the least variance of v. As it is
    fixed before a cohort is drawn, E[v] stays what it is for any b. Where old rows are worth
    nothing b falls to 0, and v is FedAvg's.

    Who was never seen has a row of zeros in the tables, and counts as such in the fit: it is what v
    subtracts for them.

    Attributes:
        b: (P, K) float64, how far each table is believed, for each part of a row.

    Args:
        tables: The tables to mix, of the same clients and dim; the first is believed until there is
            something to measure.
        parts: The slices of a row that have their own b, such as its layers; one for all unless
            given.
        memory: What the rounds before count for, against the present one, in the fit.

    Raises:
        ValueError: There are no tables, or not of the same clients, or parts do not cover a row.

    >>> from fedvarp import MemoryTable
    >>> own, shared = MemoryTable(3, dim=1), MemoryTable(3, dim=1, name="shared")
    >>> own.put(torch.tensor([0, 1, 2]), torch.tensor([[1.0], [2.0], [6.0]]))
    >>> MeasuredTable([own, shared]).get(torch.tensor([2]))
    tensor([[6.]])
    """

    @checked
    def __init__(
        self,
        tables: Sequence[InstanceOf[ClientTable]],
        parts: Sequence[slice] | None = None,
        memory: Momentum = 0.95,
    ) -> None:
        kinds = {(table.num_clients, table.dim, table.dtype) for table in tables}
        if len(kinds) != 1:
            raise InvalidError(
                f"MeasuredTable: its tables must be of the same clients, dim and dtype, and one at "
                f"least; got {sorted(map(str, kinds))}."
            )
        self.below = tuple(tables)
        self.num_clients, self.dim, self.dtype = next(iter(kinds))
        self.parts = tuple(parts or [slice(0, self.dim)])
        ends = [0, *(part.stop for part in self.parts)]
        if [part.start for part in self.parts] != ends[:-1] or ends[-1] != self.dim:
            raise InvalidError(
                f"MeasuredTable: parts must follow each other from 0 to {self.dim}, the length of "
                f"a row."
            )
        self.memory = memory
        K = len(self.below)
        self._measure(torch.zeros(len(self.parts), K + 1, K + 1, dtype=torch.float64))
        self._v: Tensor | None = None  # (d,), of the round before

    def _measure(self, products: Tensor) -> None:
        """Fits b to the sums of the least squares.

        Args:
            products: (P, K+1, K+1) float64: for each part, Σ of products of the centred rows and,
                last, of Δ_i − v.
        """
        self._products = products
        self.b = trust(products)  # (P, K) float64

    def metrics(self) -> Mapping[str, float]:
        """How far each table is believed, measured over the whole row."""
        whole = self.b[0] if len(self.b) == 1 else trust(self._products.sum(0))
        names = [table.tables()[0].name for table in self.below]
        return {f"trust_in_{n}": b_k for n, b_k in zip(names, whole.tolist(), strict=True)}

    def get(self, clients: Tensor) -> Tensor:
        """Σ_k b_k·y_i⁽ᵏ⁾ of these clients, (M, d); see `ClientTable.get`."""
        check_clients(clients, self.num_clients)
        return self._mixture(table.get(clients) for table in self.below)

    def put(self, clients: Tensor, rows: Tensor, largest: LargestEntries | None = None) -> None:
        """Overwrites the rows of these clients in all tables; see `ClientTable.put`."""
        largest = check_rows(self, clients, rows, largest)
        for table in self.below:
            table.put(clients, rows, largest)

    def mean(self) -> Tensor:
        """Σ_k b_k·ȳ⁽ᵏ⁾, (d,)."""
        return self._mixture(table.mean() for table in self.below)

    def exchange(
        self,
        clients: Tensor,
        rows: Tensor,
        a: Tensor,
        beta: Beta,
        largest: LargestEntries | None = None,
    ) -> Tensor:
        """v with b as it is, then the rows, then b from what these clients sent.

        v = Σ_k (what table k would give with β = b_k) − (K − 1) Σ a_i Δ_i.
        """
        largest = check_rows(self, clients, rows, largest)
        check_weights(a, beta, clients, self.dim)
        products = self._products_at(clients, rows, a)
        sums = [
            table.exchange(clients, rows, a, beta * b_k, largest)
            for table, b_k in zip(self.below, self._by_number(), strict=True)
        ]
        v = sums[0]
        for more in sums[1:]:
            v.add_(more).sub_(a.to(rows) @ rows)
        if products is not None:
            self._measure(self.memory * self._products + products)
        self._v = v.clone()
        return v

    def _products_at(self, clients: Tensor, rows: Tensor, a: Tensor) -> Tensor | None:
        """What one cohort adds to the sums of the least squares; None in the first round."""
        if self._v is None or len(clients) == 0:
            return None
        guesses = [(table.get(clients), table.mean()) for table in self.below]
        weight = a.to(rows.device, torch.float64).clamp(min=0).sqrt()[:, None]
        found = torch.zeros_like(self._products)
        for p, part in enumerate(self.parts):
            for block in blocks(part.stop - part.start):
                here = slice(part.start + block.start, part.start + block.stop)
                centred = [(y[:, here] - mean[here]).double() for y, mean in guesses]
                centred.append((rows[:, here] - self._v[here]).double())
                x = torch.stack([(weight * one).reshape(-1) for one in centred])
                found[p] += (x @ x.T).cpu()
        return found

    def _mixture(self, of_each: Iterator[Tensor]) -> Tensor:
        mixed = [rows * b_k for rows, b_k in zip(of_each, self._by_number(), strict=True)]
        return torch.stack(mixed).sum(0).to(self.dtype)

    def _by_number(self) -> list[Beta]:
        """b_k of each table: a number, or (d,) float64 where parts have their own."""
        if len(self.parts) == 1:
            return list(self.b[0].tolist())
        lengths = torch.tensor([part.stop - part.start for part in self.parts])
        return [b_k.repeat_interleave(lengths).to(self._device) for b_k in self.b.T]

    @property
    def _device(self) -> torch.device:
        return self.tables()[0].device

    def _own_state(self) -> dict[str, Tensor]:
        return {} if self._v is None else {"products": self._products, "v": self._v}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes back the sums of the least squares, v, and what the tables keep."""
        if "v" in tensors:
            self._measure(tensors["products"])
            self._v = tensors["v"].to(self._device)
        super().load_state_dict(tensors)

    def describe(self) -> Mapping[str, object]:
        """What must be the same for a saved table to be read back into this one."""
        return {
            "num_clients": self.num_clients,
            "measured_rows": [dict(table.describe()) for table in self.below],
            "parts": [part.stop for part in self.parts],
            "memory": self.memory,
        }


def trust(products: Tensor) -> Tensor:
    """The b ≥ 0 with Σ b ≤ 1 that fits best; the first table's rows where nothing was measured.

    The best b lies inside some face of the simplex: on each the least squares have one solution,
    with or without Σ b = 1, and of those that are feasible the best is the best of all. There are
    few tables, so all faces are tried.

    Args:
        products: (..., K+1, K+1), of the K regressors and, last, of what they are to explain.

    Returns:
        (..., K) float64.
    """
    known = products.numpy()  # some fifty operations on a handful of numbers
    gram, cross = known[..., :-1, :-1], known[..., :-1, -1]
    best = np.zeros_like(cross)
    lowest = np.zeros(best.shape[:-1])  # b'Gb − 2b'c at b = 0
    K = best.shape[-1]
    for size in range(1, K + 1):
        for face in map(list, itertools.combinations(range(K), size)):
            on_face = gram[..., face, :][..., face]
            inverse = np.linalg.pinv(on_face, rcond=_OF_NO_USE, hermitian=True)
            free, ones = (inverse * cross[..., None, face]).sum(-1), inverse.sum(-1)
            beyond = (free.sum(-1) - 1) / ones.sum(-1).clip(min=1e-300)
            for solution in (free, free - ones * beyond[..., None]):
                b = np.zeros_like(best)
                b[..., face] = solution
                error = (b * ((gram * b[..., None, :]).sum(-1) - 2 * cross)).sum(-1)
                feasible = (b.min(-1) >= 0) & (b.sum(-1) <= 1 + _OF_NO_USE)
                better = feasible & (error < lowest)
                best = np.where(better[..., None], b, best)
                lowest = np.where(better, error, lowest)
    unmeasured = gram.diagonal(axis1=-2, axis2=-1).max(-1) <= 0
    best[unmeasured] = np.eye(K)[0]
    return torch.from_numpy(best)
