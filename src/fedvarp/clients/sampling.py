"""Who takes part in a round: uniform and weighted cohorts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

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
from fedvarp.clients.cohorts import (
    Cohort,
    Weights,
    check_cohorts,
    drawn_cohort,
    online_clients,
)
from fedvarp.clients.draws import inclusion_lengths, random_subset, systematic_sample
from fedvarp.errors import InvalidError
from fedvarp.randomness import stream
from fedvarp.settings.bounds import Count, Seed
from fedvarp.settings.checked import checked
from fedvarp.tables import tensors


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
        return drawn_cohort(self.seed, round, clients, self.dropout)


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
                raise InvalidError(f"{name} must be finite and not negative, got {column}.")
        wrong = ((sizes > 0) != (objective > 0)) | ((sizes > 0) & (dropout == 1))
        if wrong.any():
            i = int(wrong.nonzero()[0])
            raise InvalidError(
                f"WeightedSampler received for client {i} size {sizes[i]:g}, objective weight "
                f"{objective[i]:g} and dropout {dropout[i]:g}. A client that counts in the "
                "objective must be heard at times, or no weights can make the result unbiased; one "
                "that does not count should not be asked. Make size and objective weight both "
                "positive (and dropout less than 1), or both zero."
            )
        check_cohorts(self.clients_per_round, int((sizes > 0).sum()))

    def cohort(self, round: int) -> Cohort:
        """See `ClientSampler.cohort`."""
        check_round(round)
        sizes, objective, _ = self._columns()
        pool = sizes.nonzero().squeeze(1)  # those who may be chosen
        if self.availability is not None:
            online = online_clients(self.availability, self.seed, round, len(sizes))
            pool = online[sizes[online] > 0]
        m = min(self.clients_per_round, len(pool))
        lengths, step = inclusion_lengths(sizes[pool], m)

        generator = stream(self.seed, "cohort", round)
        order = torch.randperm(len(pool), generator=generator)
        chosen = systematic_sample(lengths, step, m, order, generator)
        clients = pool[chosen]
        p, pi = objective[clients] / objective[pool].sum(), lengths[chosen].double() / step
        return drawn_cohort(self.seed, round, clients, self.dropout, p, pi)

    def _columns(self) -> tuple[Tensor, Tensor, Tensor]:
        """Sizes, objective weights and dropout probabilities, each (N,) float64."""
        N = len(sizes := tensors.as_tensor("sizes", self.sizes).double().reshape(-1))
        objective = per_client("objective", 1.0 if self.objective is None else self.objective, N)
        return sizes, objective.expand(N), probabilities("dropout", self.dropout, N).expand(N)
