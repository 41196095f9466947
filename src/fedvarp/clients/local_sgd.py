"""LocalSGD: what a client does with the model it is sent (Algorithm 1)."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedvarp.clients.compiled_gradient import CompiledGradient
from fedvarp.clients.memory_layout import gathered, laid_out
from fedvarp.clients.schedules import Constant, Schedule
from fedvarp.data import Examples
from fedvarp.data.federated_dataset import Augmentation
from fedvarp.randomness import stream
from fedvarp.server.flat_model import FlatModel
from fedvarp.tables.largest_entries import LargestEntries

Loss = Callable[[Tensor, Tensor], Tensor]
"""(model output, targets) → the mean loss of the batch, such as torch's `cross_entropy`."""


@dataclass(frozen=True, eq=False)
class LocalResult:
    """What local training leaves behind."""

    delta: Tensor  # (d,), (w - w_i) / walk
    num_steps: int  # tau_i, counted
    walk: float  # how far it went per unit of gradient: eta_c * tau_i at a constant rate
    mean_loss: float  # over the steps, each batch before its step
    num_examples: int
    magnitude: float  # the largest absolute value in delta, NaN if it holds one

    @property
    def diverged(self) -> bool:
        """Whether the loss or the weights are no longer finite."""
        return not (math.isfinite(self.mean_loss) and math.isfinite(self.magnitude))


@dataclass(frozen=True)
class LocalSGD:
    """Algorithm 1 and its settings; all but the first three are off in the paper.

    Exactly one of `epochs` and `steps` is given. The last, smaller batch of an epoch is kept.

    Attributes:
        lr: η_c.
        batch_size: Examples in a batch.
        epochs: Passes over the client's data; τ_i then follows from its size.
        steps: τ, the same for all clients; small ones go through their data several times.
        weight_decay: λ: adds λ w to each gradient.
        momentum: Heavy-ball momentum, from zero in each round. The walk then counts each gradient
            as often as momentum repeats it, so that Δ_i stays an average of gradients: clients with
            unequal τ_i keep the objective uniform, and SCAFFOLD's corrections keep their size.
        clip_norm: Longest gradient of a batch; longer ones are shortened to it.
        schedule: Changes the rate from round to round.
        step_decay: Multiplies the rate after each step within a round.
    """

    lr: float
    batch_size: int
    epochs: int | None = None
    steps: int | None = None
    weight_decay: float = 0.0
    momentum: float = 0.0
    clip_norm: float | None = None
    schedule: Schedule = field(default_factory=Constant)
    step_decay: float = 1.0

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError(
                f"LocalSGD(epochs={self.epochs}, steps={self.steps}): give one of the two, epochs "
                f"over each client's data or a fixed number of steps."
            )
        for name, allowed, right in (
            ("lr", self.lr > 0, "above 0"),
            ("batch_size", self.batch_size >= 1, "at least 1"),
            ("epochs", self.epochs is None or self.epochs >= 1, "at least 1"),
            ("steps", self.steps is None or self.steps >= 1, "at least 1"),
            ("weight_decay", self.weight_decay >= 0, "0 or more"),
            ("momentum", 0 <= self.momentum < 1, "in [0, 1)"),
            ("clip_norm", self.clip_norm is None or self.clip_norm > 0, "above 0"),
            ("step_decay", 0 < self.step_decay <= 1, "above 0 and at most 1"),
        ):
            if not allowed:
                raise ValueError(f"LocalSGD: {name}={getattr(self, name)} must be {right}.")

    def train(
        self,
        model: FlatModel,
        loss: Loss,
        w: Tensor,
        examples: Examples,
        *,
        seed: int,
        round: int,
        client: int,
        correction: Tensor | None = None,
        augment: Augmentation | None = None,
        compiled: CompiledGradient | None = None,
    ) -> LocalResult:
        """LocalSGD(i, w, τ, η_c). Every draw is keyed by (seed, round, client).

        Args:
            model: Computes the loss; its parameters are bound to the client's own vector.
            loss: (output, targets) → mean loss of the batch.
            w: (d,), the server's model; not changed.
            examples: (x, y) of the client, on w's device.
            seed: The run's seed.
            round: t.
            client: i.
            correction: (d,), added to every gradient (SCAFFOLD).
            augment: Random changes to a training batch.
            compiled: Takes the gradient of full batches in place of `model` and `loss`.
        """
        local = w.clone()  # line 1
        gradient = torch.empty_like(w)
        velocity = torch.zeros_like(w) if self.momentum else None
        total_loss = torch.zeros((), dtype=torch.float64, device=w.device)
        rate, walk, num_steps = self.lr * self.schedule(round), 0.0, 0
        momentum_so_far = 0.0  # what a constant gradient of 1 would have made the velocity
        augmenting = None if augment is None else stream(seed, "augment", round, client)
        model.bind(local, gradient)
        x, y = laid_out(examples[0], model), examples[1]
        model.module.train()
        with layers_draw_from(stream(seed, "layers", round, client), w.device):
            for chosen in self.batches(len(x), seed, round, client, x.device):  # line 2
                inputs, targets = gathered(x, chosen, model), y.index_select(0, chosen)
                if augment is not None and augmenting is not None:
                    inputs = augment(inputs, augmenting)
                if compiled is not None and len(inputs) == self.batch_size:  # line 3
                    total_loss += compiled(local, inputs, targets, out=gradient)
                else:
                    batch_loss = loss(model.module(inputs), targets)
                    model.backward(batch_loss)
                    total_loss += batch_loss.detach()
                direction = self.direction(gradient, local, velocity, correction)
                local.add_(direction, alpha=-rate)  # line 4
                momentum_so_far = self.momentum * momentum_so_far + 1
                walk += rate * momentum_so_far
                num_steps += 1
                rate *= self.step_decay
        delta = (w - local).div_(walk)  # line 6
        return LocalResult(
            delta=delta,
            num_steps=num_steps,
            walk=walk,
            mean_loss=float(total_loss) / num_steps,
            num_examples=len(x),
            magnitude=LargestEntries.of(delta.unsqueeze(0)).values[0],
        )

    def batches(
        self,
        num_examples: int,
        seed: int,
        round: int,
        client: int,
        device: torch.device | str = "cpu",
    ) -> tuple[Tensor, ...]:
        """The indices of each batch: a new shuffle for every pass over the data."""
        order = self.order(num_examples, seed, round, client).to(device)
        return torch.split(order, self.batch_sizes(num_examples))

    def batch_sizes(self, num_examples: int) -> list[int]:
        """How many examples each of a client's steps reads."""
        full, rest = divmod(num_examples, self.batch_size)
        epoch = [self.batch_size] * full + [rest] * (rest > 0)
        if self.steps is None:
            return epoch * (self.epochs or 0)
        return (epoch * -(-self.steps // len(epoch)))[: self.steps]

    def order(self, num_examples: int, seed: int, round: int, client: int) -> Tensor:
        """The indices of all batches, one batch after the other."""
        generator = stream(seed, "batches", round, client)
        total = sum(self.batch_sizes(num_examples))
        passes = -(-total // num_examples)
        shuffles = [torch.randperm(num_examples, generator=generator) for _ in range(passes)]
        return shuffles[0][:total] if passes == 1 else torch.cat(shuffles)[:total]

    def direction(
        self,
        gradient: Tensor,
        local: Tensor,
        velocity: Tensor | None,
        correction: Tensor | None,
    ) -> Tensor:
        """Where a step goes; `gradient` and `velocity` are changed.

        All arguments are (d,), or all are (M, d) for the steps of M clients.
        """
        if self.clip_norm is not None:
            length = gradient.norm(dim=-1, keepdim=True)
            gradient.mul_((self.clip_norm / (length + 1e-12)).clamp(max=1.0))
        if self.weight_decay:
            gradient.add_(local, alpha=self.weight_decay)
        if correction is not None:
            gradient.add_(correction)
        return gradient if velocity is None else velocity.mul_(self.momentum).add_(gradient)


@contextlib.contextmanager
def layers_draw_from(generator: torch.Generator, device: torch.device) -> Iterator[None]:
    """Lends torch's global generators in a keyed state, for layers such as dropout."""
    before = torch.get_rng_state()
    torch.set_rng_state(generator.get_state())
    elsewhere = [device] if device.type == "cuda" else []
    try:
        with torch.random.fork_rng(elsewhere, enabled=bool(elsewhere)):
            if elsewhere:
                with torch.cuda.device(device):
                    torch.cuda.manual_seed(int(torch.randint(2**62, ())))
            yield
    finally:
        torch.set_rng_state(before)
