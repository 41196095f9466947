"""Who runs LocalSGD for the clients of a round: what every trainer offers the round loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Self

from torch import Tensor

from fedvarp.algorithms.round_updates import RoundUpdates
from fedvarp.clients.evaluation import Evaluator, Figures
from fedvarp.server.server import Broadcast


class ClientTrainer(ABC):
    """Trains the clients of one round; the same broadcast gives the same updates.

    A trainer of your own needs `train` alone. As a context manager a trainer closes itself.
    """

    @abstractmethod
    def train(self, broadcast: Broadcast, clients: Tensor, round: int) -> RoundUpdates:
        """Runs LocalSGD at some clients.

        Args:
            broadcast: What the server sent.
            clients: (M,) int64, those who answer, all of them among `broadcast.clients`.
            round: t, the key of the random draws.

        Returns:
            What these clients send back, in the order of `clients`. A client whose loss or weights
            turned non-finite has no row; it is named in `refused`.
        """

    def foretell(self, cohorts: Mapping[int, Tensor]) -> None:  # noqa: B027  # most have no use
        """Says who will be trained in some rounds to come, to whoever would prepare for them.

        Args:
            cohorts: (M,) int64 by round, those who will answer.
        """

    def evaluation(
        self, evaluator: Evaluator, w: Tensor, buffers: Mapping[str, Tensor]
    ) -> Callable[[], Figures] | None:
        """Begins to evaluate a model in the idle slots of the next round, where that can be done.

        Args:
            evaluator: Whose figures are wanted.
            w: (d,) the server's model, which the next round is trained from.
            buffers: The model's buffers.

        Returns:
            A function that waits for the figures; None if this trainer has no idle slots, or
            cannot run this evaluator: then whoever asks evaluates without it.
        """
        return None

    def close(self) -> None:  # noqa: B027  # most trainers have nothing to end
        """Ends the processes that the trainer has started, if any."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
