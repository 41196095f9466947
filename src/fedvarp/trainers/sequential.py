"""The plain loop that every faster trainer is tested against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from fedvarp.algorithms.round_updates import RoundUpdates
from fedvarp.clients.compiled_gradient import CompiledGradient
from fedvarp.clients.local_sgd import LocalResult, LocalSGD, Loss
from fedvarp.data import FederatedDataset
from fedvarp.server.flat_model import FlatModel
from fedvarp.server.server import Broadcast
from fedvarp.tables.largest_entries import LargestEntries

DIVERGED: Final = "its loss or weights turned non-finite; lower the client rate"


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
    compiled: CompiledGradient | None = None

    def train(self, broadcast: Broadcast, clients: Tensor, round: int) -> RoundUpdates:
        """LocalSGD at each of the clients."""
        results: dict[int, LocalResult] = {}
        buffers: dict[int, Mapping[str, Tensor]] = {}
        corrections = corrections_of(broadcast)
        for client in clients.tolist():
            results[client] = self.train_one(
                broadcast.w, broadcast.buffers, client, round, corrections.get(client)
            )
            if broadcast.buffers:
                buffers[client] = self.model.buffers()
        return gather(results, buffers, broadcast.w)

    def train_one(
        self,
        w: Tensor,
        buffers: Mapping[str, Tensor],
        client: int,
        round: int,
        correction: Tensor | None,
    ) -> LocalResult:
        """LocalSGD at one client; the model is left with that client's buffers."""
        if buffers:
            self.model.load_buffers(buffers)
        x, y = self.dataset.client(client)
        return self.local_sgd.train(
            self.model,
            self.loss,
            w,
            (x.to(w.device), y.to(w.device)),
            seed=self.seed,
            round=round,
            client=client,
            correction=correction,
            augment=self.dataset.augment,
            compiled=self.compiled,
        )


def corrections_of(broadcast: Broadcast) -> dict[int, Tensor]:
    """The correction of each client, (d,); empty if the algorithm has none."""
    if broadcast.corrections is None:
        return {}
    return dict(zip(broadcast.clients.tolist(), broadcast.corrections, strict=True))


def gather(
    results: Mapping[int, LocalResult], buffers: Mapping[int, Mapping[str, Tensor]], w: Tensor
) -> RoundUpdates:
    """The results of a round's clients, copied and stacked; those that diverged are refused."""
    kept = {client: result for client, result in results.items() if not result.diverged}
    rows = [result.delta for result in kept.values()]
    deltas = torch.stack(rows) if rows else w.new_empty(0, len(w))
    return RoundUpdates(
        clients=torch.tensor(list(kept), dtype=torch.int64),
        deltas=deltas,
        measured=LargestEntries.known([result.magnitude for result in kept.values()], deltas),
        num_steps=torch.tensor([r.num_steps for r in kept.values()], dtype=torch.int64),
        num_examples=torch.tensor([r.num_examples for r in kept.values()], dtype=torch.int64),
        scale=sum(r.walk for r in kept.values()) / len(kept) if kept else 1.0,
        refused={client: DIVERGED for client in results if client not in kept},
        buffers={client: of_client for client, of_client in buffers.items() if client in kept},
        losses={client: result.mean_loss for client, result in kept.items()},
    )
