"""The plain loop that every faster trainer is tested against."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from fedvarp.algorithms.round_updates import RoundUpdates
from fedvarp.clients import local_training
from fedvarp.clients.local_sgd import LocalSGD
from fedvarp.clients.local_training import GradientOf, LocalResult, Loss
from fedvarp.data.federated_dataset import FederatedDataset
from fedvarp.server.flat_model import FlatModel
from fedvarp.server.server import Broadcast
from fedvarp.tables.largest_entries import LargestEntries
from fedvarp.trainers.base import ClientTrainer

DIVERGED: Final = "its loss or weights turned non-finite; lower the client rate"
"""Why a client is refused whose training diverged."""


@dataclass(frozen=True, eq=False)
class SequentialTrainer(ClientTrainer):
    """Trains one client after the other, in this process.

    Attributes:
        dataset: The clients' examples.
        model: Computes the output, on the device it is trained on.
        loss: (output, targets) → mean loss of a batch.
        local_sgd: What a client does.
        seed: The run's seed.
        gradient_of: Takes the gradients of batches, if given; else the model does.
    """

    dataset: FederatedDataset
    model: FlatModel
    loss: Loss
    local_sgd: LocalSGD
    seed: int
    gradient_of: GradientOf | None = None

    def train(self, broadcast: Broadcast, clients: Tensor, round: int) -> RoundUpdates:
        """See `ClientTrainer.train`."""
        results: dict[int, LocalResult] = {}
        buffers: dict[int, Mapping[str, Tensor]] = {}
        corrections = corrections_by_client(broadcast)
        deltas = broadcast.w.new_empty(len(clients), len(broadcast.w))
        for row, client in zip(deltas, clients.tolist(), strict=True):
            result = self.train_one(
                broadcast.w,
                broadcast.buffers,
                client,
                round,
                corrections.get(client),
                broadcast.proximal,
            )
            results[client] = replace(result, delta=row.copy_(result.delta))
            if broadcast.buffers:
                buffers[client] = self.model.buffers()
        return gather(results, buffers, deltas, self.local_sgd.rate(round))

    def train_one(
        self,
        w: Tensor,
        buffers: Mapping[str, Tensor],
        client: int,
        round: int,
        correction: Tensor | None,
        proximal: float,
        gradient_of: GradientOf | None = None,
    ) -> LocalResult:
        """Runs LocalSGD at one client; the model is left with that client's buffers.

        Args:
            w: (d,), the server's model; not changed.
            buffers: The buffers sent with it.
            client: i.
            round: t.
            correction: (d,), added to each gradient; None: nothing is.
            proximal: ρ, adds ρ (w_i − w) to each gradient.
            gradient_of: Takes its gradients; None: as the trainer does for every client.

        Returns:
            What local training leaves behind, finite or not.
        """
        if buffers:
            self.model.load_buffers(buffers)
        x, y = self.dataset.client(client)
        return local_training.train(
            self.local_sgd,
            self.model,
            self.loss,
            w,
            (x.to(w.device), y.to(w.device)),
            seed=self.seed,
            round=round,
            client=client,
            correction=correction,
            proximal=proximal,
            augment=self.dataset.augment,
            gradient_of=self.gradient_of if gradient_of is None else gradient_of,
        )


def corrections_by_client(broadcast: Broadcast) -> dict[int, Tensor]:
    """Looks up which correction belongs to which client.

    Args:
        broadcast: What the server sent.

    Returns:
        The correction of each client, (d,); empty if the algorithm has none.
    """
    if broadcast.corrections is None:
        return {}
    return dict(zip(broadcast.clients.tolist(), broadcast.corrections, strict=True))


def gather(
    results: Mapping[int, LocalResult],
    buffers: Mapping[int, Mapping[str, Tensor]],
    deltas: Tensor,
    rate: float,
) -> RoundUpdates:
    """Puts the results of a round's clients together.

    Args:
        results: By client, in the order of the round.
        buffers: By client; empty for a model without buffers.
        deltas: (M, d), their updates, one below the other.
        rate: η_c of the round.

    Returns:
        The updates; clients that diverged are refused.
    """
    found = list(results.values())
    return updates(
        list(results),
        deltas,
        magnitudes=[result.magnitude for result in found],
        mean_losses=[result.mean_loss for result in found],
        num_steps=[result.num_steps for result in found],
        num_examples=[result.num_examples for result in found],
        num_gradients=[result.num_gradients for result in found],
        buffers=buffers,
        rate=rate,
    )


def updates(
    clients: Sequence[int],
    deltas: Tensor,
    *,
    magnitudes: Sequence[float],
    mean_losses: Sequence[float],
    num_steps: Sequence[int],
    num_examples: Sequence[int],
    num_gradients: Sequence[float],
    buffers: Mapping[int, Mapping[str, Tensor]],
    rate: float,
) -> RoundUpdates:
    """What the clients of a round send back, of whom some may have diverged.

    Args:
        clients: In the order of the round.
        deltas: (M, d), their updates.
        magnitudes: The largest absolute value of each; NaN if it holds one.
        mean_losses: Of each, over its steps.
        num_steps: How many steps each took.
        num_examples: How many examples each holds.
        num_gradients: How many gradients each update adds up.
        buffers: By client; empty for a model without buffers.
        rate: η_c of the round.

    Returns:
        The updates; clients that diverged are refused.
    """
    finite = [
        math.isfinite(a) and math.isfinite(b) for a, b in zip(magnitudes, mean_losses, strict=True)
    ]
    whole = RoundUpdates(
        clients=torch.tensor(clients, dtype=torch.int64),
        deltas=deltas,
        measured=LargestEntries.known(magnitudes, deltas),
        num_steps=torch.tensor(num_steps, dtype=torch.int64),
        num_examples=torch.tensor(num_examples, dtype=torch.int64),
        num_gradients=torch.tensor(num_gradients, dtype=torch.float64),
        scale=rate,
        buffers=buffers,
        losses=dict(zip(clients, mean_losses, strict=True)),
    )
    if all(finite):
        return whole
    refused = {client: DIVERGED for client, good in zip(clients, finite, strict=True) if not good}
    return replace(
        whole.keep([m for m, good in enumerate(finite) if good], refused),
        buffers={
            client: of_client for client, of_client in buffers.items() if client not in refused
        },
        losses={client: loss for client, loss in whole.losses.items() if client not in refused},
    )
