"""What a cohort is, and what all samplers do to make one.

A cohort depends on nothing but (seed, round): every algorithm meets the same clients, and a run can
be resumed from its round number. The one exception is a `LearningSampler`, which goes by what came
back. The reasons are in `docs/decisions/client-sampling.md`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol, runtime_checkable

import torch
from pydantic import SkipValidation
from torch import Tensor

from fedvarp.clients.availability import Availability, Probability, per_client, probabilities
from fedvarp.errors import InvalidError
from fedvarp.randomness import stream

Weights = Annotated[Sequence[float] | Tensor | None, SkipValidation]
"""(N,) p_i of the objective Σ p_i f_i, up to a common factor; None for 1/N each."""


@dataclass(frozen=True, eq=False)
class Cohort:
    """The clients asked to train in one round, and which of them will answer.

    Attributes:
        clients: Those asked, distinct and ascending.
        answers: Which of them answer; the others drop out after they were selected.
        weights: For a sum over those who answer; None: their mean.
    """

    clients: Tensor  # (M,) int64
    answers: Tensor  # (M,) bool
    weights: Tensor | None = None  # (M,) float64

    @property
    def answering(self) -> Cohort:
        """The clients whose updates come back, with their weights."""
        if bool(self.answers.all()):
            return self
        weights = None if self.weights is None else self.weights[self.answers]
        return Cohort(self.clients[self.answers], self.answers[self.answers], weights)


@runtime_checkable
class ClientSampler(Protocol):
    """Chooses the cohort of a round.

    >>> from fedvarp.clients import UniformSampler
    >>> sampler = UniformSampler(num_clients=250, clients_per_round=5, seed=0, dropout=0.2)
    >>> for t in range(3):
    ...     cohort = sampler.cohort(t)
    ...     print(cohort.clients.tolist(), "answering:", cohort.answering.clients.tolist())
    [41, 44, 101, 146, 210] answering: [41, 44, 101, 146, 210]
    [27, 35, 54, 195, 210] answering: [35, 54, 195]
    [51, 63, 152, 199, 202] answering: [51, 63, 152, 199, 202]
    """

    def cohort(self, round: int) -> Cohort:
        """Draws the cohort of a round; the same round gives the same cohort.

        Args:
            round: The round, from 0.

        Returns:
            The clients who are asked; empty if nobody can take part.
        """


@runtime_checkable
class LearningSampler(ClientSampler, Protocol):
    """A sampler whose cohorts depend on what came back in the rounds before.

    A run works with a copy that has learned nothing yet; checkpoints save what it has.
    """

    def observe(self, clients: Tensor, residuals: Tensor) -> None:
        """Takes in what came back in a round.

        Args:
            clients: (M,) int64, whose replies were used.
            residuals: (M,) float64, ‖Δ_i − y_i‖ of each: see `RoundReport`.
        """

    def state_dict(self) -> Mapping[str, Tensor]:
        """What it has learned, by name."""

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes back what `state_dict` gave.

        Args:
            tensors: By name; none to forget everything.
        """


def check_cohorts(
    clients_per_round: int,
    num_clients: int,
    objective: Weights = None,
    dropout: Probability = 0.0,
) -> None:
    """Refuses cohorts that cannot be drawn, or not be weighed by the objective.

    Args:
        clients_per_round: M.
        num_clients: N.
        objective: (N,) p_i; None for equal ones.
        dropout: The probability that a selected client does not answer.

    Raises:
        ValueError: M is above N, a number is out of bounds, or a client that has weights to make
            up for its dropouts never answers.
    """
    if clients_per_round > num_clients:
        raise InvalidError(
            f"Cannot choose {clients_per_round} of {num_clients} clients without replacement. "
            f"Set clients_per_round between 1 and {num_clients}."
        )
    silent = probabilities("dropout", dropout, num_clients) == 1
    if objective is None:
        return
    p = per_client("objective", objective, num_clients)
    if not (p >= 0).all() or p.sum().isinf() or not p.any():
        raise InvalidError(f"objective must be finite, not negative and not all zero, got {p}.")
    if bool((silent & (p > 0)).any()):
        raise InvalidError(
            "A client that counts in the objective must be heard at times, or no weights can make "
            "the result unbiased: make its dropout less than 1, or its weight zero."
        )


def online_clients(
    availability: Availability | None, seed: int, round: int, num_clients: int
) -> Tensor:
    """Lists who is online.

    Args:
        availability: Who is when; None: everybody, always.
        seed: The run's seed.
        round: The round, from 0.
        num_clients: N.

    Returns:
        (number online,) int64, ascending.

    Raises:
        ValueError: The availability does not give one bool for each client.
    """
    if availability is None:
        return torch.arange(num_clients)
    online = availability.online(seed, round, num_clients)
    if online.dtype != torch.bool or online.shape != (num_clients,):
        raise InvalidError(
            f"{type(availability).__name__}.online returned {online.dtype} of shape "
            f"{tuple(online.shape)}. Return one bool per client, here ({num_clients},)."
        )
    return online.nonzero().squeeze(1)


def drawn_cohort(
    seed: int,
    round: int,
    clients: Tensor,
    dropout: Probability,
    p: Tensor | None = None,
    pi: float | Tensor = 1.0,
) -> Cohort:
    """The cohort of clients that were drawn, with those of them who will answer.

    Args:
        seed: The run's seed.
        round: The round, from 0.
        clients: (M,) int64, those drawn, ascending.
        dropout: The probability that a selected client does not answer.
        p: (M,) float64, their shares of the objective of those among whom they were drawn; None:
            those who answer count the same.
        pi: With which they were drawn, each or all.

    Returns:
        The cohort; with shares its weights are p_i / π_i with π_i the probability of being drawn
        and answering.
    """
    answers = torch.ones(len(clients), dtype=torch.bool)
    if p is None and isinstance(dropout, float | int) and dropout == 0:
        return Cohort(clients, answers)  # as nearly always, without a further operation
    silent = torch.as_tensor(dropout, dtype=torch.float64)
    silent = silent[clients] if silent.ndim else silent
    if silent.any():  # each client has its own draw, whoever else was selected
        u = torch.empty(len(clients), dtype=torch.float64)
        for cell, client in zip(u, clients.tolist(), strict=True):
            cell.uniform_(generator=stream(seed, "dropout", round, client))
        answers = u >= silent
    return Cohort(clients, answers, None if p is None else p / (pi * (1 - silent)))


def shares(objective: Weights, clients: Tensor, pool: Tensor, num_clients: int) -> Tensor | None:
    """What clients count for in the objective of those among whom they were drawn.

    Args:
        objective: (N,) p_i up to a common factor; None: all equal.
        clients: (M,) int64.
        pool: (n,) int64, those among whom.
        num_clients: N.

    Returns:
        (M,) float64; None where all are equal.
    """
    if objective is None:
        return None
    p = per_client("objective", objective, num_clients).expand(num_clients)
    return p[clients] / p[pool].sum()
