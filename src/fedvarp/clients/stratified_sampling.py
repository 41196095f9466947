"""Cohorts that take from each cluster its share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import SkipValidation
from torch import Tensor

from fedvarp.clients.availability import Availability, Probability, check_round
from fedvarp.clients.cohorts import (
    Cohort,
    Weights,
    check_cohorts,
    drawn_cohort,
    online_clients,
    shares,
)
from fedvarp.clients.draws import systematic_sample
from fedvarp.randomness import stream
from fedvarp.settings.bounds import Count, Seed
from fedvarp.settings.checked import checked
from fedvarp.tables import tensors


@checked
@dataclass(frozen=True, eq=False)
class StratifiedSampler:
    """M of N clients, from each cluster of n clients ⌊M n / N⌋ or one more.

    Clusters are laid end to end, in random order and each in random order within, and every N/M-th
    client is taken from a random start (systematic sampling). So π_i = M/N exactly for every
    client, whatever the sizes of the clusters are, and the mean of the updates is unbiased, as it
    is with `UniformSampler`. Its error is smaller by what sets clusters apart. With an availability
    all this holds for those online, and equal dropouts leave it unbiased. Cost: O(N).

    >>> sampler = StratifiedSampler(clusters=[0, 0, 0, 1, 1, 1], clients_per_round=2, seed=0)
    >>> [sampler.cohort(t).clients.tolist() for t in range(4)]
    [[0, 5], [0, 5], [1, 3], [1, 5]]

    Attributes:
        clusters: (N,) whole numbers, the cluster of each client.
        clients_per_round: M.
        seed: The run's seed.
        objective: (N,) p_i up to a common factor; None: all equal, the paper's objective.
        availability: Who is online; None: everybody, always.
        dropout: The probability that a selected client does not answer, for all or for each.

    Raises:
        ValueError: There are fewer than M clients, or a number is out of bounds.
    """

    clusters: Annotated[Sequence[int] | Tensor, SkipValidation]
    clients_per_round: Count
    seed: Seed
    objective: Weights = None
    availability: Availability | None = None
    dropout: Annotated[Probability, SkipValidation] = 0.0

    @property
    def num_clients(self) -> int:
        """N."""
        return len(self.clusters)

    def __post_init__(self) -> None:
        clusters = tensors.whole_numbers("clusters", self.clusters)
        check_cohorts(self.clients_per_round, len(clusters), self.objective, self.dropout)

    def cohort(self, round: int) -> Cohort:
        """See `ClientSampler.cohort`."""
        check_round(round)
        pool = online_clients(self.availability, self.seed, round, self.num_clients)
        n, m = len(pool), min(self.clients_per_round, len(pool))
        generator = stream(self.seed, "cohort", round)
        order = torch.randperm(n, generator=generator)
        clusters = tensors.whole_numbers("clusters", self.clusters)
        order = order[_together(clusters[pool[order]])]
        # Each client has length m on a line of n steps of length n: π_i = m / n, free of rounding.
        clients = pool[systematic_sample(torch.full((n,), m), n, m, order, generator)]
        p = shares(self.objective, clients, pool, self.num_clients)
        return drawn_cohort(self.seed, round, clients, self.dropout, p, m / max(1, n))


def _together(labels: Tensor) -> Tensor:
    """The places of labels so that equal ones stand together, by where each is met first.

    What the labels are called does not matter, and those that come first come in random order.
    """
    _, group = torch.unique(labels, return_inverse=True)
    places = torch.arange(len(labels))
    first = places.new_full((len(labels),), len(labels)).scatter_reduce(0, group, places, "amin")
    return torch.argsort(first[group], stable=True)
