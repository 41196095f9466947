"""Synthetic federated problems: quadratics whose every constant is known, and Synthetic(α, β)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedvarp.data.federated_dataset import Examples, FederatedDataset
from fedvarp.data.own_data import from_tensors
from fedvarp.errors import InvalidError
from fedvarp.randomness import stream
from fedvarp.settings.bounds import Count, NotNegative, Positive, Seed
from fedvarp.settings.checked import checked


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Quadratics(FederatedDataset):
    """Clients f_i(w) = mean over examples x of ½ (w − x)ᵀ diag(h) (w − x), and their constants.

    All examples share the curvature h, so ∇f_i − ∇f does not depend on w: the constants of the
    paper's assumptions hold everywhere, and with equality at every client. An example is the pair
    (x, h); `fedvarp.models.Quadratic` with `fedvarp.models.quadratic_loss` evaluates it.

    Attributes:
        curvature: h.
        optimum: The minimiser of f = mean of f_i.
        sigma2: E‖∇f_i(w; one example) − ∇f_i(w)‖², for batches of **one** example.
        sigma_g2: ‖∇f_i(w) − ∇f(w)‖² of every client.
        sigma_K2: ‖∇f_i(w) − mean of ∇f_j(w) over the cluster of i‖² of every client.
    """

    curvature: Tensor  # (d,)
    optimum: Tensor  # (d,)
    sigma2: float
    sigma_g2: float
    sigma_K2: float

    @property
    def smoothness(self) -> float:
        """L, the largest curvature."""
        return float(self.curvature.max())

    def batch_noise(self, batch_size: int) -> float:
        """Computes E‖∇f_i(w; batch) − ∇f_i(w)‖² for batches drawn as LocalSGD draws them.

        Args:
            batch_size: Examples in a batch, drawn without replacement.

        Returns:
            The variance, the same at every w and client.

        Raises:
            ValueError: A client has fewer examples than that.
        """
        n = len(self.client(0)[0])  # all clients are of one size
        if not 1 <= batch_size <= n:
            raise InvalidError(f"batch_size={batch_size}: the clients have {n} examples each.")
        return self.sigma2 / batch_size * (n - batch_size) / max(n - 1, 1)

    def suboptimality(self, w: Tensor) -> float:
        """Computes f(w) − min f.

        Args:
            w: (d,).

        Returns:
            The difference, in double precision.
        """
        offset = w.double() - self.optimum.double()
        return float(0.5 * (self.curvature.double() * offset.square()).sum())


@checked
def quadratics(
    num_clients: Count = 20,
    dim: Annotated[int, Field(ge=4)] = 10,
    *,
    num_clusters: Count = 5,
    sigma2: NotNegative = 1.0,
    sigma_g2: NotNegative = 1.0,
    sigma_K2: NotNegative = 0.1,
    smoothness: Positive = 1.0,
    strong_convexity: Positive = 0.1,
    examples_per_client: Count = 10,
    seed: Seed = 0,
    dtype: torch.dtype = torch.float32,
) -> Quadratics:
    """Makes clients with quadratic losses that have exactly these constants.

    With gradient offsets g_i = ∇f_i − ∇f split into one part a cluster and one part a client, the
    two parts lie in orthogonal planes, evenly spaced on circles of radius √(σ_g² − σ_K²) and σ_K:
    they average to zero, and every client attains the bounds.

    Args:
        num_clients: How many clients there are, a multiple of num_clusters.
        dim: How many numbers w has; clusters and clients need a plane each, so at least 4.
        num_clusters: How many clusters of equal size the clients form.
        sigma2: The variance σ² of the gradient at a single example.
        sigma_g2: The heterogeneity σ_g² of the clients.
        sigma_K2: The heterogeneity σ_K² within a cluster: 0 if a cluster has one client, sigma_g2
            if there is one cluster.
        smoothness: The largest curvature L; the others are spaced evenly on a log scale.
        strong_convexity: The smallest curvature.
        examples_per_client: How many examples each client has; at least 2 unless sigma2 is 0.
        seed: Keys all draws.
        dtype: The type of the examples.

    Returns:
        The clients with their constants.

    Raises:
        ValueError: An argument is out of bounds, or no problem has these constants together.
    """
    clients_per_cluster = _check_quadratics(
        num_clients, num_clusters, sigma2, sigma_g2, sigma_K2, examples_per_client
    )
    if strong_convexity > smoothness:
        raise InvalidError(
            f"strong_convexity={strong_convexity} is the smallest curvature and cannot exceed the "
            f"largest, smoothness={smoothness}."
        )
    draw = stream(seed, "quadratics")
    curvature = torch.logspace(
        math.log10(strong_convexity), math.log10(smoothness), dim, dtype=torch.float64
    )
    curvature[-1] = smoothness  # L to the last bit
    optimum = torch.randn(dim, generator=draw, dtype=torch.float64)
    planes = torch.linalg.qr(torch.randn(dim, 4, generator=draw, dtype=torch.float64)).Q  # (d, 4)

    cluster_of = torch.arange(num_clients) // clients_per_cluster
    place_in_cluster = torch.arange(num_clients) % clients_per_cluster
    between = math.sqrt(sigma_g2 - sigma_K2) * _on_circle(cluster_of, num_clusters)  # (N, 2)
    within = math.sqrt(sigma_K2) * _on_circle(place_in_cluster, clients_per_cluster)
    offsets = torch.cat([between, within], dim=1) @ planes.T  # g_i, (N, d)

    noise = torch.randn(num_clients, examples_per_client, dim, generator=draw, dtype=torch.float64)
    noise -= noise.mean(1, keepdim=True)
    if sigma2 > 0:
        noise *= (sigma2 / noise.square().sum(2).mean(1)).sqrt().view(-1, 1, 1)
    else:
        noise.zero_()
    # ∇f_i(w; x) = h (w − x) is to be h (w − optimum) + g_i + noise
    x = optimum - (offsets[:, None, :] + noise) / curvature  # (N, n, d)
    return Quadratics(
        load=_PerturbedCentres(x.to(dtype), curvature.to(dtype)),
        num_clients=num_clients,
        num_examples=torch.full((num_clients,), examples_per_client),
        cluster_of=cluster_of,
        curvature=curvature.to(dtype),
        optimum=optimum.to(dtype),
        sigma2=sigma2,
        sigma_g2=sigma_g2,
        sigma_K2=sigma_K2,
    )


@checked
def logistic(
    alpha: NotNegative = 1.0,
    beta: NotNegative = 1.0,
    *,
    num_clients: Count = 30,
    features: Count = 60,
    classes: Annotated[int, Field(ge=2)] = 10,
    examples_per_client: Count | None = None,
    test_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.1,
    seed: Seed = 0,
) -> FederatedDataset:
    """Makes Synthetic(α, β) of Li et al. (2020): logistic regression, another truth at each client.

    Client k labels x by the largest entry of W_k x + b_k, with W_k and b_k from N(u_k, 1) and
    u_k ~ N(0, α). Its inputs are N(v_k, Σ) with Σ_jj = j^-1.2, v_k from N(B_k, 1), B_k ~ N(0, β).
    α and β are variances, as in the paper; its published code takes them as standard deviations,
    which is the same for 0 and 1.

    Args:
        alpha: How much the models differ between clients, a variance.
        beta: How much the inputs differ between clients, a variance.
        num_clients: How many clients there are.
        features: How many numbers an input has.
        classes: How many labels there are.
        examples_per_client: How many examples each client has; unless given, sizes follow Li et
            al.'s heavy tail, 50 plus a lognormal(4, 2) number.
        test_fraction: The share of every client's examples that goes into the common test set.
        seed: Keys all draws; client k depends on the seed and k alone.

    Returns:
        Inputs are (n, features) float32; there are no clusters.

    Raises:
        ValueError: An argument is out of bounds.
    """
    spread = torch.arange(1, features + 1).pow(-0.6)  # standard deviations of x
    train, test = [], []
    for k in range(num_clients):
        draw = stream(seed, "logistic", k)
        u = math.sqrt(alpha) * torch.randn((), generator=draw)
        weights = u + torch.randn(features, classes, generator=draw)
        bias = u + torch.randn(classes, generator=draw)
        centre = math.sqrt(beta) * torch.randn((), generator=draw)
        mean = centre + torch.randn(features, generator=draw)
        size = examples_per_client
        if size is None:
            size = 50 + int(torch.empty(()).log_normal_(4.0, 2.0, generator=draw))
        x = mean + spread * torch.randn(size, features, generator=draw)
        y = (x @ weights + bias).argmax(1)
        held_out = int(size * test_fraction)
        train.append((x[held_out:], y[held_out:]))
        test.append((x[:held_out], y[:held_out]))
    x_test = torch.cat([x for x, _ in test])
    y_test = torch.cat([y for _, y in test])
    return from_tensors(train, test=(x_test, y_test) if len(x_test) else None, num_classes=classes)


@dataclass(frozen=True, eq=False)
class _PerturbedCentres:
    x: Tensor  # (N, n, d)
    curvature: Tensor  # (d,)

    def __call__(self, client: int) -> Examples:
        return self.x[client], self.curvature.expand_as(self.x[client])


def _on_circle(place: Tensor, places: int) -> Tensor:  # (N,) -> (N, 2)
    angle = place.double() * (2 * math.pi / places)
    return torch.stack([angle.cos(), angle.sin()], dim=1)


def _check_quadratics(
    num_clients: int,
    num_clusters: int,
    sigma2: float,
    sigma_g2: float,
    sigma_K2: float,
    examples_per_client: int,
) -> int:
    """The number of clients in a cluster, if such a problem exists."""
    if num_clients % num_clusters:
        raise InvalidError(
            f"{num_clients} clients do not form {num_clusters} clusters of one size. Choose "
            "num_clients as a multiple of num_clusters."
        )
    if sigma_K2 > sigma_g2:
        raise InvalidError(
            f"sigma_K2={sigma_K2} exceeds sigma_g2={sigma_g2}: clients differ no more within "
            "clusters than over all."
        )
    clients_per_cluster = num_clients // num_clusters
    if clients_per_cluster == 1 and sigma_K2 > 0:
        raise InvalidError(f"Clusters of one client have sigma_K2 = 0, not {sigma_K2}.")
    if num_clusters == 1 and sigma_K2 != sigma_g2:
        raise InvalidError(
            f"With one cluster sigma_K2 is sigma_g2, but {sigma_K2} and {sigma_g2} were asked for."
        )
    if sigma2 > 0 and examples_per_client < 2:
        raise InvalidError(
            f"examples_per_client={examples_per_client}: gradient noise (sigma2={sigma2}) comes "
            "from examples that differ, so at least two are needed, or sigma2=0."
        )
    return clients_per_cluster
