"""How often the 95 % interval of σ_g² holds the truth, for clients of equal and unequal lengths.

`python -m benchmarks.theorems.coverage` prints the table: coverage by the jackknife alone, and with
what no sample has seen (`fedvarp.theory.intervals.unseen_error`), and both intervals.
"""

from __future__ import annotations

import math
import statistics

import torch
from torch import Tensor

from benchmarks.timing import show, table
from fedvarp import stream
from fedvarp.theory.estimators import error_of_heterogeneity, heterogeneity_of
from fedvarp.theory.intervals import VARIATION, Estimate, effective_draws, unseen_error

SAMPLES = ((12, 40), (5, 60), (20, 100))
KINDS = ("equal", "few large", "squares", "log-normal 0.5", "log-normal 1", "Zipf", "two are half")
DIM, DRAWS = 20, 1000


def lengths(kind: str, N: int, draw: torch.Generator) -> Tensor:
    """Draws how far out clients lie.

    Args:
        kind: One of KINDS.
        N: How many.
        draw: The source of chance.

    Returns:
        (N, 1) float64.
    """
    if kind == "squares":
        return 3 * torch.rand(N, 1, generator=draw, dtype=torch.float64).square()
    if kind.startswith("log-normal"):
        sigma = float(kind.split()[1])
        return (sigma * torch.randn(N, 1, generator=draw, dtype=torch.float64)).exp()
    if kind == "Zipf":  # updates as long as numbers of steps that go like 1, 1/2, 1/3, …
        return 1 / torch.arange(1.0, N + 1, dtype=torch.float64)[:, None]
    found = torch.ones(N, 1, dtype=torch.float64)
    if kind == "two are half":
        found[:2] = math.sqrt((N - 2) / 2)
    if kind == "few large":  # one in twenty, which together make up a third of all squares
        found[: N // 20] = math.sqrt((N - N // 20) / (2 * (N // 20)))
    return found


def variation_known(kind: str, N: int) -> float:
    """Says what a diagnosis takes the squares of clients to vary by: numbers of steps it knows.

    Args:
        kind: One of KINDS.
        N: How many clients.

    Returns:
        The standard deviation of the squares over their mean.
    """
    if kind != "Zipf":
        return VARIATION
    squares = lengths(kind, N, stream(0, "unused")).square()
    return float(squares.std(correction=0) / squares.mean())


def clients(kind: str, N: int, seed: int) -> Tensor:
    """Draws the gradients of a federation.

    Args:
        kind: One of KINDS.
        N: How many clients.
        seed: Keys the draws.

    Returns:
        (N, DIM) float64.
    """
    draw = stream(seed, "clients", N)
    scale = lengths(kind, N, draw) / math.sqrt(DIM)
    return 0.3 + scale * torch.randn(N, DIM, generator=draw, dtype=torch.float64)


def drawn(n: int, N: int, seed: int) -> Tensor:
    """Draws n of N clients.

    Args:
        n: How many.
        N: Of how many.
        seed: Keys the draw.

    Returns:
        (n,) int64, ascending.
    """
    return torch.randperm(N, generator=stream(seed, "drawn"))[:n].sort().values


def spread_between(
    x: Tensor, chosen: Tensor, clusters: Tensor | None = None, *, variation: float = VARIATION
) -> Estimate:
    """Estimates σ_g², or σ_K², as `measure` does.

    Args:
        x: (N, d) float64, the gradients of all.
        chosen: (n,) int64, those drawn.
        clusters: (N,) int64; None: one cluster.
        variation: What squares are taken to vary by beyond the sample; 0: not at all.

    Returns:
        The estimate.
    """
    clusters = torch.zeros(len(x), dtype=torch.int64) if clusters is None else clusters
    seen, own, sizes = x[chosen], clusters[chosen], torch.bincount(clusters)
    value = heterogeneity_of(seen, own, sizes)
    error = error_of_heterogeneity(seen, own, sizes)
    draws = effective_draws((seen - seen.mean(0)).square().sum(1))
    above = unseen_error(value, len(chosen), len(x), variation)
    return Estimate.of_squares(value, error, draws, (0.0, above))


def main() -> None:
    """Prints the table."""
    rows = []
    for n, N in SAMPLES:
        for kind in KINDS:
            hits, ends, known = [0, 0], [], variation_known(kind, N)
            for seed in range(DRAWS):
                x, chosen = clients(kind, N, seed), drawn(n, N, seed)
                truth = spread_between(x, torch.arange(N)).value
                both = [spread_between(x, chosen, variation=one) for one in (0.0, known)]
                for which, one in enumerate(both):
                    hits[which] += one.low <= truth <= one.high
                value = both[0].value
                ends.append((both[0].low / value, both[0].high / value, both[1].high / value))
            low, high, higher = (statistics.median(end) for end in zip(*ends, strict=True))
            rows.append(
                [
                    f"{n} of {N}",
                    kind,
                    *(f"{hit / DRAWS:.2f}" for hit in hits),
                    f"{low:.2f} to {high:.2f}",
                    f"{low:.2f} to {higher:.2f}",
                ]
            )
    columns = ["drawn", "lengths", "jackknife", "with unseen", "interval", "with unseen"]
    show(table("Coverage of σ_g² and its median interval over the estimate", columns, rows))


if __name__ == "__main__":
    main()
