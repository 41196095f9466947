"""Clients take turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import SkipValidation

from fedvarp.clients.availability import Availability, Probability, check_round
from fedvarp.clients.cohorts import (
    Cohort,
    Weights,
    check_cohorts,
    drawn_cohort,
    online_clients,
    shares,
)
from fedvarp.clients.draws import uniform_integers
from fedvarp.randomness import stream
from fedvarp.settings.bounds import Count, Seed
from fedvarp.settings.checked import checked


@checked
@dataclass(frozen=True, eq=False)
class RoundRobinSampler:
    """Every client once in ⌈N/M⌉ rounds, an epoch, in an order that is drawn anew for each epoch.

    If M does not divide N the clients of an epoch are dealt out evenly: cohorts of ⌊N/K⌋ or ⌈N/K⌉
    clients with K = ⌈N/M⌉, never more than M. No row is then older than 2K − 1 rounds.

    Over the draw of the orders each client is in a round's cohort with the same probability, so
    that the mean of its updates is unbiased. It is not so given the rounds before: who had its turn
    will not be in the epoch again, and the last cohorts of an epoch can be foretold.

    Who is offline in its turn waits for the next epoch; equal dropouts leave the mean unbiased for
    those online. Cost: O(N).

    >>> sampler = RoundRobinSampler(num_clients=5, clients_per_round=2, seed=0)
    >>> [sampler.cohort(t).clients.tolist() for t in range(6)]
    [[1], [2, 3], [0, 4], [1], [0, 4], [2, 3]]

    Attributes:
        num_clients: N.
        clients_per_round: M, the most that are asked in a round.
        seed: The run's seed.
        objective: (N,) p_i up to a common factor; None: all equal, the paper's objective.
        availability: Who is online; None: everybody, always.
        dropout: The probability that a selected client does not answer, for all or for each.

    Raises:
        ValueError: There are fewer than M clients, or a number is out of bounds.
    """

    num_clients: Count
    clients_per_round: Count
    seed: Seed
    objective: Weights = None
    availability: Availability | None = None
    dropout: Annotated[Probability, SkipValidation] = 0.0

    def __post_init__(self) -> None:
        check_cohorts(self.clients_per_round, self.num_clients, self.objective, self.dropout)

    def cohort(self, round: int) -> Cohort:
        """See `ClientSampler.cohort`."""
        check_round(round)
        N, K = self.num_clients, -(-self.num_clients // self.clients_per_round)
        epoch, turn = divmod(round, K)
        generator = stream(self.seed, "round robin", epoch)
        order = torch.randperm(N, generator=generator)
        # Turned by a start that is exactly uniform, so is every client's place.
        order = order.roll(int(uniform_integers(N, 1, generator)))
        asked = order[N * turn // K : N * (turn + 1) // K]
        pool = online_clients(self.availability, self.seed, round, N)
        clients = asked[torch.isin(asked, pool)].sort().values
        p = shares(self.objective, clients, pool, N)
        return drawn_cohort(self.seed, round, clients, self.dropout, p, len(asked) / N)
