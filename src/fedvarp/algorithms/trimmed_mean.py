"""The coordinate-wise trimmed mean and median (Yin et al., ICML 2018), over rows of clients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from fedvarp.algorithms.aggregator import LatestUpdates
from fedvarp.algorithms.round_updates import RoundUpdates
from fedvarp.errors import InvalidError
from fedvarp.settings.bounds import Share


@dataclass(eq=False)
class TrimmedMean(LatestUpdates):
    """FedVARP that leaves out, of each number, the largest and smallest of what a cohort says.

    v = β·ȳ + trimmed mean_{i∈S} (Δ_i − β·y_i), then y_i ← Δ_i. β = 0 is Yin et al.'s algorithm. At
    either end ⌈trim·M⌉ of the M numbers are left out, but never all: one or two in the middle stay.
    So `trim` = ½ is the median, and M = 1 and M = 2 are the plain mean, which no attacker fears.

    The rows themselves are not trimmed: a bad one counts in ȳ until its client returns. `Clipped`
    bounds it. Clients that have much to say count for less: the trimmed mean of clients that differ
    is not their mean, and not unbiased.

    Args:
        y: A table with one row per client.
        beta: β, how far rows are believed, from 0 to 1.
        trim: The share of the cohort that is left out at either end, from 0 to ½.

    >>> import torch
    >>> from fedvarp import MemoryTable
    >>> S, ones = torch.arange(4), torch.ones(4, dtype=torch.int64)
    >>> deltas = torch.tensor([[1.0], [2.0], [4.0], [1000.0]])
    >>> median = TrimmedMean(MemoryTable(num_clients=4, dim=1), trim=0.5)
    >>> median.aggregate(RoundUpdates(S, deltas, ones, ones, scale=0.1))  # 0 + (2 + 4) / 2
    tensor([3.])
    """

    unbiased: ClassVar[bool] = False
    full_is_fedavg: ClassVar[bool] = False
    needs_equal_weights: ClassVar[bool] = True
    withstands_outliers: ClassVar[bool] = True

    beta: Share = 1.0  # type: ignore[misc]  # what FedVARP has once for all is set here
    trim: Annotated[float, Field(ge=0, le=0.5)] = 0.1

    def aggregate(self, updates: RoundUpdates) -> Tensor:
        """v = β·ȳ + trimmed mean of Δ_i − β·y_i, then y_i ← Δ_i for i ∈ S.

        Raises:
            ValueError: Clients have unequal weights. Nothing has changed.
        """
        S, delta, a = updates.clients, updates.deltas, updates.averaging_weights
        if a.min() < a.max():
            raise InvalidError(
                "A trimmed mean or median counts every client of a cohort the same: it cannot be "
                "taken with unequal weights. Sample clients uniformly, for an equal objective."
            )
        M = len(S)
        k = min(math.ceil(self.trim * M - 1e-9), (M - 1) // 2)
        sorted_changes = (delta - self.beta * self.y.get(S)).sort(0).values
        v = self.beta * self.y.mean() + float(a.sum()) * sorted_changes[k : M - k].mean(0)
        self.y.put(S, delta, updates.largest_entries)
        return v

    def describe(self) -> Mapping[str, object]:
        """What must be the same for a saved run to go on with this algorithm."""
        return {**super().describe(), "beta": self.beta, "trim": self.trim}
