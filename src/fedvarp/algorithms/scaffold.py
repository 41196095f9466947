"""SCAFFOLD (Karimireddy et al., ICML 2020), option II, with the control variates on the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedvarp.algorithms.aggregator import Aggregator
from fedvarp.algorithms.round_updates import RoundUpdates
from fedvarp.settings.checked import check_fields
from fedvarp.tables.base import ClientTable


@dataclass(eq=False)
class Scaffold(Aggregator):
    """SCAFFOLD: clients add c − c_i to every local gradient, so that all walk in one direction.

    The textbook keeps c_i on client i; c travels down with w, the change of c_i up with Δ_i. Here
    the server holds all c_i and sends the difference: the same iterates with one vector less on the
    way up, and a client that lost its disk has lost nothing. Traffic is counted as the textbook has
    it all the same. An update must belong to the last broadcast: c moves with every `aggregate`.

    Args:
        c: A table with one row per client.
    """

    vectors_down: ClassVar[int] = 2  # w and c, as the textbook sends them
    vectors_up: ClassVar[int] = 2  # the changes of w and c_i
    counts_steps: ClassVar[bool] = False  # all clients walk along c, a mean of gradients
    needs_gradients: ClassVar[bool] = True

    c: ClientTable

    def __post_init__(self) -> None:
        check_fields(self)

    def corrections(self, clients: Tensor) -> Tensor:
        """c − c_i, (M, d), for the local gradients of these clients."""
        return self.c.get(clients).neg_().add_(self.c.mean())

    def aggregate(self, updates: RoundUpdates) -> Tensor:
        """v = 1/M Σ_{i∈S} Δ_i, and c_i ← c_i − c + Δ_i / τ_i (their equation 4, option II).

        Δ_i holds the correction: it is the sum of g_i + c − c_i over the local steps. Variates are
        means of gradients, whatever the number of steps.
        """
        S = updates.clients
        self.c.put(S, updates.mean_gradients - self.corrections(S))
        return updates.average(updates.deltas)

    @property
    def table(self) -> ClientTable:
        """c_1 … c_N."""
        return self.c
