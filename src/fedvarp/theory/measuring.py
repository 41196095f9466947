"""Measures the constants of the paper's assumptions at one w, in one pass over the clients' data.

A client's gradient is used and forgotten: a mean, the spread around it and two sketches for each
client are kept, a few vectors of the model's size in all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

import torch
from pydantic import InstanceOf, SkipValidation
from torch import Tensor, nn

from fedvarp.clients.draws import random_subset
from fedvarp.clients.gradients import ClientGradients, Track, untracked
from fedvarp.clients.local_sgd import LocalSGD
from fedvarp.clients.local_training import Loss
from fedvarp.clients.running_spread import RunningSpread
from fedvarp.clients.trial import refuse_untrainable
from fedvarp.clusters.sketch import DEFAULT_SIZE, Sketch
from fedvarp.data.federated_dataset import FederatedDataset
from fedvarp.errors import InvalidError
from fedvarp.randomness import stream
from fedvarp.server.flat_model import FlatModel
from fedvarp.settings.bounds import Count, Seed
from fedvarp.settings.checked import checked
from fedvarp.tables.tensors import whole_numbers
from fedvarp.theory.estimators import (
    SpreadWithinClusters,
    error_of_heterogeneity,
    error_of_squared_norm,
    heterogeneity,
    mean_estimate,
    squared_norm,
)
from fedvarp.theory.intervals import Estimate, effective_draws, unseen_error
from fedvarp.theory.measurements import Measurements
from fedvarp.theory.smoothness import smoothness
from fedvarp.theory.step_weights import StepWeights

_FARTHEST: Final = 5  # clients, by their sketches, whose distance is then computed exactly
_FEWEST: Final = 3  # clients from which errors can be estimated


@checked
def measure(
    dataset: InstanceOf[FederatedDataset],
    model: nn.Module,
    loss: Loss,
    *,
    local_sgd: LocalSGD,
    w: Tensor | None = None,
    buffers: InstanceOf[Mapping[str, Tensor]] | None = None,
    cluster_of: Annotated[Tensor | None, SkipValidation] = None,
    sample: Count | None = None,
    loss_lower_bound: float = 0.0,
    sketch_size: Count = DEFAULT_SIZE,
    seed: Seed = 0,
    track: Annotated[Track, SkipValidation] = untracked,
) -> Measurements:
    """Measures σ², σ_g², σ_K², L, f and ‖∇f‖² at w.

    It takes one pass over the clients' data, a few products with the Hessian of a part of it at
    each, and more of them at the steepest. Where clients take unequally many steps, all constants
    are those of f̃_i = (τ_i/τ̄) f_i, whose mean the training descends, unless updates are divided by
    τ_i (`StepWeights`).

    Args:
        dataset: The clients' examples.
        model: Computes the output; ends up with the weights w.
        loss: (output, targets) → mean loss of a batch.
        local_sgd: What a client does: its batches make σ², its rate and steps the walk for L.
        w: (d,) where to measure; the model's weights unless given.
        buffers: The model's buffers at w; its own unless given.
        cluster_of: (N,) clusters for σ_K²; the data set's own unless given.
        sample: How many clients to measure, drawn uniformly; None: all.
        loss_lower_bound: A number that f never falls below: 0 for cross-entropy and squares.
        sketch_size: Numbers in the sketch of a gradient.
        seed: Keys the draws.
        track: Goes through the clients, perhaps with a progress bar, as `rich.progress.track` does.

    Returns:
        The constants, with intervals where only a sample was measured.

    Raises:
        ValueError: If the sample or the clusters do not fit the clients, a loss or gradient is not
            finite, or f is below `loss_lower_bound`.
    """
    N = dataset.num_clients
    cluster_of = dataset.cluster_of if cluster_of is None else cluster_of
    if cluster_of is not None:
        cluster_of = whole_numbers("cluster_of", cluster_of, N)
    _check(N, sample, cluster_of)
    flat = FlatModel(model)
    refuse_untrainable(model, loss, dataset, local_sgd, seed)
    w = flat.vector() if w is None else w
    gradients = ClientGradients(dataset, flat, loss, local_sgd, w, buffers or {}, seed)
    clients = torch.arange(N)
    if sample is not None and sample < N:
        clients = random_subset(N, sample, stream(seed, "measured clients"))
    if cluster_of is not None and not _tells_of(cluster_of, clients):
        cluster_of = None
    one_cluster = torch.zeros(N, dtype=torch.int64)
    clusters = one_cluster if cluster_of is None else cluster_of
    sketches = tuple(
        Sketch(flat.dim, sketch_size, key, w.device) for key in (2 * seed, 2 * seed + 1)
    )
    weights = StepWeights.of_clients(dataset, local_sgd, clients)
    seen = _pass_over(gradients, clients, clusters, weights, sketches, track)
    mean_loss = mean_estimate(seen.losses, N)
    if mean_loss.value < loss_lower_bound:
        raise InvalidError(
            f"The loss is {mean_loss.value:.4g} at this w, below loss_lower_bound="
            f"{loss_lower_bound:g}. Say what it never falls below."
        )
    n, spread = len(clients), seen.spread.sum_of_squares
    sketched, other_sketched = seen.sketches
    draws = effective_draws((sketched - sketched.mean(0)).square().sum(1))

    def estimated(sigma2: float, clusters: Tensor) -> Estimate:
        error = error_of_heterogeneity(sketched, clusters[clients], torch.bincount(clusters))
        unseen = (0.0, unseen_error(sigma2, n, N, weights.variation))
        return Estimate.of_squares(sigma2, error, draws, unseen)

    one = torch.tensor([spread], dtype=torch.float64), torch.tensor([n]), torch.tensor([N])
    sigma_g2 = estimated(heterogeneity(*one), one_cluster)
    sigma_K2 = estimated(seen.within.heterogeneity, clusters)
    curvatures = smoothness(gradients, clients.tolist(), weights.factor, track=track)
    farthest = _largest_distance(gradients, clients, sketched, seen, weights)
    flat.bind(w.clone())
    return Measurements(
        num_clients=N,
        clients=clients,
        draws=draws,
        variation=weights.variation,
        dim=flat.dim,
        num_steps=float(weights.num_steps.double().mean()),
        equal_steps=int(weights.num_steps.min()) == int(weights.num_steps.max()),
        loss=mean_loss,
        loss_lower_bound=loss_lower_bound,
        gradient_norm2=Estimate.of_square(
            squared_norm(float(seen.spread.mean @ seen.spread.mean), spread, n, N),
            error_of_squared_norm(sketched, N),
            draws,
        ),
        sigma2=mean_estimate(seen.noises, N, noisy=True, squares=True, variation=weights.variation),
        sigma_g2=sigma_g2,
        sigma_g2_max=farthest,
        sigma_K2=None if cluster_of is None else sigma_K2,
        cluster_of=cluster_of,
        smoothness=curvatures,
        sketches=sketched,
        other_sketches=other_sketched,
    )


@dataclass(frozen=True, eq=False)
class _Pass:
    """What the gradients of n clients have shown. Entry m belongs to the m-th client."""

    spread: RunningSpread  # of the gradients
    within: SpreadWithinClusters
    losses: Tensor  # (n,) float64, f̃_i(w)
    noises: Tensor  # (n,) float64, the variance of a mini-batch gradient of f̃_i
    num_steps: Tensor  # (n,) float64, τ_i
    sketches: tuple[Tensor, ...]  # (n, s) float64 each


def _pass_over(
    gradients: ClientGradients,
    clients: Tensor,
    cluster_of: Tensor,
    weights: StepWeights,
    sketches: tuple[Sketch, ...],
    track: Track,
) -> _Pass:
    dim, device, n = gradients.model.dim, gradients.w.device, len(clients)
    spread = RunningSpread(dim, device)
    within = SpreadWithinClusters(cluster_of, dim, device)
    losses, noises, num_steps = torch.zeros(3, n, dtype=torch.float64)
    kept = tuple(torch.zeros(n, sketch.size, dtype=torch.float64) for sketch in sketches)
    for m in track(within.order(clients).tolist(), "Measuring clients"):
        client = int(clients[m])
        found = gradients.of(client)
        if not (math.isfinite(found.loss) and bool(found.gradient.isfinite().all())):
            raise InvalidError(
                f"The loss or the gradient of client {client} is not finite at this w: training "
                f"has diverged, or the client's data holds NaN. Diagnose an earlier round, or look "
                f"at the data."
            )
        factor = weights.factor(found.num_steps)
        gradient = factor * found.gradient
        spread.add(gradient)
        within.add(client, gradient)
        losses[m], noises[m], num_steps[m] = found.loss, found.noise, found.num_steps
        losses[m], noises[m] = factor * losses[m], factor**2 * noises[m]
        for rows, sketch in zip(kept, sketches, strict=True):
            rows[m] = sketch(gradient)
    return _Pass(spread, within, losses, noises, num_steps, kept)


def _largest_distance(
    gradients: ClientGradients,
    clients: Tensor,
    sketches: Tensor,
    seen: _Pass,
    weights: StepWeights,
) -> float:
    """The largest ‖∇f̃_i − ∇f‖²: sketches say which clients come into question."""
    sketched = (sketches - sketches.mean(0)).square().sum(1)
    farthest = sketched.topk(min(_FARTHEST, len(clients))).indices.tolist()
    distances = []
    for m in farthest:
        gradient = gradients.gradient(int(clients[m]), gradients.w)
        factor = weights.factor(int(seen.num_steps[m]))
        distances.append(float((factor * gradient - seen.spread.mean).square().sum()))
    return max(distances)


def _tells_of(cluster_of: Tensor, clients: Tensor) -> bool:
    """Whether some of these clients share a cluster, if any clients do.

    Else the estimate of σ_K² and of its error would be zero, as if the clusters were perfect.
    """
    pairs, seen = (
        int(torch.bincount(some).max()) > 1 for some in (cluster_of, cluster_of[clients])
    )
    return seen or not pairs


def _check(num_clients: int, sample: int | None, cluster_of: Tensor | None) -> None:
    if sample is not None and sample < min(_FEWEST, num_clients):
        raise InvalidError(
            f"sample={sample}: errors can be estimated from {_FEWEST} clients or more. Leave it "
            f"out to measure all {num_clients}."
        )
    if cluster_of is not None and int(torch.bincount(cluster_of).min()) == 0:
        raise InvalidError(
            f"cluster_of leaves out some numbers below {int(cluster_of.max())}; clusters are "
            "numbered 0 to K-1, every number used. fedvarp.clusters.by_metadata(cluster_of) "
            "renumbers them so."
        )
