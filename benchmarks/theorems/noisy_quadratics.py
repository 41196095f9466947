"""Clients with quadratic losses and Gaussian gradient noise: the paper's assumptions to the letter.

`fedvarp.data.quadratics` with LocalSGD would do the same, an example at a time. Here the clients of
a round walk together, and copies of the problem lie side by side in w, because expectations take
many runs to measure. In each copy the clients of a cluster, and the clusters, are shuffled among
themselves: one cohort is another in every copy, and each copy alone is the problem itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedvarp import Broadcast, RoundUpdates, Server, ServerSGD, stream
from fedvarp.algorithms.registry import TableSettings, make_algorithm
from fedvarp.clients.sampling import UniformSampler
from fedvarp.data import quadratics


@dataclass(frozen=True, eq=False)
class NoisyQuadratics:
    """f_i(w) = ½ (w − b_i)ᵀ diag(h_i) (w − b_i); a gradient has noise of variance σ².

    Attributes:
        centres: b, (N, d) float64.
        curvatures: h, (N, d) float64.
        cluster_of: (N,) int64.
        sigma2: E‖noise‖² of every stochastic gradient, independent of all others, in each copy.
        copies: R. The d coordinates are R blocks of d/R.
    """

    centres: Tensor
    curvatures: Tensor
    cluster_of: Tensor
    sigma2: float
    copies: int = 1

    @classmethod
    def with_constants(
        cls,
        num_clients: int,
        *,
        sigma2: float,
        sigma_g2: float,
        sigma_K2: float,
        num_clusters: int,
        smoothness: float = 1.0,
        strong_convexity: float | None = None,
        copies: int = 1,
    ) -> NoisyQuadratics:
        """Problems with these constants; all curvatures are L unless told otherwise."""
        data = quadratics(
            num_clients,
            dim=4,
            num_clusters=num_clusters,
            sigma2=0.0,
            sigma_g2=sigma_g2,
            sigma_K2=sigma_K2,
            smoothness=smoothness,
            strong_convexity=smoothness if strong_convexity is None else strong_convexity,
            examples_per_client=1,
            dtype=torch.float64,
        )
        assert data.cluster_of is not None
        centres = torch.cat([data.client(i)[0] for i in range(num_clients)])
        seats = [_shuffled(num_clients, num_clusters, copy) for copy in range(copies)]
        return cls(
            centres=torch.cat([centres[seat] for seat in seats], dim=1),
            curvatures=data.curvature.expand(num_clients, -1).repeat(1, copies),
            cluster_of=data.cluster_of,
            sigma2=sigma2,
            copies=copies,
        )

    @property
    def smoothness(self) -> float:
        """L."""
        return float(self.curvatures.max())

    @property
    def optimum(self) -> Tensor:  # (d,)
        """Where ∇f = 0."""
        return (self.curvatures * self.centres).sum(0) / self.curvatures.sum(0)

    def client_gradients(self, w: Tensor) -> Tensor:  # (d,) -> (N, d)
        """∇f_i(w)."""
        return self.curvatures * (w - self.centres)

    def gap(self, w: Tensor) -> float:
        """f(w) − f*, of one copy; the mean over copies."""
        return (
            float((self.curvatures.mean(0) * (w - self.optimum).square()).sum()) / 2 / self.copies
        )

    def gradient_norms2(self, path: Tensor) -> Tensor:  # (T, d) -> (T, R)
        """‖∇f(w)‖² along a path, in each copy."""
        gradients = self.curvatures.mean(0) * (path - self.optimum)
        return gradients.square().view(len(path), self.copies, -1).sum(2)

    def train(self, broadcast: Broadcast, num_steps: int, lr: float, seed: int) -> RoundUpdates:
        """Algorithm 1 at all clients of the broadcast at once."""
        clients = broadcast.clients
        h, b = self.curvatures[clients], self.centres[clients]
        draw = stream(seed, "noise", broadcast.round)
        local = broadcast.w.expand(len(clients), -1)
        for _ in range(num_steps):
            noise = torch.randn(local.shape, generator=draw, dtype=torch.float64)
            noise *= math.sqrt(self.sigma2 * self.copies / local.shape[1])
            local = local - lr * (h * (local - b) + noise)
        steps = torch.full((len(clients),), num_steps)
        deltas = (broadcast.w - local) / lr
        return RoundUpdates(clients, deltas, steps, torch.ones_like(steps), scale=lr)

    def run(
        self,
        algorithm: str,
        w: Tensor,
        *,
        clients_per_round: int,
        num_steps: int,
        client_lr: float,
        server_lr: float,
        rounds: int,
        seed: int,
    ) -> Tensor:  # (T, d)
        """w⁰ … w^(T−1) of the algorithm."""
        num_clients, dim = self.centres.shape
        settings = TableSettings(num_clients, dim, codec="float64", cluster_of=self.cluster_of)
        server = Server(w, make_algorithm(algorithm, settings), ServerSGD(lr=server_lr))
        sampler = UniformSampler(num_clients, clients_per_round, seed)
        path = torch.empty(rounds, dim, dtype=torch.float64)
        for t in range(rounds):
            path[t] = server.w
            broadcast = server.broadcast(sampler.cohort(t).clients)
            server.receive(self.train(broadcast, num_steps, client_lr, seed))
        return path


def _shuffled(num_clients: int, num_clusters: int, copy: int) -> Tensor:  # (N,)
    """A random order of the clients that keeps clusters together; the given one for copy 0."""
    seats = torch.arange(num_clients).view(num_clusters, -1)
    if copy:
        draw = stream(0, "seats", copy)
        seats = seats[torch.randperm(num_clusters, generator=draw)]
        seats = torch.stack([row[torch.randperm(len(row), generator=draw)] for row in seats])
    return seats.flatten()
