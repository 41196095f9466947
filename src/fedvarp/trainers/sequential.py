"""The plain loop that every faster trainer is tested against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedvarp.data import FederatedDataset
from fedvarp.flat_model import FlatModel
from fedvarp.local_sgd import LocalResult, LocalSGD, Loss
from fedvarp.round_updates import RoundUpdates
from fedvarp.server import Broadcast


@dataclass(frozen=True, eq=False)
class SequentialTrainer:
    """One client after the other, in this process.

    A client whose loss or weights turn non-finite has no row in the result; it is named in
    `refused`, and the round goes on without it.
    """

    dataset: FederatedDataset
    model: FlatModel
    loss: Loss
    local_sgd: LocalSGD
    seed: int

    def train(self, broadcast: Broadcast, clients: Tensor, round: int) -> RoundUpdates:
        """LocalSGD at each of the clients."""
        position = {client: m for m, client in enumerate(broadcast.clients.tolist())}
        results: dict[int, LocalResult] = {}
        buffers: dict[int, Mapping[str, Tensor]] = {}
        refused: dict[int, str] = {}
        for client in clients.tolist():
            if broadcast.buffers:
                self.model.load_buffers(broadcast.buffers)
            x, y = self.dataset.client(client)
            result = self.local_sgd.train(
                self.model,
                self.loss,
                broadcast.w,
                (x.to(broadcast.w.device), y.to(broadcast.w.device)),
                seed=self.seed,
                round=round,
                client=client,
                correction=None
                if broadcast.corrections is None
                else broadcast.corrections[position[client]],
                augment=self.dataset.augment,
            )
            if result.diverged:
                refused[client] = "its loss or weights turned non-finite; lower the client rate"
                continue
            results[client] = result
            if broadcast.buffers:
                buffers[client] = self.model.buffers()
        return gather(results, buffers, refused, broadcast.w)


def gather(
    results: Mapping[int, LocalResult],
    buffers: Mapping[int, Mapping[str, Tensor]],
    refused: Mapping[int, str],
    w: Tensor,
) -> RoundUpdates:
    """The results of a round's clients, stacked."""
    kept = list(results.values())
    deltas = torch.stack([r.delta for r in kept]) if kept else w.new_empty(0, len(w))
    return RoundUpdates(
        clients=torch.tensor(list(results), dtype=torch.int64),
        deltas=deltas,
        num_steps=torch.tensor([r.num_steps for r in kept], dtype=torch.int64),
        num_examples=torch.tensor([r.num_examples for r in kept], dtype=torch.int64),
        scale=sum(r.walk for r in kept) / len(kept) if kept else 1.0,
        refused=dict(refused),
        buffers=dict(buffers),
        losses={client: result.mean_loss for client, result in results.items()},
    )
