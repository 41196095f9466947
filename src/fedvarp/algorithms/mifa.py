"""MIFA (Gu et al., NeurIPS 2021), as the FedVARP paper compares with it."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from fedvarp.algorithms.aggregator import Aggregator
from fedvarp.algorithms.round_updates import RoundUpdates
from fedvarp.tables import ClientTable


@dataclass(eq=False)
class MIFA(Aggregator):
    """The plain mean of every client's latest update (SAG over clients).

    Rows start at zero and nobody is waited for, as in the paper's experiments: until a client has
    first been seen, v is biased towards zero.
    """

    y: ClientTable
    _v: Tensor | None = field(default=None, init=False, repr=False)  # memory to write v into

    def aggregate(self, updates: RoundUpdates) -> Tensor:
        """y_i ← Δ_i for i ∈ S, then v = 1/N Σ_j y_j."""
        self.y.put(updates.clients, updates.deltas)
        self._v = self.y.mean(out=self._v)
        return self._v

    def receive_late(self, updates: RoundUpdates) -> bool:
        """y_i ← Δ_i: an update of an older model still says more than the one before it."""
        self.y.put(updates.clients, updates.deltas)
        return True

    @property
    def table(self) -> ClientTable:
        """y_1 … y_N."""
        return self.y
