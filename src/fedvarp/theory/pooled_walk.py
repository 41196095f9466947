"""The walk on the pooled data: where local steps lead if there is but one client, who has all data.

Local steps leave w even where all clients agree; that is what they are for. What clients owe to
being apart is the difference to this walk: as many steps, of batches of the same size, from the
same model, each example as likely as the objective weighs it.

Clients of unequal sizes stop at different times. One long walk serves all of them: its mean over
clients, (w − w^(τ_i)) / (η_c unit), is added up as it passes each τ_i. So identical clients have no
drift, whatever their sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

from fedvarp.clients import local_training
from fedvarp.clients.gradients import ClientGradients, Track, untracked
from fedvarp.clients.local_sgd import LocalSGD
from fedvarp.clients.local_training import layers_draw_from
from fedvarp.clients.memory_layout import laid_out
from fedvarp.data.federated_dataset import Examples
from fedvarp.errors import InvalidError
from fedvarp.randomness import stream
from fedvarp.theory.step_weights import StepWeights

FEWEST: Final = 8
"""Walks, at least: their noise is estimated from how they differ."""
MOST: Final = 32
"""Walks, at most."""
_KEPT: Final = 2**29  # bytes of examples that are kept in memory between batches


def number_of_walks(weights: StepWeights, num_trained: int) -> int:
    """Says how many walks cost no more steps than training the clients does.

    Args:
        weights: The steps of the clients.
        num_trained: How many clients are trained, twice each.

    Returns:
        From FEWEST to MOST.
    """
    mean, longest = float(weights.num_steps.double().mean()), int(weights.num_steps.max())
    return max(FEWEST, min(MOST, int(2 * num_trained * mean / longest)))


def pooled_walks(
    gradients: ClientGradients,
    weights: StepWeights,
    num_walks: int,
    *,
    batch_factor: int = 1,
    track: Track = untracked,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Walks on the pooled data several times, each with batches of its own.

    The same batches are then gone through with all gradients taken at w. What they add up to has
    the mean ∇f, and at small rates most of the walk's noise: the difference is then a far calmer
    estimate of how far the walk departs from ∇f than the walk itself.

    Args:
        gradients: Where w, the data, the loss and LocalSGD are.
        weights: The steps of the clients whose data is pooled.
        num_walks: How many.
        batch_factor: What the batch size is multiplied by.
        track: Goes through the walks, perhaps with a progress bar.

    Yields:
        (d,) float64 each: the mean over clients of the walk up to their τ_i, as a gradient, and the
        same with gradients at w. Their means are h_pooled and ∇f.

    Raises:
        ValueError: If a walk diverges.
    """
    pool = _Pool(gradients, weights)
    augment = gradients.dataset.augment
    size = batch_factor * gradients.local_sgd.batch_size
    steps = int(weights.num_steps.max())
    # Clipped gradients do not have the mean ∇f, nor do those of changed inputs.
    unclipped = gradients.local_sgd.replace(clip_norm=None)
    for walk in track(range(num_walks), "Walking on the pooled data"):

        def batches(walk: int = walk) -> Iterator[Examples]:
            return pool.batches(size, steps, stream(gradients.seed, "pooled batches", walk))

        def changed(walk: int = walk) -> Iterator[Examples]:
            draw = stream(gradients.seed, "pooled augmentation", walk)
            for x, y in batches(walk):
                yield (x if augment is None else augment(x, draw)), y

        moving = _walked(gradients, weights, changed(), walk, gradients.local_sgd, None)
        staying = _walked(gradients, weights, batches(), walk, unclipped, gradients.w)
        if not bool(moving.isfinite().all()):
            raise InvalidError(
                "Training on the pooled data of the clients diverges at this rate, so that there "
                "is nothing to compare their updates with. Lower the client rate "
                "(--set client_lr=…)."
            )
        yield moving, staying


def _walked(
    gradients: ClientGradients,
    weights: StepWeights,
    batches: Iterator[Examples],
    walk: int,
    local_sgd: LocalSGD,
    at: Tensor | None,
) -> Tensor:
    """(d,) float64, the mean over clients of (w − w^(τ_i)) / (η_c unit) along one walk."""
    if gradients.buffers:
        gradients.model.load_buffers(gradients.buffers)
    stops = torch.bincount(weights.num_steps).double() / len(weights.num_steps)
    local, mean = gradients.w.clone(), torch.zeros_like(gradients.w, dtype=torch.float64)
    layers = layers_draw_from(stream(gradients.seed, "pooled layers", walk), gradients.w.device)
    taken = local_training.steps(
        local_sgd, gradients.model, gradients.loss, local, batches, 0, at=at
    )
    with layers:
        for done, _ in enumerate(taken, start=1):
            if stops[done] > 0:
                unit = local_sgd.rate(0) * weights.walk_unit(done)
                mean.add_((gradients.w - local).double(), alpha=float(stops[done]) / unit)
    return mean


class _Pool:
    """The examples of many clients, drawn as often as the objective weighs them.

    Args:
        gradients: Where the data is, and the model that reads it.
        weights: The clients.
    """

    def __init__(self, gradients: ClientGradients, weights: StepWeights) -> None:
        self._gradients, self._clients = gradients, weights.clients
        sizes = weights.num_examples
        self._ends = sizes.cumsum(0)
        counts = torch.unique(weights.num_steps)
        factors = torch.zeros(int(counts.max()) + 1, dtype=torch.float64)
        factors[counts] = torch.tensor([weights.factor(c) for c in counts.tolist()]).double()
        shares = (factors[weights.num_steps] / sizes).repeat_interleave(sizes)
        self._shares = shares / shares.mean()  # how often an example is drawn in one pass
        if bool((self._shares - 1).abs().max() < 1e-9):
            self._shares.fill_(1.0)  # to the bit, so that every pass has each example once
        self._kept: dict[int, Examples] = {}
        self._bytes = 0

    def batches(self, size: int, num_steps: int, draw: torch.Generator) -> Iterator[Examples]:
        """Draws the batches of one walk, pass by pass, as a client draws its own."""
        total = len(self._shares)
        size = min(size, total)
        passes = -(-size * num_steps // total)
        order = torch.cat([self._one_pass(draw) for _ in range(passes)])[: size * num_steps]
        for chosen in torch.split(order, size):
            yield self._gathered(chosen)

    def _one_pass(self, draw: torch.Generator) -> Tensor:
        """Systematic sampling in random order: an example of share s is drawn ⌊s⌋ or ⌈s⌉ times."""
        total = len(self._shares)
        order = torch.randperm(total, generator=draw)
        points = torch.arange(total) + torch.rand(1, generator=draw).double().clamp(min=1e-6)
        drawn = torch.searchsorted(self._shares[order].cumsum(0), points).clamp(max=total - 1)
        return order[drawn[torch.randperm(total, generator=draw)]]

    def _gathered(self, chosen: Tensor) -> Examples:
        owners = torch.searchsorted(self._ends, chosen, right=True)
        inputs, targets = [], []
        for owner in sorted(set(owners.tolist())):
            x, y = self._examples(owner)
            own = chosen[owners == owner] - (self._ends[owner] - len(x))
            inputs.append(x[own])
            targets.append(y[own])
        device = self._gradients.w.device
        x = laid_out(torch.cat(inputs).to(device), self._gradients.model)
        return x, torch.cat(targets).to(device)

    def _examples(self, owner: int) -> Examples:
        """Loads a client, or takes it from those that fit into memory."""
        if owner not in self._kept:
            found = self._gradients.dataset.client(int(self._clients[owner]))
            self._bytes += sum(part.nbytes for part in found)
            if self._bytes > _KEPT:
                return found
            self._kept[owner] = found
        return self._kept[owner]
