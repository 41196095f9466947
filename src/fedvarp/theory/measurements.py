"""The constants of the paper's assumptions, measured at one w on the user's own problem."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from fedvarp.clients.gradients import ClientGradients
from fedvarp.clients.local_sgd import LocalSGD
from fedvarp.clients.local_training import Loss
from fedvarp.clients.sampling import random_subset
from fedvarp.clusters.sketch import DEFAULT_SIZE, Sketch
from fedvarp.data import FederatedDataset
from fedvarp.randomness import stream
from fedvarp.server.flat_model import FlatModel
from fedvarp.simulation.progress import counted
from fedvarp.theory.client_pass import ClientPass, pass_over
from fedvarp.theory.estimators import (
    Estimate,
    cluster_offsets,
    error_of_heterogeneity,
    error_of_squared_norm,
    heterogeneity,
    mean_estimate,
    squared_norm,
)
from fedvarp.theory.smoothness import Smoothness, smoothness

_FARTHEST: Final = 5  # clients, by their sketches, whose distance is then computed exactly
_FEWEST: Final = 3  # clients from which errors can be estimated


@dataclass(frozen=True, eq=False)
class Measurements:
    """What was measured at w, over n of the N clients.

    Attributes:
        num_clients: N.
        clients: (n,) int64, those measured, ascending.
        dim: d.
        num_steps: τ, the mean over clients of their local steps in a round.
        loss: f(w).
        loss_lower_bound: A number that f never falls below.
        gradient_norm2: ‖∇f(w)‖².
        sigma2: Mean over clients of E‖∇f_i(w; batch) − ∇f_i(w)‖², batches as LocalSGD draws them.
        sigma_g2: Mean over clients of ‖∇f_i(w) − ∇f(w)‖².
        sigma_g2_max: The largest of the same among the clients measured.
        sigma_K2: Mean over clients of ‖∇f_i(w) − mean over its cluster‖²; None without clusters.
        cluster_of: (N,) int64, the clusters of σ_K²; None without, or if the sample holds no two
            clients of one cluster, from which σ_K² could be told.
        smoothness: L.
        sketches: (n, s) of the gradients, for clusters to be found in.
        other_sketches: (n, s), independent of them, for those clusters to be judged by.
    """

    num_clients: int
    clients: Tensor
    dim: int
    num_steps: float
    loss: Estimate
    loss_lower_bound: float
    gradient_norm2: Estimate
    sigma2: Estimate
    sigma_g2: Estimate
    sigma_g2_max: float
    sigma_K2: Estimate | None
    cluster_of: Tensor | None
    smoothness: Smoothness
    sketches: Tensor
    other_sketches: Tensor

    @property
    def of_all_clients(self) -> bool:
        """Whether no client was left out."""
        return len(self.clients) == self.num_clients

    @property
    def cluster_sizes(self) -> list[int] | None:
        """How many clients each cluster has."""
        return None if self.cluster_of is None else torch.bincount(self.cluster_of).tolist()

    def heterogeneity_within(self, cluster_of: Tensor) -> float:
        """σ_K² of any clustering, from sketches: right to a few per cent.

        The share of σ_g² that the sketches show within clusters is taken of the exact σ_g²: one
        cluster gives σ_g², one for each client gives 0.

        Args:
            cluster_of: (N,) int64.
        """
        sizes = torch.bincount(cluster_of)
        one = torch.zeros(len(self.clients), dtype=torch.int64)
        everybody = torch.tensor([self.num_clients])
        whole = _sketched(self.other_sketches, one, everybody)
        within = _sketched(self.other_sketches, cluster_of[self.clients], sizes)
        return self.sigma_g2.value * (within / whole) if whole > 0 else 0.0

    def as_json(self) -> dict[str, Any]:
        """For files and programs; without the sketches."""
        L = self.smoothness
        return {
            "num_clients": self.num_clients,
            "measured_clients": len(self.clients),
            "dim": self.dim,
            "num_steps": self.num_steps,
            "loss": self.loss.as_json(),
            "loss_lower_bound": self.loss_lower_bound,
            "gradient_norm2": self.gradient_norm2.as_json(),
            "sigma2": self.sigma2.as_json(),
            "sigma_g2": self.sigma_g2.as_json(),
            "sigma_g2_max": self.sigma_g2_max,
            "sigma_K2": None if self.sigma_K2 is None else self.sigma_K2.as_json(),
            "num_clusters": None if self.cluster_sizes is None else len(self.cluster_sizes),
            "smoothness": {
                "value": L.value,
                "curvature": L.curvature,
                "curvature_by_client": {str(i): value for i, value in L.by_client.items()},
                "largest_residual": L.largest_residual,
                "gradient_difference": L.gradient_difference,
            },
        }


def measure(
    dataset: FederatedDataset,
    model: nn.Module,
    loss: Loss,
    *,
    local_sgd: LocalSGD,
    w: Tensor | None = None,
    buffers: Mapping[str, Tensor] | None = None,
    cluster_of: Tensor | None = None,
    sample: int | None = None,
    smoothness_clients: int = 5,
    loss_lower_bound: float = 0.0,
    sketch_size: int = DEFAULT_SIZE,
    seed: int = 0,
    progress: bool | None = None,
) -> Measurements:
    """One pass over the clients' data, and some products with the Hessians of a few of them.

    Memory is a few vectors of the model's size and two sketches for each client measured.

    Args:
        dataset: The clients' examples.
        model: Computes the output; ends up with the weights w.
        loss: (output, targets) → mean loss of a batch.
        local_sgd: What a client does: its batches make σ², its rate and steps the walk for L.
        w: (d,) where to measure; the model's weights unless given.
        buffers: The model's buffers at w; its own unless given.
        cluster_of: (N,) clusters for σ_K²; the data set's own unless given.
        sample: How many clients to measure, drawn uniformly; None: all.
        smoothness_clients: For how many of them L is measured.
        loss_lower_bound: A number that f never falls below: 0 for cross-entropy and squares.
        sketch_size: Numbers in the sketch of a gradient.
        seed: Keys the draws.
        progress: Whether to show a bar; None: in a terminal.
    """
    N = dataset.num_clients
    cluster_of = dataset.cluster_of if cluster_of is None else cluster_of
    _check(N, sample, smoothness_clients, cluster_of)
    flat = FlatModel(model)
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
    seen = pass_over(gradients, clients, clusters, sketches, progress)
    mean_loss = mean_estimate(seen.losses, N)
    if mean_loss.value < loss_lower_bound:
        raise ValueError(
            f"The loss is {mean_loss.value:.4g} at this w, below loss_lower_bound="
            f"{loss_lower_bound:g}. Say what it never falls below."
        )
    n, spread = len(clients), seen.spread.sum_of_squares
    sigma_g2 = Estimate(
        heterogeneity(
            torch.tensor([spread], dtype=torch.float64), torch.tensor([n]), torch.tensor([N])
        ),
        error_of_heterogeneity(seen.sketches[0], one_cluster[clients], torch.tensor([N])),
    )
    sizes = torch.bincount(clusters)
    sigma_K2 = Estimate(
        heterogeneity(seen.within, seen.sampled, sizes),
        error_of_heterogeneity(seen.sketches[0], clusters[clients], sizes),
    )
    few = random_subset(n, min(smoothness_clients, n), stream(seed, "smoothness clients"))
    curvatures = smoothness(
        gradients, counted(clients[few].tolist(), "Measuring curvature", progress)
    )
    farthest = _largest_distance(gradients, clients, seen)
    flat.bind(w.clone())
    return Measurements(
        num_clients=N,
        clients=clients,
        dim=flat.dim,
        num_steps=float(seen.num_steps.mean()),
        loss=mean_loss,
        loss_lower_bound=loss_lower_bound,
        gradient_norm2=Estimate(
            squared_norm(float(seen.spread.mean @ seen.spread.mean), spread, n, N),
            error_of_squared_norm(seen.sketches[0], N),
        ),
        sigma2=mean_estimate(seen.noises, N, noisy=True),
        sigma_g2=sigma_g2,
        sigma_g2_max=farthest,
        sigma_K2=None if cluster_of is None else sigma_K2,
        cluster_of=cluster_of,
        smoothness=curvatures,
        sketches=seen.sketches[0],
        other_sketches=seen.sketches[1],
    )


def _largest_distance(gradients: ClientGradients, clients: Tensor, seen: ClientPass) -> float:
    """The largest ‖∇f_i − ∇f‖²: sketches say which clients come into question."""
    sketched = (seen.sketches[0] - seen.sketches[0].mean(0)).square().sum(1)
    farthest = clients[sketched.topk(min(_FARTHEST, len(clients))).indices]
    mean = seen.spread.mean
    return max(
        float((gradients.gradient(client, gradients.w) - mean).square().sum())
        for client in farthest.tolist()
    )


def _sketched(sketches: Tensor, clusters: Tensor, sizes: Tensor) -> float:
    _, offsets, sampled = cluster_offsets(sketches, clusters, len(sizes))
    within = torch.zeros(len(sizes), dtype=torch.float64)
    within.index_add_(0, clusters, offsets.square().sum(1))
    return heterogeneity(within, sampled, sizes)


def _tells_of(cluster_of: Tensor, clients: Tensor) -> bool:
    """Whether some of these clients share a cluster, if any clients do.

    Else the estimate of σ_K² and of its error would be zero, as if the clusters were perfect.
    """
    pairs, seen = (
        int(torch.bincount(some).max()) > 1 for some in (cluster_of, cluster_of[clients])
    )
    return seen or not pairs


def _check(
    num_clients: int, sample: int | None, smoothness_clients: int, cluster_of: Tensor | None
) -> None:
    if sample is not None and sample < min(_FEWEST, num_clients):
        raise ValueError(
            f"sample={sample}: errors can be estimated from {_FEWEST} clients or more. Leave it "
            f"out to measure all {num_clients}."
        )
    if smoothness_clients < 1:
        raise ValueError(f"smoothness_clients={smoothness_clients}: L needs at least one client.")
    if cluster_of is not None and tuple(cluster_of.shape) != (num_clients,):
        raise ValueError(
            f"cluster_of has shape {tuple(cluster_of.shape)}; give one cluster for each of the "
            f"{num_clients} clients."
        )
    if cluster_of is not None and int(torch.bincount(cluster_of).min()) == 0:
        raise ValueError(
            f"cluster_of leaves out some numbers below {int(cluster_of.max())}; clusters are "
            "numbered 0 to K-1, every number used. "
            "torch.unique(cluster_of, return_inverse=True)[1] renumbers them so."
        )
