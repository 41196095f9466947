"""FedAdagrad, FedAdam and FedYogi (Reddi et al., ICLR 2021, Algorithm 2).

Their x is our w, their v is called u here, and their Δ_t is −delta: what FedAvg would add to the
model. u begins at zero, as in Flower, where the paper has at least τ²; τ keeps the step from
dividing by zero all the same.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedvarp.server.optimizers import ServerOptimizer
from fedvarp.settings.bounds import Momentum, Positive
from fedvarp.settings.checked import checked


class AdaptiveOptimizer(ServerOptimizer):
    """m, and the step w ← w − η m / (√u + τ), which the three share; u is each one's own.

    A step moves each number of the model by about η, whatever the size of the updates, down to
    those of size τ. So η is no factor of a mean of models, and 1 is far too much: see the defaults.

    Attributes:
        name: What settings call it.
        lr: η.
        beta1: β1, in [0, 1), how long m remembers.
        tau: τ, above zero; numbers that move by less than it are not magnified further.
    """

    name: ClassVar[str]

    lr: float
    beta1: float
    tau: float

    _m: Tensor | None = None
    _u: Tensor | None = None
    _steps = 0

    def step(self, w: Tensor, v: Tensor, scale: float) -> None:
        """w ← w − η m / (√u + τ), with means m and u of delta = scale · v and its square."""
        if self._m is None or self._u is None:
            self._m, self._u = torch.zeros_like(w), torch.zeros_like(w)
        self._steps += 1
        delta = v.mul_(scale)  # w − the mean of the clients' models, if v is theirs
        self._m.mul_(self.beta1).add_(delta * (1 - self.beta1))  # m ← β1 m + (1 − β1) delta
        self._add_square(self._u, delta.square())
        ratio = self._m / self._u.sqrt().add_(self.tau)
        w.sub_(ratio.mul_(self._rate(self._steps)))

    @abstractmethod
    def _add_square(self, u: Tensor, square: Tensor) -> None:
        """Takes delta² into u, in place; `square` may be overwritten."""

    def _rate(self, step: int) -> float:
        return self.lr

    def state_dict(self) -> Mapping[str, Tensor]:
        """m, u and the number of steps, once there was one."""
        if self._m is None or self._u is None:
            return {}
        return {"m": self._m, "u": self._u, "steps": torch.tensor(self._steps)}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes them back."""
        self._m, self._u = tensors.get("m"), tensors.get("u")
        self._steps = int(tensors.get("steps", 0))

    def describe(self) -> Mapping[str, object]:
        """Name and settings."""
        settings = {n: value for n, value in vars(self).items() if not n.startswith("_")}
        return {"optimizer": self.name, **{f"server_{n}": v for n, v in settings.items()}}


@checked
@dataclass(eq=False, repr=False)
class ServerAdam(AdaptiveOptimizer):
    """FedAdam: u is a running mean of delta².

    Attributes:
        lr: η; 0.01 is what Reddi et al. found best most often (Flower's default is 0.1).
        beta2: β2, in [0, 1), how long u remembers.
        bias_correction: Whether η is multiplied by √(1 − β2ˢ) / (1 − β1ˢ) with s one more than the
            number of steps, as Flower does; the paper does not.

    Raises:
        ValueError: One of them is out of range.
    """

    name = "adam"

    lr: Positive = 0.01
    beta1: Momentum = 0.9
    beta2: Momentum = 0.99
    tau: Positive = 1e-3
    bias_correction: bool = True

    def _add_square(self, u: Tensor, square: Tensor) -> None:
        u.mul_(self.beta2).add_(square.mul_(1 - self.beta2))  # u ← β2 u + (1 − β2) delta²

    def _rate(self, step: int) -> float:
        if not self.bias_correction:
            return self.lr
        s = step + 1
        correction: float = (1 - self.beta2**s) ** 0.5 / (1 - self.beta1**s)
        return self.lr * correction


@checked
@dataclass(eq=False, repr=False)
class ServerYogi(AdaptiveOptimizer):
    """FedYogi: u moves toward delta² by a step of its size, so that it falls slower than Adam's.

    Attributes:
        lr: η; 0.01 is what Reddi et al. found best most often, and Flower's default.
        beta2: β2, in [0, 1), how slowly u changes.

    Raises:
        ValueError: One of them is out of range.
    """

    name = "yogi"

    lr: Positive = 0.01
    beta1: Momentum = 0.9
    beta2: Momentum = 0.99
    tau: Positive = 1e-3

    def _add_square(self, u: Tensor, square: Tensor) -> None:
        sign = (u - square).sign_()
        # u ← u − (1 − β2) delta² sign(u − delta²)
        u.sub_(square.mul_(1 - self.beta2).mul_(sign))


@checked
@dataclass(eq=False, repr=False)
class ServerAdagrad(AdaptiveOptimizer):
    """FedAdagrad: u is the sum of delta² over all rounds, so that steps become shorter.

    Attributes:
        lr: η; 0.1 is the median of what Reddi et al. found best, and Flower's default.
        beta1: 0, as in Flower: m remembers nothing.

    Raises:
        ValueError: One of them is out of range.
    """

    name = "adagrad"

    lr: Positive = 0.1
    tau: Positive = 1e-3
    beta1: Momentum = 0.0

    def _add_square(self, u: Tensor, square: Tensor) -> None:
        u.add_(square)  # u ← u + delta²
