"""Local training: what a client does with the model it is sent (Algorithm 1)."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedvarp.clients.local_optimizer import make_optimizer
from fedvarp.clients.local_sgd import LocalSGD
from fedvarp.clients.memory_layout import gathered, laid_out
from fedvarp.data.federated_dataset import Augmentation, Examples, FederatedDataset
from fedvarp.errors import InvalidError
from fedvarp.randomness import shuffles, stream
from fedvarp.server.flat_model import FlatModel
from fedvarp.tables.largest_entries import LargestEntries

Loss = Callable[[Tensor, Tensor], Tensor]
"""(model output, targets) → the mean loss of the batch, such as torch's `cross_entropy`."""


class GradientOf(Protocol):
    """Takes the gradient of a batch in some other way than by `FlatModel.backward`.

    Attributes:
        full_batches_only: Whether smaller ones are left to the model.
    """

    full_batches_only: bool

    def __call__(self, w: Tensor, x: Tensor, y: Tensor, *, out: Tensor) -> Tensor:
        """Writes the gradient of a batch (x, y) at w to `out`, (d,), and returns the loss."""


@dataclass(frozen=True, eq=False)
class LocalResult:
    """What local training leaves behind."""

    delta: Tensor  # (d,), (w - w_i) / eta_c(t), and by tau_i where steps are normalised
    num_steps: int  # counted
    num_gradients: float  # how many gradients delta adds up: tau_i, or 1 where normalised
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
    proximal: float = 0.0,
    augment: Augmentation | None = None,
    gradient_of: GradientOf | None = None,
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
        proximal: ρ, adds ρ (w_i − w) to every gradient (FedProx).
        augment: Random changes to a training batch.
        gradient_of: Takes the gradients of batches in place of `model` and `loss`.
    """
    local = w.clone()  # line 1
    total_loss = torch.zeros((), dtype=torch.float64, device=w.device)
    num_steps = 0
    augmenting = None if augment is None else stream(seed, "augment", round, client)
    model.bind(local)
    x, y = laid_out(examples[0], model), examples[1]

    def drawn() -> Iterator[Examples]:
        for chosen in batches(local_sgd, len(x), seed, round, client, x.device):
            inputs, targets = gathered(x, chosen, model), y.index_select(0, chosen)
            if augment is not None and augmenting is not None:
                inputs = augment(inputs, augmenting)
            yield inputs, targets

    with layers_draw_from(stream(seed, "layers", round, client), w.device):
        for batch_loss in steps(  # lines 2 to 4
            local_sgd,
            model,
            loss,
            local,
            drawn(),
            round,
            correction=correction,
            proximal=proximal,
            gradient_of=gradient_of,
        ):
            total_loss += batch_loss
            num_steps += 1
    num_gradients, divisor = units(local_sgd, round, num_steps)
    delta = (w - local).div_(divisor)  # line 6, where the paper divides by τ as well
    return LocalResult(
        delta=delta,
        num_steps=num_steps,
        num_gradients=num_gradients,
        mean_loss=float(total_loss) / num_steps,
        num_examples=len(x),
        magnitude=LargestEntries.of(delta.unsqueeze(0)).values[0],
    )


def steps(
    local_sgd: LocalSGD,
    model: FlatModel,
    loss: Loss,
    local: Tensor,
    drawn: Iterable[Examples],
    round: int,
    *,
    at: Tensor | None = None,
    correction: Tensor | None = None,
    proximal: float = 0.0,
    gradient_of: GradientOf | None = None,
) -> Iterator[Tensor]:
    """Takes one step of local SGD for each of the batches.

    Args:
        local_sgd: The settings.
        model: Computes the loss; its parameters are bound to `local`, or to `at`.
        loss: (output, targets) → mean loss of the batch.
        local: (d,), the model that walks; changed in place.
        drawn: (x, y) of each step.
        round: t.
        at: (d,), where gradients are taken at every step; None: where the walk has come to.
        correction: (d,), added to every gradient (SCAFFOLD).
        proximal: ρ, adds ρ times what the walk has come by to every gradient (FedProx).
        gradient_of: Takes the gradients of batches in place of `model` and `loss`.

    Yields:
        The loss of each batch, before its step, when the step has been taken.
    """
    gradient = torch.empty_like(local)
    velocity = torch.zeros_like(local) if local_sgd.momentum else None
    pull = (proximal, local.clone()) if proximal else None
    place, rate = local if at is None else at, local_sgd.rate(round)
    optimizer = _optimizer(local_sgd, model, local, gradient, rate)
    model.bind(place, gradient)
    model.module.train()
    for inputs, targets in drawn:  # line 2
        full = len(inputs) == local_sgd.batch_size
        if gradient_of is not None and (full or not gradient_of.full_batches_only):  # line 3
            value = gradient_of(place, inputs, targets, out=gradient)
        else:
            batch_loss = loss(model.module(inputs), targets)
            model.backward(batch_loss)
            value = batch_loss.detach()
        step = direction(local_sgd, gradient, place, velocity, correction, pull)
        if optimizer is None:
            local.add_(step, alpha=-rate)  # line 4
        else:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()  # reads `gradient`, which `step` is
        rate *= local_sgd.step_decay
        yield value


def _optimizer(
    local_sgd: LocalSGD, model: FlatModel, local: Tensor, gradient: Tensor, rate: float
) -> torch.optim.Optimizer | None:
    """A new optimiser over the layers of the walk, for some treat a matrix as one; None: SGD."""
    if local_sgd.optimizer is None:
        return None
    parameters = model.unflatten(local)
    for name, part in model.unflatten(gradient).items():
        parameters[name].grad = part
    return make_optimizer(local_sgd.optimizer, parameters.values(), rate)


def units(local_sgd: LocalSGD, round: int, num_steps: int) -> tuple[float, float]:
    """What an update is measured in: the sum of a client's gradients, or their mean.

    Args:
        local_sgd: The settings.
        round: t.
        num_steps: How many steps the client took.

    Returns:
        How many gradients its update adds up, and what w − w_i is divided by.
    """
    rate, num_gradients = local_sgd.rate(round), local_sgd.num_gradients(num_steps)
    return (1.0, rate * num_gradients) if local_sgd.normalise_steps else (num_gradients, rate)


def mean_steps(local_sgd: LocalSGD, dataset: FederatedDataset) -> float:
    """τ̄ of the server's step η_s η_c(t) τ̄ v, the same in all rounds of a run.

    Args:
        local_sgd: The settings.
        dataset: Whose clients take these steps.

    Returns:
        The mean over all clients of τ_i where updates are divided by it, else 1.

    Raises:
        ValueError: It cannot be known without loading every client.
    """
    if not local_sgd.normalise_steps:
        return 1.0
    if local_sgd.steps is not None:
        return local_sgd.num_gradients(local_sgd.steps)
    if dataset.num_examples is None:
        raise InvalidError(
            "normalise_steps steps the server by the mean number of local steps over all clients, "
            "which follows from the sizes of their data. Give FederatedDataset(num_examples=…), or "
            "the same number of steps to every client: LocalSGD(steps=…)."
        )
    sizes, clients = torch.unique(dataset.num_examples, return_counts=True)
    taken = [local_sgd.num_gradients(len(local_sgd.batch_sizes(n))) for n in sizes.tolist()]
    total = clients.double() @ torch.tensor(taken, dtype=torch.float64)
    return float(total) / dataset.num_clients


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
    (drawn,) = orders(local_sgd, num_examples, seed, round, [client]).to(device)
    return torch.split(drawn, local_sgd.batch_sizes(num_examples))


def orders(
    local_sgd: LocalSGD, num_examples: int, seed: int, round: int, clients: Sequence[int]
) -> Tensor:
    """Draws the examples of all batches, one batch after the other, of clients of one size.

    Args:
        local_sgd: The settings.
        num_examples: Of each client.
        seed: The run's seed.
        round: t.
        clients: The clients; what one of them draws does not depend on the others.

    Returns:
        (clients, examples in all batches) int64, their indices.
    """
    total = sum(local_sgd.batch_sizes(num_examples))
    passes = -(-total // num_examples)
    drawn = shuffles(seed, "batches", round, clients, num_examples, passes)
    return drawn.flatten(1)[:, :total]


def direction(
    local_sgd: LocalSGD,
    gradient: Tensor,
    local: Tensor,
    velocity: Tensor | None,
    correction: Tensor | None,
    pull: tuple[float, Tensor] | None = None,
) -> Tensor:
    """Turns a gradient into the direction of a local step.

    It is clipped; decay, correction and proximal term are added, then momentum.

    All vectors are (d,), or all are (M, d) for the steps of M clients.

    Args:
        local_sgd: The settings.
        gradient: Of a batch; changed.
        local: The client's model.
        velocity: Of the momentum so far, changed; None without momentum.
        correction: Added to the gradient (SCAFFOLD); None: nothing is.
        pull: ρ and the server's model w: ρ (local − w) is added (FedProx); None: nothing is.

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
    if pull is not None:
        gradient.add_(local - pull[1], alpha=pull[0])
    return gradient if velocity is None else velocity.mul_(local_sgd.momentum).add_(gradient)


@contextlib.contextmanager
def layers_draw_from(generator: torch.Generator, device: torch.device) -> Iterator[None]:
    """Lends torch's global generators in a keyed state, for layers such as dropout."""
    before = torch.get_rng_state()
    torch.set_rng_state(generator.get_state())
    try:
        if device.type == "cpu":
            yield
        else:
            accelerator = torch.get_device_module(device)
            chosen = getattr(accelerator, "device", contextlib.nullcontext)  # some have but one
            with generators_kept(device):
                with chosen(device):
                    accelerator.manual_seed(int(torch.randint(2**62, ())))
                yield
    finally:
        torch.set_rng_state(before)


def generators_kept(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Puts torch's global generators, the CPU's and a device's own, back as they were."""
    elsewhere = [] if device.type == "cpu" else [device]
    return torch.random.fork_rng(elsewhere, device_type=device.type)
