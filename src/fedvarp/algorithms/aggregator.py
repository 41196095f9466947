"""What an algorithm is here: something that turns the updates of one round into a direction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from fedvarp.algorithms.round_updates import RoundUpdates
from fedvarp.server.optimizers import ServerOptimizer
from fedvarp.tables import ClientTable


class Aggregator(ABC):
    """Turns the updates of one round into the server direction v.

    A new algorithm is one method. For example FedAvg that trusts only the largest half of a cohort:

    >>> import torch
    >>> class LargestHalf(Aggregator):
    ...     def aggregate(self, updates):
    ...         largest = updates.deltas.norm(dim=1).argsort(descending=True)
    ...         return updates.deltas[largest[: len(largest) // 2]].mean(0)
    >>> deltas = torch.tensor([[1.0], [5.0], [3.0], [-2.0]])
    >>> ones = torch.ones(4, dtype=torch.int64)
    >>> LargestHalf().aggregate(RoundUpdates(torch.arange(4), deltas, ones, ones, scale=0.1))
    tensor([4.])

    One that remembers more than its table says so with `state_dict` and `load_state_dict`: a run
    that is resumed goes on with what they give and take, and begins anew with all else.
    """

    vectors_down: ClassVar[int] = 1  # of the model's size, to each client in a round
    vectors_up: ClassVar[int] = 1  # and back

    @abstractmethod
    def aggregate(self, updates: RoundUpdates) -> Tensor:
        """v, (d,), good until the next call. The only place where client states change."""

    def move(self, w: Tensor, updates: RoundUpdates, optimizer: ServerOptimizer) -> None:
        """Moves w, in place, by one round: v, then the optimiser's step.

        An algorithm whose v can be walked along while it is computed does both in one pass over
        memory, and to the same bits.
        """
        optimizer.step(w, self.aggregate(updates), updates.scale)

    def corrections(self, clients: Tensor) -> Tensor | None:
        """(M, d), added to every local gradient of these clients; None if there are none."""
        return None

    def receive_late(self, updates: RoundUpdates) -> bool:
        """Takes in replies that came too late for their round; False: they are of no use here."""
        return False

    @property
    def table(self) -> ClientTable | None:
        """The table of client states, saved by checkpoints; None if the algorithm has none."""
        return None

    def state_dict(self) -> Mapping[str, Tensor]:
        """What it remembers from round to round beside its table, saved by checkpoints."""
        return {}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:  # noqa: B027
        """Takes back what `state_dict` gave; not called where it gave nothing."""

    def describe(self) -> Mapping[str, object]:
        """What must be the same for a saved run to go on with this algorithm.

        One with settings of its own adds them: ``{**super().describe(), "decay": self.decay}``.
        """
        table = {} if self.table is None else self.table.describe()
        return {"algorithm": type(self).__name__, **table}
