"""Clients whose updates are far from their rows take part more often."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

import torch
from pydantic import SkipValidation
from torch import Tensor

from fedvarp.clients.availability import Availability, Probability, per_client
from fedvarp.clients.cohorts import Cohort, Weights, check_cohorts
from fedvarp.clients.sampling import WeightedSampler
from fedvarp.settings.bounds import Count, Decay, Seed
from fedvarp.settings.checked import checked

UNIFORM_SHARE: Final = 0.2


@checked
@dataclass(eq=False)
class ImportanceSampler:
    """M clients without replacement, π_i in proportion to p_i ‖Δ_i − y_i‖ as it was seen last.

    Of v = β·ȳ + Σ a_i (Δ_i − β·y_i) only the sum depends on who is drawn, and its variance is least
    if clients are drawn in proportion to the lengths of its terms. These are known of the rounds
    before; a client not heard of yet counts as much as the largest. So the probabilities are fixed
    before a cohort is drawn, and weights p_i / π_i keep E[v] exact, as in `WeightedSampler`, which
    draws it; what was seen may well be out of date. A part of each π_i is what it would be if all
    were drawn alike, so that no weight exceeds 1/(uniform_share · M). Cost: O(N).

    Unlike those of other samplers, cohorts depend on what came back, hence on the algorithm. A run
    works with a copy of its own, which checkpoints save.

    Attributes:
        num_clients: N.
        clients_per_round: M.
        seed: The run's seed.
        uniform_share: That part, in (0, 1]; with 1 clients are drawn in proportion to p_i alone.
        objective: (N,) p_i up to a common factor; None: all equal, the paper's objective.
        availability: Who is online; None: everybody, always.
        dropout: The probability that a selected client does not answer, for all or for each.

    Raises:
        ValueError: Fewer than M clients count in the objective, or a number is out of bounds.
    """

    num_clients: Count
    clients_per_round: Count
    seed: Seed
    uniform_share: Decay = UNIFORM_SHARE
    objective: Weights = None
    availability: Availability | None = None
    dropout: Annotated[Probability, SkipValidation] = 0.0

    def __post_init__(self) -> None:
        check_cohorts(self.clients_per_round, self.num_clients, self.objective, self.dropout)
        self.load_state_dict({})
        self._by_size()  # which refuses what cannot be

    @property
    def sizes(self) -> Tensor:
        """(N,) float64, what the π_i of the next cohort are in proportion to; their sum is 1."""
        N = self.num_clients
        p = per_client("objective", 1.0 if self.objective is None else self.objective, N).expand(N)
        p = p / p.sum()
        unseen = self._residuals.isnan()
        largest = 1.0 if bool(unseen.all()) else float(self._residuals[~unseen].max())
        lengths = p * self._residuals.masked_fill(unseen, largest)
        by_length = lengths / lengths.sum() if float(lengths.sum()) > 0 else p
        return self.uniform_share * p + (1 - self.uniform_share) * by_length

    def cohort(self, round: int) -> Cohort:
        """See `ClientSampler.cohort`; the same until something new is observed."""
        return self._by_size().cohort(round)

    def observe(self, clients: Tensor, residuals: Tensor) -> None:
        """See `LearningSampler.observe`."""
        self._residuals[clients] = residuals.to(self._residuals)

    def state_dict(self) -> Mapping[str, Tensor]:
        """‖Δ_i − y_i‖ of each client as it was seen last, NaN for those not seen."""
        return {"residuals": self._residuals}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes them back; with none, nobody has been seen."""
        unseen = torch.full((self.num_clients,), torch.nan, dtype=torch.float64)
        self._residuals = tensors.get("residuals", unseen).clone()

    def _by_size(self) -> WeightedSampler:
        rest = (self.objective, self.availability, self.dropout)
        return WeightedSampler(self.sizes, self.clients_per_round, self.seed, *rest)
