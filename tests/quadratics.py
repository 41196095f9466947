"""A small federation whose every number can be worked out: clients with quadratic losses."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedvarp import Broadcast, RoundUpdates, stream


@dataclass(frozen=True)
class Quadratics:
    """f_i(w) = ½ (w − b_i)ᵀ diag(h_i) (w − b_i), trained by τ_i plain gradient steps."""

    centres: Tensor  # (N, d)
    curvatures: Tensor  # (N, d)
    client_lr: float = 0.1

    @classmethod
    def make(
        cls, num_clients: int, dim: int, dtype: torch.dtype = torch.float64, seed: int = 0
    ) -> Quadratics:
        generator = stream(seed, "quadratics")
        return cls(
            centres=torch.randn(num_clients, dim, generator=generator, dtype=dtype),
            curvatures=0.5 + torch.rand(num_clients, dim, generator=generator, dtype=dtype),
        )

    @property
    def num_clients(self) -> int:
        return self.centres.shape[0]

    @property
    def dim(self) -> int:
        return self.centres.shape[1]

    def gradient(self, client: int, w: Tensor) -> Tensor:
        return self.curvatures[client] * (w - self.centres[client])

    def optimum(self) -> Tensor:
        """Where Σ h_i (w − b_i) = 0."""
        return (self.curvatures * self.centres).sum(0) / self.curvatures.sum(0)

    def train(
        self, broadcast: Broadcast, num_steps: int | Tensor = 5, normalised: bool = False
    ) -> RoundUpdates:
        """Algorithm 1 at every client of the broadcast, one after the other.

        Args:
            broadcast: What the server sent.
            num_steps: Of each client; (N,) if they differ.
            normalised: Whether updates are divided by the steps, and the server's step is longer by
                the mean over all clients.
        """
        size = len(broadcast.clients)
        steps = torch.as_tensor(num_steps).expand(self.num_clients)
        deltas = [
            self.local_sgd(
                client,
                broadcast.w,
                int(steps[client]),
                _row(broadcast.corrections, m),
                broadcast.proximal,
            )
            for m, client in enumerate(broadcast.clients.tolist())
        ]
        taken = steps[broadcast.clients]
        by = taken.to(self.centres) if normalised else torch.ones(size).to(self.centres)
        return RoundUpdates(
            clients=broadcast.clients,
            deltas=torch.stack(deltas) / by.unsqueeze(1),
            num_steps=taken,
            num_examples=torch.full((size,), 1),
            num_gradients=taken / by.double(),
            scale=self.client_lr * (float(steps.double().mean()) if normalised else 1.0),
        )

    def local_sgd(
        self,
        client: int,
        w: Tensor,
        num_steps: int,
        correction: Tensor | float = 0.0,
        proximal: float = 0.0,
    ) -> Tensor:
        local = w.clone()
        for _ in range(num_steps):
            pull = proximal * (local - w)
            local = local - self.client_lr * (self.gradient(client, local) + correction + pull)
        return (w - local) / self.client_lr

    def cohort(self, round_: int, size: int, seed: int = 0) -> Tensor:
        shuffled = torch.randperm(self.num_clients, generator=stream(seed, "cohort", round_))
        return shuffled[:size].sort().values


def _row(corrections: Tensor | None, m: int) -> Tensor | float:
    return 0.0 if corrections is None else corrections[m]
