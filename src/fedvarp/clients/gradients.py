"""The gradient of one client at w, its loss, and the noise of its mini-batches: one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from fedvarp.clients.local_sgd import LocalSGD
from fedvarp.clients.local_training import Loss, layers_draw_from
from fedvarp.clients.memory_layout import laid_out
from fedvarp.clients.running_spread import RunningSpread
from fedvarp.data.federated_dataset import Examples, FederatedDataset
from fedvarp.randomness import stream
from fedvarp.server.flat_model import FlatModel

CHUNK: Final = 512
"""Examples at a time where batches do not matter."""

Track = Callable[[Sequence[int], str], Iterable[int]]
"""(items, title) → the same items, one by one, perhaps with a progress bar.

Passes over clients take such a function; `rich.progress.track` is one.
"""


def untracked(items: Sequence[int], title: str) -> Iterable[int]:
    """Goes through items without showing progress, as passes over clients do unless told how.

    Args:
        items: What is worked through: clients, as a rule.
        title: What is done with them; not shown.

    Returns:
        The items as they are.
    """
    return items


@dataclass(frozen=True, eq=False)
class ClientGradient:
    """What one pass over a client's data shows.

    Attributes:
        gradient: (d,) float64, ∇f_i(w).
        loss: f_i(w).
        noise: Estimate of E‖∇f_i(w; batch) − ∇f_i(w)‖², averaged over the steps of a round.
        num_steps: τ_i.
    """

    gradient: Tensor
    loss: float
    noise: float
    num_steps: int


@dataclass(frozen=True, eq=False)
class ClientGradients:
    """Computes the gradients of single clients at one w.

    They are gradients of what LocalSGD descends: weight decay λ adds ½ λ ‖w‖² to every f_i. Layers
    that draw random numbers (dropout) do so as in training, from a keyed stream; random changes to
    the inputs (`augment`) are left out.

    Attributes:
        dataset: The clients' examples.
        model: Computes the output; its parameters end up bound to another vector.
        loss: (output, targets) → mean loss of a batch.
        local_sgd: What a client does: batch size, steps and weight decay.
        w: (d,) float32, where to measure.
        buffers: The model's buffers at w; empty: its own.
        seed: Keys the shuffles and the draws of layers.
    """

    dataset: FederatedDataset
    model: FlatModel
    loss: Loss
    local_sgd: LocalSGD
    w: Tensor  # (d,) float32
    buffers: Mapping[str, Tensor] = field(default_factory=dict)
    seed: int = 0

    def of(self, client: int) -> ClientGradient:
        """Makes one pass over a client's batches, drawn as LocalSGD draws them: a shuffle, cut up.

        With S² the variance of single examples, a batch of b out of n has the noise
        S² (1/b − 1/n). So Σ b ‖∇f_i(w; batch) − ∇f_i(w)‖² over the m batches of a pass is
        (m − 1) S² on average.

        Args:
            client: Its number.

        Returns:
            Gradient, loss, noise and number of steps.
        """
        x, y = self.examples(client)
        n, size = len(x), self.local_sgd.batch_size
        shuffled = torch.randperm(n, generator=stream(self.seed, "measured batches", client))
        batches = torch.split(shuffled.to(x.device), size)
        spread = RunningSpread(self.model.dim, self.w.device)
        gradient = torch.empty_like(self.w)
        total_loss = 0.0
        self.bind(self.w, gradient)
        with layers_draw_from(stream(self.seed, "measured layers", client), self.w.device):
            for batch in batches:
                batch_loss = self.loss(self.model.module(x[batch]), y[batch])
                self.model.backward(batch_loss)
                total_loss += float(batch_loss.detach()) * len(batch) / n
                spread.add(gradient, weight=len(batch))
        decay = self.local_sgd.weight_decay
        w = self.w.double()
        variance = spread.sum_of_squares / (len(batches) - 1) if len(batches) > 1 else 0.0
        return ClientGradient(
            gradient=spread.mean + decay * w,
            loss=total_loss + 0.5 * decay * float(w @ w),
            noise=variance * noise_factor(n, self.local_sgd),
            num_steps=steps_of(n, self.local_sgd),
        )

    def gradient(self, client: int, w: Tensor) -> Tensor:
        """Computes ∇f_i at any w, without its noise.

        Args:
            client: Its number.
            w: (d,) where.

        Returns:
            (d,) float64.
        """
        x, y = self.examples(client)
        gradient = torch.empty_like(w)
        mean = torch.zeros_like(w, dtype=torch.float64)
        self.bind(w, gradient)
        with layers_draw_from(stream(self.seed, "measured layers", client), w.device):
            for part in torch.split(torch.arange(len(x), device=x.device), CHUNK):
                batch_loss = self.loss(self.model.module(x[part]), y[part])
                self.model.backward(batch_loss)
                mean.add_(gradient, alpha=len(part) / len(x))
        return mean.add_(w.double(), alpha=self.local_sgd.weight_decay)

    def examples(self, client: int) -> Examples:
        """Loads the examples of a client onto the device of w.

        Args:
            client: Its number.

        Returns:
            (x, y), x in the memory layout that the model computes with.
        """
        x, y = self.dataset.client(client)
        return laid_out(x.to(self.w.device), self.model), y.to(self.w.device)

    def bind(self, w: Tensor, gradient: Tensor | None) -> None:
        """Makes the model compute at w, in training mode.

        Args:
            w: (d,), copied.
            gradient: (d,), where `FlatModel.backward` writes; None: nowhere.
        """
        self.model.bind(w.clone(), gradient)
        if self.buffers:
            self.model.load_buffers(self.buffers)
        self.model.module.train()


def steps_of(num_examples: int, local_sgd: LocalSGD) -> int:
    """Counts the local steps τ_i of a client.

    Args:
        num_examples: n of the client.
        local_sgd: Batch size, and epochs or steps.

    Returns:
        τ_i.
    """
    per_epoch = -(-num_examples // local_sgd.batch_size)
    return local_sgd.steps or per_epoch * (local_sgd.epochs or 0)


def noise_factor(num_examples: int, local_sgd: LocalSGD) -> float:
    """Averages 1/b − 1/n over the steps of a round: the last batch of a pass may be small.

    >>> round(noise_factor(200, LocalSGD(lr=0.1, batch_size=64, epochs=5)), 6)  # 64, 64, 64, 8
    0.037969

    Args:
        num_examples: n of the client.
        local_sgd: Batch size, and epochs or steps.

    Returns:
        What the variance of single examples is multiplied by to give that of a batch.
    """
    n, size = num_examples, local_sgd.batch_size
    sizes = [min(size, n - start) for start in range(0, n, size)]
    factors = [1 / b - 1 / n for b in sizes]
    passes, rest = divmod(steps_of(n, local_sgd), len(sizes))
    total = passes * sum(factors) + sum(factors[:rest])
    return total / steps_of(n, local_sgd)
