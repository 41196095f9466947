"""Who runs LocalSGD for the clients of a round."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from fedvarp.algorithms.round_updates import RoundUpdates
from fedvarp.server.server import Broadcast


class ClientTrainer(Protocol):
    """Trains the clients of one round; the same broadcast gives the same updates."""

    def train(self, broadcast: Broadcast, clients: Tensor, round: int) -> RoundUpdates:
        """What these clients send back.

        Args:
            broadcast: What the server sent.
            clients: (M,) int64, those who answer, all of them among `broadcast.clients`.
            round: t, the key of the random draws.
        """
