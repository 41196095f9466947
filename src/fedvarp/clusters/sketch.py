"""A vector of d numbers as a few hundred, with squared distances kept on average.

>>> sketch = Sketch(dim=100_000, size=1024, seed=0)
>>> x = torch.randn(100_000, generator=stream(0, "example"))
>>> 0.8 < float(sketch(x).square().sum() / x.square().sum()) < 1.2
True
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from fedvarp.errors import InvalidError
from fedvarp.randomness import stream

DEFAULT_SIZE: Final = 1024
"""Numbers in a sketch: squared distances are then right to about 4 % (√(2 / size))."""


class Sketch:
    """A linear map that adds every entry, with a random sign, to one of `size` sums.

    For every x the mean of ‖sketch(x)‖² over seeds is ‖x‖², with a variance of at most
    2 ‖x‖⁴ / size. It takes O(d) time and memory; a matrix of Gaussians would take O(size · d).
    Vectors no longer than `size` are left as they are: their distances are exact.

    Args:
        dim: d.
        size: Numbers in a sketch.
        seed: Sketches of another seed are independent.
        device: Where the vectors are.

    Attributes:
        size: Numbers in a sketch, at most d.
        is_exact: Whether sketches are the vectors themselves.

    Raises:
        ValueError: If `size` is below 1.
    """

    def __init__(self, dim: int, size: int, seed: int, device: torch.device | str = "cpu") -> None:
        if size < 1:
            raise InvalidError(f"A sketch needs at least one number, not {size}.")
        self.size = min(dim, size)
        self.is_exact = dim <= size
        self._place = self._sign = torch.empty(0)
        if not self.is_exact:
            draw = stream(seed, "sketch", dim, size)
            self._place = torch.randint(size, (dim,), generator=draw).to(device)
            self._sign = torch.randint(2, (dim,), generator=draw, dtype=torch.int8).to(device)
            self._sign = 2 * self._sign - 1

    def __call__(self, vector: Tensor) -> Tensor:
        """Sketches one vector.

        Args:
            vector: (d,).

        Returns:
            (size,) float64, on the CPU.
        """
        if self.is_exact:
            return vector.detach().double().cpu().clone()
        sums = torch.zeros(self.size, dtype=torch.float64, device=vector.device)
        return sums.index_add_(0, self._place, vector.detach().double() * self._sign).cpu()
