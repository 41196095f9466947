"""Federations of quadratics of which one knows what is wrong with a step."""

from __future__ import annotations

import torch
from torch import Tensor

from fedvarp import stream
from fedvarp.data import FederatedDataset, from_tensors

DIM = 6


def _clients(centres: Tensor, curvatures: Tensor, noise: float, examples: int) -> FederatedDataset:
    """Client i: ½ h_i ‖w − x‖² over examples x around its centre, whose mean is the centre."""
    draw = stream(0, "examples")
    parts = []
    for centre, curvature in zip(centres, curvatures, strict=True):
        around = noise * torch.randn(examples, DIM, generator=draw)
        x = centre + around - around.mean(0)
        parts.append((x, curvature.expand(examples, -1).clone()))
    return from_tensors(parts)


def identical(num_clients: int = 20, noise: float = 0.0) -> FederatedDataset:
    """All clients have the very same examples of curvatures from 0.5 to 2."""
    one = _clients(torch.ones(1, DIM), torch.linspace(0.5, 2, DIM)[None], noise, 10).client(0)
    return from_tensors([one] * num_clients)


def identical_of_unequal_sizes() -> FederatedDataset:
    """The same examples once at some clients, and two or five times over at others."""
    x, y = identical(1, noise=0.5).client(0)
    return from_tensors([(x.repeat(k, 1), y.repeat(k, 1)) for k in (1, 1, 2, 5) * 3])


def apart(num_clients: int = 20, noise: float = 0.0) -> FederatedDataset:
    """Centres here and there, all of the same curvature."""
    centres = torch.randn(num_clients, DIM, generator=stream(0, "centres")) + 1
    return _clients(centres, torch.ones(num_clients, DIM), noise, 10)


def drifting(num_clients: int = 20) -> FederatedDataset:
    """Steep clients on one side, flat ones on the other: each walks to its own end."""
    centres = torch.ones(num_clients, DIM) * torch.tensor([1.0, -3.0] * (num_clients // 2))[:, None]
    curvatures = (
        torch.ones(num_clients, DIM) * torch.tensor([2.0, 0.1] * (num_clients // 2))[:, None]
    )
    return _clients(centres, curvatures, 0.0, 10)


def noisy(num_clients: int = 20) -> FederatedDataset:
    """All clients have the same mean, and examples all over the place."""
    return _clients(torch.ones(num_clients, DIM), torch.ones(num_clients, DIM), 3.0, 200)


def one_large(num_clients: int = 10) -> FederatedDataset:
    """Clients of curvature 1: the first has 200 examples, all others ten."""
    return _of_sizes([200] + [10] * (num_clients - 1), [1.0] * num_clients)


def one_small_and_steep(num_clients: int = 10) -> FederatedDataset:
    """The first client has one example of curvature 10, all others fifty of curvature 0.1."""
    return _of_sizes([1] + [50] * (num_clients - 1), [10.0] + [0.1] * (num_clients - 1))


def _of_sizes(sizes: list[int], curvatures: list[float]) -> FederatedDataset:
    draw = stream(0, "sizes")
    return from_tensors(
        [
            (torch.randn(size, DIM, generator=draw), torch.full((size, DIM), curvature))
            for size, curvature in zip(sizes, curvatures, strict=True)
        ]
    )


def one_steep(num_clients: int = 40, steep: int = 17) -> FederatedDataset:
    """One client of curvature 100 among those of curvature 1, all with the same centre but it."""
    centres, curvatures = torch.ones(num_clients, DIM), torch.ones(num_clients, DIM)
    curvatures[steep], centres[steep] = 100.0, 2.0
    return _clients(centres, curvatures, 0.0, 10)
