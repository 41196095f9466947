"""How the server walks in the direction v."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from fedvarp.algorithms.round_updates import RoundUpdates
from fedvarp.errors import InvalidError
from fedvarp.settings.bounds import Momentum, Positive
from fedvarp.settings.checked import checked
from fedvarp.tables.blocks import BLOCK, blocks


class ServerOptimizer(ABC):
    """One step of the server's model; what it remembers is saved by checkpoints.

    Attributes:
        follows_lengths: Whether a step is the longer the longer single updates are, whatever v is.
    """

    follows_lengths: ClassVar[bool] = False

    def observe(self, updates: RoundUpdates) -> None:  # noqa: B027
        """Looks at what came back, before the step; most have no need to.

        Args:
            updates: Those that v was made of, checked by the server; none where nobody answered.
        """

    @abstractmethod
    def step(self, w: Tensor, v: Tensor, scale: float) -> None:
        """Moves w, in place, against v.

        Args:
            w: (d,), the model.
            v: (d,), the direction, over the client rate; may be overwritten.
            scale: The client rate η_c(t) of the round; times the mean number of local steps where
                updates are divided by theirs.
        """

    def state_dict(self) -> Mapping[str, Tensor]:
        """What the optimiser remembers, by name."""
        return {}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes back what `state_dict` gave.

        Args:
            tensors: By name; none to forget everything.

        Raises:
            ValueError: There are tensors for an optimiser that remembers nothing.
        """
        if tensors:
            raise InvalidError(f"{type(self).__name__} remembers nothing, but got {list(tensors)}.")

    @abstractmethod
    def describe(self) -> Mapping[str, object]:
        """Name and settings."""


def walk(w: Tensor, v: Tensor, rate: float) -> None:
    """w ← w − rate · v, in place, rounded after each of the two operations.

    torch's own `w.add_(v, alpha=-rate)` rounds once or twice, depending on where in the vector a
    number stands; figures must not depend on that.

    Args:
        w: (d,), changed in place.
        v: (d,) of the same dtype.
        rate: How far to go.
    """
    if len(v) <= BLOCK:
        w.sub_(v * rate)
        return
    product = v.new_empty(BLOCK)
    for here in blocks(len(v)):
        part = torch.mul(v[here], rate, out=product[: here.stop - here.start])
        w[here].sub_(part)  # `w[here] -= part` would copy the block onto itself afterwards


class ServerSGD(ServerOptimizer):
    """The paper's server step, w ← w − η_s η_c(t) v (its v is divided by τ, and its step has τ).

    Args:
        lr: η_s, above zero.

    Raises:
        ValueError: It is not above zero.
    """

    @checked
    def __init__(self, lr: Positive = 1.0) -> None:
        self.lr = lr

    def step(self, w: Tensor, v: Tensor, scale: float) -> None:
        """w ← w − η_s · scale · v: line 9 of Algorithms 2 and 3."""
        walk(w, v, self.lr * scale)

    def describe(self) -> Mapping[str, object]:
        """Name and settings."""
        return {"optimizer": "sgd", "server_lr": self.lr}


class ServerMomentum(ServerOptimizer):
    """Heavy-ball momentum on the server: u ← β u + v, w ← w − η_s · scale · u.

    u stays over the client rate, so that a decaying rate does not leave old, long steps in it.

    Args:
        lr: η_s, above zero.
        beta: β, in [0, 1).

    Raises:
        ValueError: One of them is out of range.
    """

    @checked
    def __init__(self, lr: Positive = 1.0, beta: Momentum = 0.9) -> None:
        self.lr = lr
        self.beta = beta
        self._u: Tensor | None = None

    def step(self, w: Tensor, v: Tensor, scale: float) -> None:
        """One step; the first one is that of SGD."""
        if self._u is None:
            self._u = torch.zeros_like(w)
        self._u.mul_(self.beta).add_(v)
        w.add_(self._u, alpha=-self.lr * scale)

    def state_dict(self) -> Mapping[str, Tensor]:
        """The velocity, once there is one."""
        return {} if self._u is None else {"velocity": self._u}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes the velocity back."""
        self._u = tensors.get("velocity")

    def describe(self) -> Mapping[str, object]:
        """Name and settings."""
        return {"optimizer": "momentum", "server_lr": self.lr, "server_momentum": self.beta}


def sgd(lr: Positive = 1.0, momentum: Momentum = 0.0) -> ServerOptimizer:
    """Plain or heavy-ball steps, as settings name them.

    Args:
        lr: η_s, above zero; 1 is the paper's, with which FedAvg's model is the mean of the
            clients' models.
        momentum: In [0, 1); 0 for none.

    Returns:
        `ServerSGD`, or `ServerMomentum` where there is momentum.
    """
    return ServerMomentum(lr, momentum) if momentum else ServerSGD(lr)
