"""What an algorithm asks of its table of client states."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedvarp.server.optimizers import walk

if TYPE_CHECKING:
    from fedvarp.algorithms.round_updates import RoundUpdates
    from fedvarp.tables.row_table import RowTable


class ClientTable(ABC):
    """y_1 … y_N, zero until first written. Law: mean() equals get(all clients).mean(0).

    With unequal client weights p_i the mean is Σ p_i y_i / Σ p_i.
    """

    num_clients: int
    dim: int
    dtype: torch.dtype  # of the rows given and taken: float32, or float64 for a float64 table

    @abstractmethod
    def get(self, clients: Tensor) -> Tensor:
        """The rows of these clients, (M, d), a copy."""

    @abstractmethod
    def put(self, clients: Tensor, rows: Tensor) -> None:
        """Overwrites the rows of these clients, O(M·d).

        Refuses, before anything changes, rows that are not finite or of another shape or dtype,
        and clients that are repeated or unknown.
        """

    @abstractmethod
    def mean(self, out: Tensor | None = None) -> Tensor:
        """The mean row over all clients, (d,); O(d) whatever N is.

        Written into `out` if given: fresh memory for a large model costs more than the mean itself.
        """

    def exchange(self, updates: RoundUpdates, w: Tensor, rate: float) -> None:
        """Moves w, (d,), in place by −rate · v of FedVARP; then y_i becomes Δ_i.

        These lines of Algorithm 2 are the meaning; tables do the same in one pass over memory.
        """
        v = self.mean() + updates.average(updates.deltas - self.get(updates.clients))  # line 8
        self.put(updates.clients, updates.deltas)  # lines 10-14
        walk(w, v, rate)  # line 9, after what may still be refused

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
        """Takes back what `state_dict` gave, once the rows are loaded; nothing for most tables."""

    @abstractmethod
    def describe(self) -> Mapping[str, object]:
        """What must be the same for a saved table to be read back into this one."""
