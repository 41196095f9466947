"""The examples of a round's clients, cut into batches that all of them read at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Final

import torch
from torch import Tensor

from fedvarp.clients import local_training
from fedvarp.clients.local_sgd import LocalSGD
from fedvarp.data.federated_dataset import Augmentation, FederatedDataset
from fedvarp.errors import InvalidError
from fedvarp.randomness import stream
from fedvarp.server.server import Broadcast
from fedvarp.trainers.sequential import corrections_by_client

_PADDING: Final = -1


@dataclass(frozen=True, eq=False)
class BatchedCohort:
    """The clients of a round, those with the most steps first, and all of their batches."""

    order: list[int]  # which of the round's clients stands where
    num_examples: list[int]
    num_steps: list[int]
    corrections: Tensor | None  # (M, d)
    x: Tensor  # (n, ...), the examples of all clients; (steps, M, batch size, ...) in order
    y: Tensor  # as x
    batches: Tensor  # (steps, M, batch size) rows of x and y, or _PADDING
    in_order: bool  # whether x and y lie as they are read: each once, all batches of one size
    sizes: list[list[int]]  # of each step: the batches of those who take it, who stand first
    augment: Augmentation | None
    augmenting: list[torch.Generator]

    @classmethod
    def of(
        cls,
        dataset: FederatedDataset,
        sgd: LocalSGD,
        seed: int,
        broadcast: Broadcast,
        clients: list[int],
        round: int,
    ) -> BatchedCohort:
        """Loads the clients and draws their batches, the same as `local_training.train` would.

        Args:
            dataset: The clients' examples.
            sgd: What a client does.
            seed: The run's seed.
            broadcast: What the server sent.
            clients: Those who answer.
            round: t.

        Raises:
            ValueError: Their examples have different shapes.
        """
        device = broadcast.w.device
        x, y, lengths = _loaded(dataset, clients)
        sizes = {n: tuple(sgd.batch_sizes(n)) for n in set(lengths)}
        order = sorted(range(len(clients)), key=lambda m: -len(sizes[lengths[m]]))
        num_examples = [lengths[m] for m in order]
        num_steps = [len(sizes[n]) for n in num_examples]
        widest = max(max(of_size) for of_size in sizes.values())
        first = list(accumulate(lengths, initial=0))
        rows = torch.full((len(order), num_steps[0] * widest), _PADDING)
        for n, of_size in sizes.items():  # which is all of them at once where clients are alike
            where = [place for place, m in enumerate(order) if lengths[m] == n]
            own = [order[place] for place in where]
            drawn = local_training.orders(sgd, n, seed, round, [clients[m] for m in own])
            drawn = drawn + torch.tensor([first[m] for m in own]).unsqueeze(1)
            if drawn.shape == rows.shape:  # all of them, without padding
                rows = drawn
            else:
                rows[torch.tensor(where).unsqueeze(1), _places(of_size, widest)] = drawn
        batches = rows.view(len(order), -1, widest).transpose(0, 1).contiguous()
        in_order = batches.numel() == len(x) and len(sizes) == 1  # each is read once: one gather
        if in_order:
            read = batches.view(-1)
            x, y = (
                part.index_select(0, read).view(*batches.shape, *part.shape[1:]) for part in (x, y)
            )
        by_client = corrections_by_client(broadcast)
        augment, ordered = dataset.augment, [clients[m] for m in order]
        return cls(
            order=order,
            num_examples=num_examples,
            num_steps=num_steps,
            corrections=torch.stack([by_client[i] for i in ordered]) if by_client else None,
            x=x.to(device),
            y=y.to(device),
            batches=batches.to(device),
            in_order=in_order,
            sizes=[
                [sizes[n][step] for n in num_examples if step < len(sizes[n])]
                for step in range(num_steps[0])
            ],
            augment=augment,
            augmenting=[stream(seed, "augment", round, i) for i in ordered] if augment else [],
        )

    def batch(self, step: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """What is read in one step of all clients.

        Args:
            step: Its number.

        Returns:
            Inputs (A, B, ...), targets (A, B, ...) and which of them are real; None: all.
        """
        real = None
        if self.in_order:
            x, y = self.x[step], self.y[step]
        else:
            rows = self.batches[step, : len(self.sizes[step])]
            if min(self.sizes[step]) < rows.shape[1]:
                real = rows != _PADDING
                # Padding counts for nothing, but 0 · inf is NaN: it must not be another client's.
                rows = torch.where(real, rows, rows[:, :1])
            x, y = (part.index_select(0, rows.reshape(-1)) for part in (self.x, self.y))
            x, y = (part.view(*rows.shape, *part.shape[1:]) for part in (x, y))
        if self.augment is not None:
            for inputs, size, generator in zip(x, self.sizes[step], self.augmenting, strict=False):
                inputs[:size] = self.augment(inputs[:size], generator)
        return x, y, real


@lru_cache(maxsize=1024)
def _places(sizes: tuple[int, ...], widest: int) -> Tensor:
    """Where the examples of a client's batches stand in its padded (steps, widest) rows."""
    steps = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    within = torch.cat([torch.arange(size) for size in sizes])
    return steps * widest + within


def _loaded(dataset: FederatedDataset, clients: list[int]) -> tuple[Tensor, Tensor, list[int]]:
    """The examples of all clients, one client after the other, and how many each has."""
    gathered = dataset.gathered(clients)
    if gathered is not None:
        return gathered
    inputs, targets = zip(*map(dataset.client, clients), strict=True)
    return _together(inputs), _together(targets), list(map(len, inputs))


def _together(parts: Sequence[Tensor]) -> Tensor:
    """The examples of all clients in one tensor."""
    shapes = {tuple(part.shape[1:]) for part in parts}
    if len(shapes) > 1:
        some = " and ".join(str(shape) for shape in sorted(shapes)[:2])
        raise InvalidError(
            f"Clients hold examples of different shapes, {some}, which cannot be trained at once; "
            f'trainer="parallel" takes them.'
        )
    return torch.cat(list(parts))
