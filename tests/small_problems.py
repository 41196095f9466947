"""Small federations whose gradients, clusters and constants are known, for several rooms."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedvarp import FlatModel, LocalSGD, stream
from fedvarp.clients.gradients import ClientGradients
from fedvarp.clusters import by_metadata
from fedvarp.data import FederatedDataset, from_tensors
from fedvarp.models import LogisticRegression, Quadratic, initialised, quadratic_loss


def planted_clusters(dim: int = 40) -> FederatedDataset:
    """30 clients in 6 planted clusters, in no order, far apart compared with what is within."""
    draw = stream(0, "planted")
    cluster_of = torch.randperm(30, generator=draw) % 6
    centres = 5 * torch.randn(6, dim, generator=draw)
    x = centres[cluster_of] + 0.2 * torch.randn(30, dim, generator=draw)
    return from_tensors(
        [(row.expand(5, -1), torch.ones(5, dim)) for row in x],
        cluster_of=by_metadata(cluster_of),
    )


def same_partition(a: Tensor, b: Tensor) -> bool:
    """Whether the same clients are together, whatever the numbers of the clusters."""
    return torch.equal(by_metadata(a), by_metadata(b))


def unequal_clients(num_clients: int, dim: int, seed: int = 0) -> FederatedDataset:
    """Quadratics of curvature 1 with one example each: ∇f_i(0) = −x_i, of very unequal lengths."""
    draw = stream(seed, "unequal")
    lengths = torch.rand(num_clients, 1, generator=draw).square() * 3
    x = 0.5 + lengths * torch.randn(num_clients, dim, generator=draw)
    return from_tensors([(row[None], torch.ones(1, dim)) for row in x])


def gradients_of_unequal(data: FederatedDataset) -> Tensor:
    """(N, d) float64, what `unequal_clients` have for gradients at zero."""
    return torch.stack([-data.client(i)[0].double().mean(0) for i in range(data.num_clients)])


def mean_within(x: Tensor, clusters: Tensor) -> float:
    """The mean over rows of ‖x_i − mean of its cluster‖², by a loop over the clusters."""
    total = 0.0
    for k in set(clusters.tolist()):
        own = x[clusters == k]
        total += float((own - own.mean(0)).square().sum())
    return total / len(x)


def quadratic_gradients(
    data: FederatedDataset, dim: int, local_sgd: LocalSGD, seed: int = 0
) -> ClientGradients:
    """Gradients of quadratic clients at w = 0."""
    model = FlatModel(Quadratic(dim))
    return ClientGradients(data, model, quadratic_loss, local_sgd, torch.zeros(dim), seed=seed)


def small_classifier() -> tuple[FederatedDataset, nn.Module]:
    """Three clients of 7, 12 and 600 examples of three classes, and a logistic regression."""
    draw = stream(0, "classifier")
    parts = [
        (torch.randn(n, 5, generator=draw), torch.randint(3, (n,), generator=draw))
        for n in (7, 12, 600)
    ]
    return from_tensors(parts, num_classes=3), initialised(lambda: LogisticRegression(5, 3), 0)
