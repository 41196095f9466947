"""Local training: what a client does with the model it is sent (Algorithm 1)."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedvarp.clients.compiled_gradient import CompiledGradient
from fedvarp.clients.local_sgd import LocalSGD
from fedvarp.clients.memory_layout import gathered, laid_out
from fedvarp.data.federated_dataset import Augmentation, Examples
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


def train(
    local_sgd: LocalSGD,
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
        local_sgd: The settings.
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
    velocity = torch.zeros_like(w) if local_sgd.momentum else None
    total_loss = torch.zeros((), dtype=torch.float64, device=w.device)
    rate, walk, num_steps = local_sgd.lr * local_sgd.schedule(round), 0.0, 0
    momentum_so_far = 0.0  # what a constant gradient of 1 would have made the velocity
    augmenting = None if augment is None else stream(seed, "augment", round, client)
    model.bind(local, gradient)
    x, y = laid_out(examples[0], model), examples[1]
    model.module.train()
    with layers_draw_from(stream(seed, "layers", round, client), w.device):
        for chosen in batches(local_sgd, len(x), seed, round, client, x.device):  # line 2
            inputs, targets = gathered(x, chosen, model), y.index_select(0, chosen)
            if augment is not None and augmenting is not None:
                inputs = augment(inputs, augmenting)
            if compiled is not None and len(inputs) == local_sgd.batch_size:  # line 3
                total_loss += compiled(local, inputs, targets, out=gradient)
            else:
                batch_loss = loss(model.module(inputs), targets)
                model.backward(batch_loss)
                total_loss += batch_loss.detach()
            step = direction(local_sgd, gradient, local, velocity, correction)
            local.add_(step, alpha=-rate)  # line 4
            momentum_so_far = local_sgd.momentum * momentum_so_far + 1
            walk += rate * momentum_so_far
            num_steps += 1
            rate *= local_sgd.step_decay
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
    local_sgd: LocalSGD,
    num_examples: int,
    seed: int,
    round: int,
    client: int,
    device: torch.device | str = "cpu",
) -> tuple[Tensor, ...]:
    """Draws the batches of a client: a new shuffle for every pass over its data.

    Args:
        local_sgd: The settings.
        num_examples: Of the client.
        seed: The run's seed.
        round: t.
        client: i.
        device: Where the indices are needed.

    Returns:
        The indices of each batch.
    """
    drawn = order(local_sgd, num_examples, seed, round, client).to(device)
    return torch.split(drawn, local_sgd.batch_sizes(num_examples))


def order(local_sgd: LocalSGD, num_examples: int, seed: int, round: int, client: int) -> Tensor:
    """Draws the examples of all batches of a client, one batch after the other.

    Args:
        local_sgd: The settings.
        num_examples: Of the client.
        seed: The run's seed.
        round: t.
        client: i.

    Returns:
        Their indices, int64.
    """
    generator = stream(seed, "batches", round, client)
    total = sum(local_sgd.batch_sizes(num_examples))
    passes = -(-total // num_examples)
    shuffles = [torch.randperm(num_examples, generator=generator) for _ in range(passes)]
    return shuffles[0][:total] if passes == 1 else torch.cat(shuffles)[:total]


def direction(
    local_sgd: LocalSGD,
    gradient: Tensor,
    local: Tensor,
    velocity: Tensor | None,
    correction: Tensor | None,
) -> Tensor:
    """Turns a gradient into the direction of a local step: clip, decay, correction, momentum.

    All vectors are (d,), or all are (M, d) for the steps of M clients.

    Args:
        local_sgd: The settings.
        gradient: Of a batch; changed.
        local: The client's model.
        velocity: Of the momentum so far, changed; None without momentum.
        correction: Added to the gradient (SCAFFOLD); None: nothing is.

    Returns:
        The direction; good until the next step.
    """
    if local_sgd.clip_norm is not None:
        length = gradient.norm(dim=-1, keepdim=True)
        gradient.mul_((local_sgd.clip_norm / (length + 1e-12)).clamp(max=1.0))
    if local_sgd.weight_decay:
        gradient.add_(local, alpha=local_sgd.weight_decay)
    if correction is not None:
        gradient.add_(correction)
    return gradient if velocity is None else velocity.mul_(local_sgd.momentum).add_(gradient)


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
