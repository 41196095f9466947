"""The examples of a round's clients, cut into batches that all of them read at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, zip_longest
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedvarp.clients import local_training
from fedvarp.clients.local_sgd import LocalSGD
from fedvarp.data.federated_dataset import Augmentation, FederatedDataset, Gathered
from fedvarp.errors import InvalidError
from fedvarp.randomness import stream
from fedvarp.server.server import Broadcast
from fedvarp.trainers.sequential import corrections_by_client

_PADDING: Final = -1
_SMALL: Final = 2**24  # bytes of inputs that are copied once for each time they are read


@dataclass(frozen=True, eq=False)
class BatchedCohort:
    """The clients of a round, those with the most steps first, and all of their batches."""

    order: list[int]  # which of the round's clients stands where
    num_examples: list[int]
    num_steps: list[int]
    corrections: Tensor | None  # (M, d)
    x: Tensor  # (n, ...), the examples of all clients; (steps, M, batch size, ...) in order
    y: Tensor  # as x
    batches: Tensor | None  # (steps, M, batch size) rows of x and y, or _PADDING; None: in order
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
        x, y, rows, lengths = _loaded(dataset, clients)
        sizes = {n: tuple(sgd.batch_sizes(n)) for n in set(lengths)}
        order, ordered, num_examples = list(range(len(clients))), clients, lengths
        if len(sizes) > 1:
            order.sort(key=lambda m: -len(sizes[lengths[m]]))
            ordered, num_examples = [clients[m] for m in order], [lengths[m] for m in order]
        first = list(accumulate(lengths, initial=0))
        drawn = _batches(sgd, seed, round, ordered, sizes, num_examples, [first[m] for m in order])
        alike = len({size for of_size in sizes.values() for size in of_size}) == len(sizes) == 1
        # One gather for all steps, where that copies little or nothing.
        in_order = alike and (drawn.numel() <= len(rows) or drawn.numel() * x[0].nbytes <= _SMALL)
        if in_order:
            rows = rows[drawn.view(-1)]
        x, y = (part.index_select(0, rows).to(device) for part in (x, y))
        if in_order:
            x, y = (part.view(*drawn.shape, *part.shape[1:]) for part in (x, y))
        by_client = corrections_by_client(broadcast)
        augment = dataset.augment
        return cls(
            order=order,
            num_examples=num_examples,
            num_steps=[len(sizes[n]) for n in num_examples],
            corrections=torch.stack([by_client[i] for i in ordered]) if by_client else None,
            x=x,
            y=y,
            batches=None if in_order else drawn.to(device),
            sizes=_by_step([sizes[n] for n in num_examples], alike=len(sizes) == 1),
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
        if self.batches is None:
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


def _by_step(of_clients: Sequence[tuple[int, ...]], alike: bool) -> list[list[int]]:
    """Of each step: the sizes of the batches of those who take it."""
    if alike:
        return [[size] * len(of_clients) for size in of_clients[0]]
    return [[size for size in of_step if size] for of_step in zip_longest(*of_clients)]


def _batches(
    sgd: LocalSGD,
    seed: int,
    round: int,
    clients: Sequence[int],
    sizes: Mapping[int, tuple[int, ...]],
    num_examples: Sequence[int],
    first: Sequence[int],
) -> Tensor:
    """(steps, M, batch size): what is read when, or _PADDING; a client's own begin at `first`."""
    widest, most_steps = (max(map(of, sizes.values())) for of in (max, len))
    # NumPy reads the same memory: on a handful of numbers its operations take a fifth of torch's.
    begins, places = np.array(first)[:, None], np.empty(0, dtype=np.int64)
    for n, of_size in sizes.items():  # which is all of them at once where clients are alike
        own = [m for m, length in enumerate(num_examples) if length == n]
        drawn = local_training.orders(sgd, n, seed, round, [clients[m] for m in own]).numpy()
        drawn = drawn + begins[own]
        if drawn.size == len(clients) * most_steps * widest:  # all of them, without padding
            places = drawn
            break
        if not places.size:
            places = np.full((len(clients), most_steps * widest), _PADDING)
        places[np.array(own)[:, None], _places(of_size, widest)] = drawn
    by_step = places.reshape(len(clients), most_steps, widest).swapaxes(0, 1)
    return torch.from_numpy(np.ascontiguousarray(by_step))


@lru_cache(maxsize=1024)
def _places(sizes: tuple[int, ...], widest: int) -> NDArray[np.int64]:
    """Where the examples of a client's batches stand in its padded (steps, widest) rows."""
    steps = np.repeat(np.arange(len(sizes)), sizes)
    within = np.concatenate([np.arange(size) for size in sizes])
    places: NDArray[np.int64] = steps * widest + within
    return places


def _loaded(dataset: FederatedDataset, clients: list[int]) -> Gathered:
    """The examples of all clients, one client after the other."""
    gathered = dataset.gathered(clients)
    if gathered is not None:
        return gathered
    inputs, targets = map(list, zip(*map(dataset.client, clients), strict=True))
    lengths = list(map(len, inputs))
    return Gathered(_together(inputs), _together(targets), torch.arange(sum(lengths)), lengths)


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
