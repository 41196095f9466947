"""One pass over the clients' data: everything that gradients tell, with O(d) memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedvarp.clients.gradients import ClientGradients
from fedvarp.clients.spread import Spread
from fedvarp.clusters.sketch import Sketch
from fedvarp.simulation.progress import counted


@dataclass(frozen=True, eq=False)
class ClientPass:
    """What the gradients of n clients have shown. Entry m belongs to the m-th client.

    Attributes:
        spread: Of their gradients.
        within: (K,) float64, Σ ‖∇f_i − their mean‖² over the clients of each cluster.
        sampled: (K,) int64, how many clients each cluster had among them.
        losses: (n,) float64, f_i(w).
        noises: (n,) float64, the variance of a mini-batch gradient.
        num_steps: (n,) float64, τ_i.
        sketches: (n, s) float64 for each of the sketches asked for.
    """

    spread: Spread
    within: Tensor
    sampled: Tensor
    losses: Tensor
    noises: Tensor
    num_steps: Tensor
    sketches: tuple[Tensor, ...]


def pass_over(
    gradients: ClientGradients,
    clients: Tensor,
    cluster_of: Tensor,
    sketches: tuple[Sketch, ...],
    progress: bool | None = None,
) -> ClientPass:
    """Visits the clients cluster by cluster, so that one cluster's mean is held at a time.

    Args:
        gradients: Computes the gradient of a client at w.
        clients: (n,) int64, whom to visit.
        cluster_of: (N,) int64.
        sketches: What to keep of each gradient.
        progress: Whether to show a bar; None: in a terminal.
    """
    dim, device, n = gradients.model.dim, gradients.w.device, len(clients)
    num_clusters = int(cluster_of.max()) + 1
    spread, cluster = Spread(dim, device), Spread(dim, device)
    within = torch.zeros(num_clusters, dtype=torch.float64)
    losses, noises, num_steps = torch.zeros(3, n, dtype=torch.float64)
    kept = tuple(torch.zeros(n, sketch.size, dtype=torch.float64) for sketch in sketches)
    present = -1
    order = cluster_of[clients].argsort(stable=True).tolist()
    for m in counted(order, "Measuring clients", progress):
        client = int(clients[m])
        found = gradients.of(client)
        if not (math.isfinite(found.loss) and bool(found.gradient.isfinite().all())):
            raise ValueError(
                f"The loss or the gradient of client {client} is not finite at this w: training "
                f"has diverged, or the client's data holds NaN. Diagnose an earlier round, or look "
                f"at the data."
            )
        if int(cluster_of[client]) != present:
            present, cluster = int(cluster_of[client]), Spread(dim, device)
        for one in (spread, cluster):
            one.add(found.gradient)
        within[present] = cluster.sum_of_squares
        losses[m], noises[m], num_steps[m] = found.loss, found.noise, found.num_steps
        for rows, sketch in zip(kept, sketches, strict=True):
            rows[m] = sketch(found.gradient)
    sampled = torch.bincount(cluster_of[clients], minlength=num_clusters)
    return ClientPass(spread, within, sampled, losses, noises, num_steps, kept)
