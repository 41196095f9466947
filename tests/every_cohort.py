"""All cohorts that a sampler may draw in a round, with their exact probabilities."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from fedvarp.clients import draws, round_robin
from fedvarp.clients.cohorts import ClientSampler, Cohort
from fedvarp.clients.draws import systematic


def every_cohort(sampler: ClientSampler, round: int = 0) -> list[tuple[Fraction, Cohort]]:
    """Over every start, which is uniform; the order is the round's, and what holds for it holds.

    A systematic sample changes only where a start meets the end of a length, modulo the step.
    """
    steps: list[int] = []
    ends: list[int] = []

    def at(start: int) -> Cohort:
        def uniform_integers(n: int, count: int, generator: torch.Generator) -> Tensor:
            steps.append(n)
            return torch.tensor([start])

        def noted(lengths: Tensor, step: int, start: int, m: int) -> Tensor:
            ends.extend(lengths.cumsum(0).tolist())
            return systematic(lengths, step, start, m)

        with pytest.MonkeyPatch.context() as patch:
            for module in (round_robin, draws):
                patch.setattr(module, "uniform_integers", uniform_integers)
            patch.setattr(draws, "systematic", noted)
            return sampler.cohort(round)

    at(0)
    step = steps[0]
    cuts = sorted({0, step, *(end % step for end in ends)}) if ends else range(step + 1)
    found = []
    for first, beyond in pairwise(cuts):
        cohort = at(first)
        assert torch.equal(cohort.clients, at(beyond - 1).clients)
        found.append((Fraction(beyond - first, step), cohort))
    return found


def inclusion(cohorts: list[tuple[Fraction, Cohort]], num_clients: int) -> list[Fraction]:
    """π_i of each client."""
    pi = [Fraction(0)] * num_clients
    for probability, cohort in cohorts:
        for client in cohort.clients.tolist():
            pi[client] += probability
    return pi
