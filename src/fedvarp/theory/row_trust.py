"""How far rows are to be trusted: b, by least squares of updates on rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedvarp.server.flat_model import FlatModel
from fedvarp.tables.measured import trust

ByTable = Mapping[str, float | None]
"""b of each table, by what its rows are; None where its rows are all the same, as before any."""


@dataclass(frozen=True)
class RowTrust:
    """The b with which v = Σ_k b_k·ȳ⁽ᵏ⁾ + average_S(Δ_i − Σ_k b_k·y_i⁽ᵏ⁾) varies least.

    A row of b = 1 is as good a guess of what its client would send as there can be; one of b = 0
    says nothing of it, and v is FedAvg's.

    Attributes:
        whole: Of the whole row.
        by_parameter: Of each parameter of the model, measured on its own numbers.
    """

    whole: ByTable
    by_parameter: Mapping[str, ByTable]


class TrustFit:
    """Running sums of the least squares of Δ_i on y_i⁽ᵏ⁾, both about their means over clients.

    It is the fit of `MeasuredTable`, at one model and over clients that are all asked at once, so
    that their mean need not be guessed.

    Args:
        model: Where its parameters lie.
        tables: What rows are given, by name.
    """

    def __init__(self, model: FlatModel, tables: Sequence[str]) -> None:
        self._model, self._tables = model, tables
        size = len(tables) + 1
        self._products = torch.zeros(len(model.names), size, size, dtype=torch.float64)
        self._mean = torch.zeros(size, model.dim, dtype=torch.float64)
        self._count = 0

    def add(self, update: Tensor, rows: Sequence[Tensor]) -> None:
        """Takes in a client.

        Args:
            update: (d,), Δ_i.
            rows: (d,) each, y_i⁽ᵏ⁾ of every table.
        """
        self._count += 1
        apart = torch.stack([*rows, update]).double().cpu() - self._mean  # (K+1, d)
        self._mean += apart / self._count
        weight = (self._count - 1) / self._count
        for products, part in zip(
            self._products, self._model.unflatten(apart).values(), strict=True
        ):
            x = part.reshape(len(apart), -1)
            products += weight * x @ x.T

    def found(self) -> RowTrust:
        """Fits b to all clients taken in."""
        names = self._model.names
        return RowTrust(
            whole=self._by_table(self._products.sum(0)),
            by_parameter={
                name: self._by_table(part) for name, part in zip(names, self._products, strict=True)
            },
        )

    def _by_table(self, products: Tensor) -> ByTable:
        b, spread = trust(products).tolist(), products.diagonal().tolist()
        return {name: b[k] if spread[k] > 0 else None for k, name in enumerate(self._tables)}
