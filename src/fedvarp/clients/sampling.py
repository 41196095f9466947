"""Who takes part in a round: uniform and weighted cohorts, availability, dropouts.

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

from fedvarp.clients.availability import (
    Availability,
    Probability,
    check_round,
    per_client,
    probabilities,
)
from fedvarp.randomness import stream
from fedvarp.settings.bounds import Count, Seed
from fedvarp.settings.checked import checked
from fedvarp.tables import tensors

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
        weights = None if self.weights is None else self.weights[self.answers]
        return Cohort(self.clients[self.answers], self.answers[self.answers], weights)


@runtime_checkable
class ClientSampler(Protocol):
    """Chooses the cohort of a round.

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
            residuals: (M,) float64, ‖Δ_i − y_i‖ of each: see `Server.residuals`.
        """

    def state_dict(self) -> Mapping[str, Tensor]:
        """What it has learned, by name."""

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes back what `state_dict` gave.

        Args:
            tensors: By name; none to forget everything.
        """


@checked
@dataclass(frozen=True, eq=False)
class UniformSampler:
    """Uniform without replacement: every cohort of M clients is equally likely.

    The mean of the updates is then unbiased for the mean over all clients, as the paper assumes.
    With an availability it is so for the clients online, all of whom take part if they are fewer
    than M. Dropouts leave it unbiased as long as all clients drop out equally often; otherwise use
    `WeightedSampler`. Time and memory are O(M), or O(N) with an availability.

    Attributes:
        num_clients: N.
        clients_per_round: M.
        seed: The run's seed.
        availability: Who is online; None: everybody, always.
        dropout: The probability that a selected client does not answer, for all or for each.

    Raises:
        ValueError: There are fewer than M clients, or the dropout is no probability.
    """

    num_clients: Count
    clients_per_round: Count
    seed: Seed
    availability: Availability | None = None
    dropout: Annotated[Probability, SkipValidation] = 0.0

    def __post_init__(self) -> None:
        check_cohorts(self.clients_per_round, self.num_clients, None, self.dropout)

    def cohort(self, round: int) -> Cohort:
        """See `ClientSampler.cohort`."""
        check_round(round)
        generator = stream(self.seed, "cohort", round)
        if self.availability is None:
            clients = random_subset(self.num_clients, self.clients_per_round, generator)
        else:
            online = online_clients(self.availability, self.seed, round, self.num_clients)
            size = min(self.clients_per_round, len(online))
            clients = online[random_subset(len(online), size, generator)]
        return Cohort(clients, _answers(self.seed, round, clients, self.dropout))


@checked
@dataclass(frozen=True, eq=False)
class WeightedSampler:
    """M clients without replacement, client i with probability π_i proportional to its size.

    Where that would exceed 1 the client takes part in every round and the others share the rest.
    Weights p_i / π_i make Σ_m weights_m Δ_m exactly unbiased for the objective's Σ_i p_i Δ_i; with
    dropouts, π_i is the probability that the client is selected and answers.

    With an availability all this holds given who is online: they alone share out the π_i, and the
    sum is unbiased for their own weighted mean, Σ_online p_i Δ_i / Σ_online p_i. Cost: O(N).

    >>> sampler = WeightedSampler(sizes=[1, 1, 2, 4], clients_per_round=2, seed=0)
    >>> for t in range(3):
    ...     cohort = sampler.cohort(t)
    ...     print(cohort.clients.tolist(), cohort.weights.tolist())
    [2, 3] [0.5, 0.25]
    [0, 3] [1.0, 0.25]
    [0, 3] [1.0, 0.25]

    Attributes:
        sizes: (N,) the size of each client, such as its number of examples.
        clients_per_round: M.
        seed: The run's seed.
        objective: (N,) p_i up to a common factor; None: all equal, the paper's objective.
        availability: Who is online; None: everybody, always.
        dropout: The probability that a selected client does not answer, for all or for each.

    Raises:
        ValueError: Fewer than M clients have a size, a number is out of bounds, or no weights can
            make the sum unbiased.
    """

    sizes: Annotated[Sequence[float] | Tensor, SkipValidation]
    clients_per_round: Count
    seed: Seed
    objective: Weights = None
    availability: Availability | None = None
    dropout: Annotated[Probability, SkipValidation] = 0.0

    @property
    def num_clients(self) -> int:
        """N."""
        return len(self.sizes)

    def __post_init__(self) -> None:
        sizes, objective, dropout = self._columns()
        for name, column in (("sizes", sizes), ("objective", objective)):
            if not (column >= 0).all() or column.sum().isinf():
                raise ValueError(f"{name} must be finite and not negative, got {column}.")
        wrong = ((sizes > 0) != (objective > 0)) | ((sizes > 0) & (dropout == 1))
        if wrong.any():
            i = int(wrong.nonzero()[0])
            raise ValueError(
                f"WeightedSampler received for client {i} size {sizes[i]:g}, objective weight "
                f"{objective[i]:g} and dropout {dropout[i]:g}. A client that counts in the "
                "objective must be heard at times, or no weights can make the result unbiased; one "
                "that does not count should not be asked. Make size and objective weight both "
                "positive (and dropout less than 1), or both zero."
            )
        _check_size(self.clients_per_round, int((sizes > 0).sum()))

    def cohort(self, round: int) -> Cohort:
        """See `ClientSampler.cohort`."""
        check_round(round)
        sizes, objective, dropout = self._columns()
        pool = sizes.nonzero().squeeze(1)  # those who may be chosen
        if self.availability is not None:
            online = online_clients(self.availability, self.seed, round, len(sizes))
            pool = online[sizes[online] > 0]
        m = min(self.clients_per_round, len(pool))
        lengths, step = inclusion_lengths(sizes[pool], m)

        generator = stream(self.seed, "cohort", round)
        order = torch.randperm(len(pool), generator=generator)
        start = int(uniform_integers(step, 1, generator))
        chosen = order[systematic(lengths[order], step, start, m)].sort().values
        clients = pool[chosen]
        pi = lengths[chosen].double() / step * (1 - dropout[clients])
        p = objective[clients] / objective[pool].sum()
        return Cohort(clients, _answers(self.seed, round, clients, self.dropout), weights=p / pi)

    def _columns(self) -> tuple[Tensor, Tensor, Tensor]:
        """Sizes, objective weights and dropout probabilities, each (N,) float64."""
        N = len(sizes := tensors.as_tensor("sizes", self.sizes).double().reshape(-1))
        objective = per_client("objective", 1.0 if self.objective is None else self.objective, N)
        return sizes, objective.expand(N), probabilities("dropout", self.dropout, N).expand(N)


def uniform_integers(n: int, count: int, generator: torch.Generator) -> Tensor:
    """Draws integers below n, each exactly equally likely: torch's own draws are not quite.

    Args:
        n: One more than the largest.
        count: How many are drawn, with repetitions.
        generator: Where they are drawn from.

    Returns:
        (count,) int64.
    """
    words = 2**62  # below a power of two torch is exact; beyond the last multiple of n, draw again
    draws = torch.randint(words, (count,), generator=generator)
    while (again := draws >= words - words % n).any():
        draws[again] = torch.randint(words, (int(again.sum()),), generator=generator)
    return draws % n


def random_subset(n: int, size: int, generator: torch.Generator) -> Tensor:
    """Draws a uniformly random subset of 0 ... n-1 in O(size) draws.

    Draws as many numbers as are still missing and drops repetitions, until none is missing. How
    many are drawn depends only on how many are distinct, so renaming the numbers changes nothing:
    every subset is exactly as likely as every other.

    Args:
        n: How many numbers there are.
        size: How many are chosen, at most n.
        generator: Where they are drawn from.

    Returns:
        (size,) int64, distinct and ascending.
    """
    if 2 * size > n:  # repetitions would be the rule: choose the ones to leave out
        kept = torch.ones(n, dtype=torch.bool)
        kept[random_subset(n, n - size, generator)] = False
        return kept.nonzero().squeeze(1)
    subset = torch.empty(0, dtype=torch.int64)
    while len(subset) < size:
        more = uniform_integers(n, size - len(subset), generator)
        subset = torch.unique(torch.cat([subset, more]))
    return subset


def inclusion_lengths(sizes: Tensor, m: int) -> tuple[Tensor, int]:
    """Finds integers ℓ_i ≤ step with Σ ℓ_i = m·step: π_i = ℓ_i / step, free of rounding.

    They are proportional to the sizes, which must be positive, save for the clients whose π_i
    would exceed 1. Only the sizes are rounded, to 2⁻⁵³ of their sum (a little coarser if m > 512).

    Args:
        sizes: (n,) positive.
        m: How many clients are chosen, at most n.

    Returns:
        The lengths, (n,) int64, and the step.
    """
    resolution = min(2**53, 2**62 // max(1, m))  # m * step has to fit into an int64
    certain = torch.zeros(len(sizes), dtype=torch.bool)
    while True:
        left, others = m - int(certain.sum()), sizes[~certain]
        units = (others / others.sum() * resolution).round().clamp(min=1).long()
        step = max(1, int(units.sum()))
        too_large = left * units >= step  # the others' share only grows once these are set apart
        if not too_large.any():
            lengths = torch.full((len(sizes),), step)
            return lengths.masked_scatter(~certain, left * units), step
        certain = certain.masked_scatter(~certain, too_large)


def systematic(lengths: Tensor, step: int, start: int, m: int) -> Tensor:
    """Lays the lengths end to end and takes those on which start, start + step, ... fall.

    None is longer than a step, so none is taken twice; over start uniform in 0 ... step - 1, each
    is taken with probability length / step (Madow 1949).

    Args:
        lengths: (n,) int64, none longer than the step, in all m steps.
        step: From one point to the next.
        start: The first point, in 0 ... step - 1.
        m: How many points there are.

    Returns:
        (m,) int64, the places of the lengths taken, ascending.
    """
    return torch.searchsorted(lengths.cumsum(0), start + step * torch.arange(m), right=True)


def check_cohorts(
    clients_per_round: int, num_clients: int, objective: Weights, dropout: Probability
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
    _check_size(clients_per_round, num_clients)
    silent = probabilities("dropout", dropout, num_clients) == 1
    if objective is None:
        return
    p = per_client("objective", objective, num_clients)
    if not (p >= 0).all() or p.sum().isinf() or not p.any():
        raise ValueError(f"objective must be finite, not negative and not all zero, got {p}.")
    if bool((silent & (p > 0)).any()):
        raise ValueError(
            "A client that counts in the objective must be heard at times, or no weights can make "
            "the result unbiased: make its dropout less than 1, or its weight zero."
        )


class DrawnSampler(Protocol):
    """What `drawn_cohort` needs to know of a sampler."""

    @property
    def num_clients(self) -> int:
        """N."""

    @property
    def seed(self) -> int:
        """The run's seed."""

    @property
    def objective(self) -> Sequence[float] | Tensor | None:
        """(N,) p_i; None for equal ones."""

    @property
    def dropout(self) -> Probability:
        """The probability that a selected client does not answer."""


def drawn_cohort(
    sampler: DrawnSampler, round: int, clients: Tensor, pool: Tensor, pi: float
) -> Cohort:
    """The cohort of clients that were all drawn with the same probability.

    Args:
        sampler: Who drew them.
        round: The round, from 0.
        clients: (M,) int64, those drawn, ascending.
        pool: (n,) int64, among whom.
        pi: π, with which each of the pool is drawn.

    Returns:
        The cohort; without an objective those who answer count the same, with one p_i / π_i with
        π_i the probability of being drawn and answering.
    """
    answers = _answers(sampler.seed, round, clients, sampler.dropout)
    if sampler.objective is None:
        return Cohort(clients, answers)
    N = sampler.num_clients
    p = per_client("objective", sampler.objective, N).expand(N)
    heard = pi * (1 - probabilities("dropout", sampler.dropout, N).expand(N)[clients])
    return Cohort(clients, answers, weights=p[clients] / p[pool].sum() / heard)


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
        raise ValueError(
            f"{type(availability).__name__}.online returned {online.dtype} of shape "
            f"{tuple(online.shape)}. Return one bool per client, here ({num_clients},)."
        )
    return online.nonzero().squeeze(1)


def _answers(seed: int, round: int, clients: Tensor, dropout: Probability) -> Tensor:  # (M,) bool
    """Each client has its own draw, so it drops out or not whoever else was selected."""
    p = torch.as_tensor(dropout, dtype=torch.float64)
    if not p.any():
        return torch.ones(len(clients), dtype=torch.bool)
    u = torch.empty(len(clients), dtype=torch.float64)
    for cell, client in zip(u, clients.tolist(), strict=True):
        cell.uniform_(generator=stream(seed, "dropout", round, client))
    return u >= (p[clients] if p.ndim else p)


def _check_size(clients_per_round: int, num_clients: int) -> None:
    if clients_per_round > num_clients:
        raise ValueError(
            f"Cannot choose {clients_per_round} of {num_clients} clients without replacement. "
            f"Set clients_per_round between 1 and {num_clients}."
        )
