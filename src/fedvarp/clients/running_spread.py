"""How far vectors lie from their mean, in one pass and with three vectors of memory."""

from __future__ import annotations

import torch
from torch import Tensor


class RunningSpread:
    """Mean and Σ weight · ‖x − mean‖² of the vectors seen so far (Welford's recurrence).

    The difference mean(‖x‖²) − ‖mean(x)‖² would lose its digits where the mean is long.

    >>> spread = RunningSpread(1)
    >>> for number in (1.0, 2.0, 6.0):
    ...     spread.add(torch.tensor([number]))
    >>> spread.mean.item(), round(spread.sum_of_squares, 9)
    (3.0, 14.0)

    Args:
        dim: d, the length of the vectors.
        device: Where the vectors are.

    Attributes:
        weight: Sum of the weights so far.
        mean: (d,) float64, the weighted mean.
        squares: (d,) float64, Σ weight · (x − mean)² of each coordinate.
    """

    def __init__(self, dim: int, device: torch.device | str = "cpu") -> None:
        self.weight = 0.0
        self.mean = torch.zeros(dim, dtype=torch.float64, device=device)
        self.squares = torch.zeros_like(self.mean)

    def add(self, vector: Tensor, weight: float = 1.0) -> None:
        """Takes in one more vector.

        Args:
            vector: (d,) of any floating-point type.
            weight: How much it counts, above 0.
        """
        offset = vector.detach().double() - self.mean
        before = self.weight
        self.weight += weight
        self.squares.addcmul_(offset, offset, value=weight * before / self.weight)
        self.mean.add_(offset, alpha=weight / self.weight)

    @property
    def sum_of_squares(self) -> float:
        """Σ weight · ‖x − mean‖², over all coordinates."""
        return float(self.squares.sum())
