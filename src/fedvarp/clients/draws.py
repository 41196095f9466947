"""Draws that are exact: free of rounding, and of torch's slight preference for small numbers."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


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
    # NumPy reads the same memory: on a handful of numbers its operations take a fifth of torch's.
    draws = torch.randint(words, (count,), generator=generator).numpy()
    while (again := draws >= words - words % n).any():
        draws[again] = torch.randint(words, (int(again.sum()),), generator=generator).numpy()
    return torch.from_numpy(draws % n)


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
    subset = np.empty(0, dtype=np.int64)
    while len(subset) < size:
        more = uniform_integers(n, size - len(subset), generator).numpy()
        subset = np.union1d(subset, more)  # ascending, each once
    return torch.from_numpy(subset)


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


def systematic_sample(
    lengths: Tensor, step: int, m: int, order: Tensor, generator: torch.Generator
) -> Tensor:
    """Draws m places, each with probability length / step, from a random start.

    Args:
        lengths: (n,) int64, none longer than the step, in all m steps.
        step: From one point to the next.
        m: How many are drawn.
        order: (n,) int64, the places in the order in which their lengths lie.
        generator: Where the start is drawn from.

    Returns:
        (m,) int64, distinct and ascending.
    """
    start = int(uniform_integers(max(1, step), 1, generator))
    return order[systematic(lengths[order], step, start, m)].sort().values
