"""What an algorithm is here: something that turns the updates of one round into a direction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedvarp.algorithms.round_updates import RoundUpdates
from fedvarp.settings.checked import check_fields
from fedvarp.tables.base import ClientTable


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

    Attributes:
        vectors_down: How many vectors of the model's size go to each client in a round.
        vectors_up: How many come back.
        counts_steps: Whether clients with more local steps count for more where updates are plain
            differences of models.
        unbiased: Whether E[v] over cohorts is the update of full participation, whatever the table
            holds. The tests hold to it whichever algorithm claims it.
        full_is_fedavg: Whether v is FedAvg's where all clients answer, whatever the table holds.
        needs_gradients: Whether updates must be sums of gradients: clients then take steps of SGD.
        needs_models: Whether updates must be plain differences of models, not divided by steps.
        needs_equal_weights: Whether all clients of a cohort must count the same.
        withstands_outliers: Whether v stays where it is however long single updates are.
        bounds_lengths: Whether `admit` lets no update through that is far longer than most.
    """

    vectors_down: ClassVar[int] = 1
    vectors_up: ClassVar[int] = 1
    counts_steps: ClassVar[bool] = True
    unbiased: ClassVar[bool] = True
    full_is_fedavg: ClassVar[bool] = True
    needs_gradients: ClassVar[bool] = False
    needs_models: ClassVar[bool] = False
    needs_equal_weights: ClassVar[bool] = False
    withstands_outliers: ClassVar[bool] = False
    bounds_lengths: ClassVar[bool] = False

    def admit(self, updates: RoundUpdates) -> RoundUpdates:
        """The updates as `aggregate` takes them in; changes nothing, and what it gives stays so.

        Whoever else looks at the updates of a round, an optimiser or a sampler, sees these.

        Args:
            updates: What came back, checked by the server.

        Returns:
            Of the same clients in the same order, some of them perhaps shorter: see `Clipped`. An
            algorithm that stands before another one passes on what that one's `admit` gives.
        """
        return updates

    @abstractmethod
    def aggregate(self, updates: RoundUpdates) -> Tensor:
        """Computes the direction of a round; the only place where rows of clients change.

        Args:
            updates: What came back, checked by the server.

        Returns:
            v, (d,), good until the next call.
        """

    def corrections(self, clients: Tensor) -> Tensor | None:
        """What these clients are to add to each of their local gradients.

        Args:
            clients: (M,) int64.

        Returns:
            (M, d); None if there is nothing to add.
        """
        return None

    @property
    def proximal(self) -> float:
        """ρ: clients add ρ (w_i − w) to each of their local gradients, with w as it was sent."""
        return 0.0

    def without_replies(self) -> Tensor | None:
        """The direction of a round in which nobody answered, where v is a weighted sum.

        A sum over nobody is zero, and what is left of ``β·ȳ + Σ a_i (Δ_i − β·y_i)`` is β·ȳ. To
        leave such rounds out would bias E[v] by the chance of one times β·ȳ. (A mean of those who
        answer is another matter: there is none without answers, and the round does not count.)

        Returns:
            v, (d,); None to stay where it is.
        """
        return None

    def receive_late(self, updates: RoundUpdates) -> bool:
        """Takes in replies that came too late for their round.

        Args:
            updates: What came back, checked by the server.

        Returns:
            Whether they were of any use.
        """
        return False

    @property
    def table(self) -> ClientTable | None:
        """The table of client rows, saved by checkpoints; None if the algorithm has none."""
        return None

    @property
    def unwrapped(self) -> Aggregator:
        """The algorithm itself, where this is one that stands before it, such as `Clipped`."""
        return self

    def state_dict(self) -> Mapping[str, Tensor]:
        """What it remembers from round to round beside its table, saved by checkpoints."""
        return {}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:  # noqa: B027
        """Takes back what `state_dict` gave; not called where it gave nothing.

        Args:
            tensors: By name, as they were given.
        """

    def describe(self) -> Mapping[str, object]:
        """What must be the same for a saved run to go on with this algorithm.

        One with settings of its own adds them: ``{**super().describe(), "decay": self.decay}``.
        """
        table = {} if self.table is None else self.table.describe()
        return {"algorithm": type(self).__name__, **table}


@dataclass(eq=False)
class LatestUpdates(Aggregator):
    """What algorithms share whose rows y_i are the latest update of each client.

    Args:
        y: The table.

    Attributes:
        beta: β of ``v = β·ȳ + Σ a_i (Δ_i − β·y_i)``, how far the rows are believed.
    """

    y: ClientTable
    beta: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        check_fields(self)

    def without_replies(self) -> Tensor:
        """β·ȳ: a sum over nobody adds nothing to it."""
        return self.beta * self.y.mean()

    def receive_late(self, updates: RoundUpdates) -> bool:
        """y_i ← Δ_i: an update of an older model still says more than the one before it."""
        self.y.put(updates.clients, updates.deltas, updates.largest_entries)
        return True

    @property
    def table(self) -> ClientTable:
        """y_1 … y_N."""
        return self.y
