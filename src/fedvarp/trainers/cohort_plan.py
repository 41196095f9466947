"""Which examples the clients of a round read when: nothing of it depends on the server.

Rounds that are foretold are planned together. Drawn one after the other, while code and tables lie
in the processor's nearest caches, batches cost a third of what they cost between two rounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, zip_longest
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedvarp.clients import local_training
from fedvarp.clients.local_sgd import LocalSGD
from fedvarp.data.federated_dataset import FederatedDataset, Gathered
from fedvarp.errors import InvalidError

PADDING: Final = -1
"""In the place of an example, where a client's batch has fewer than another's."""

_SMALL: Final = 2**24  # bytes of inputs that are copied once for each time they are read
_MOST_AHEAD: Final = 2**18  # places in the batches of rounds ahead; more is time better spent later


@dataclass(frozen=True, eq=False)
class CohortPlan:
    """The clients of a round, those with the most steps first, and what they read."""

    round: int
    clients: list[int]
    order: list[int]  # which of the round's clients stands where
    ordered: list[int]  # the clients in that order
    num_examples: list[int]
    num_steps: list[int]
    x: Tensor  # (n, ...), the examples of all clients, and perhaps of others
    y: Tensor
    rows: Tensor  # of x and y: (steps, M, batch size) in order; (m,), of one client after another
    batches: Tensor | None  # (steps, M, batch size) places in `rows`, or PADDING; None: in order
    sizes: list[list[int]]  # of each step: the batches of those who take it, who stand first


@dataclass(eq=False)
class CohortPlans:
    """Plans rounds, the same batches as `local_training.train` would draw.

    Attributes:
        dataset: The clients' examples.
        sgd: What a client does.
        seed: The run's seed.
    """

    dataset: FederatedDataset
    sgd: LocalSGD
    seed: int
    _ahead: dict[int, CohortPlan] = field(default_factory=dict, init=False)

    def foretell(self, cohorts: Mapping[int, list[int]]) -> None:
        """Plans small rounds to come, and forgets those that were planned before.

        Only where no example has to be looked at for it: what loads or prepares examples may depend
        on when it is asked, or fail.

        Args:
            cohorts: By round, who will be trained.
        """
        self._ahead = {}
        if self._are_small([i for clients in cohorts.values() for i in clients]):
            self._ahead = {t: self.of(t, clients) for t, clients in cohorts.items() if clients}

    def of(self, round: int, clients: list[int]) -> CohortPlan:
        """Plans a round, unless that was done before.

        Args:
            round: t.
            clients: Those who will be trained.

        Raises:
            ValueError: Their examples have different shapes.
        """
        foretold = self._ahead.get(round)
        if foretold is not None and foretold.clients == clients:
            return foretold
        x, y, rows, lengths = _loaded(self.dataset, clients)
        sizes = {n: tuple(self.sgd.batch_sizes(n)) for n in set(lengths)}
        order, ordered, num_examples = list(range(len(clients))), clients, lengths
        if len(sizes) > 1:
            order.sort(key=lambda m: -len(sizes[lengths[m]]))
            ordered, num_examples = [clients[m] for m in order], [lengths[m] for m in order]
        first = list(accumulate(lengths, initial=0))
        drawn = self._batches(round, ordered, num_examples, sizes, [first[m] for m in order])
        alike = len({size for of_size in sizes.values() for size in of_size}) == len(sizes) == 1
        # One gather for all steps, where that copies little or nothing.
        in_order = alike and (drawn.numel() <= len(rows) or drawn.numel() * x[0].nbytes <= _SMALL)
        return CohortPlan(
            round=round,
            clients=clients,
            order=order,
            ordered=ordered,
            num_examples=num_examples,
            num_steps=[len(sizes[n]) for n in num_examples],
            x=x,
            y=y,
            rows=rows[drawn] if in_order else rows,
            batches=None if in_order else drawn,
            sizes=_by_step([sizes[n] for n in num_examples], alike=len(sizes) == 1),
        )

    def _are_small(self, clients: list[int]) -> bool:
        """Whether rounds of these clients can be planned without a look at them, and are small."""
        sizes = self.dataset.num_examples
        if sizes is None or not self.dataset.rows_are_known or not clients:
            return False
        if not 0 <= min(clients) <= max(clients) < self.dataset.num_clients:
            return False  # there is no such client, which is refused when its round is due
        num_examples: list[int] = sizes[torch.tensor(clients)].tolist()
        if sum(num_examples) > _MOST_AHEAD:
            return False
        of_sizes = [self.sgd.batch_sizes(n) for n in set(num_examples)]
        return len(clients) * max(map(len, of_sizes)) * max(map(max, of_sizes)) <= _MOST_AHEAD

    def _batches(
        self,
        round: int,
        clients: Sequence[int],
        num_examples: Sequence[int],
        sizes: Mapping[int, tuple[int, ...]],
        first: Sequence[int],
    ) -> Tensor:
        """(steps, M, batch size), what is read, or PADDING; a client's own begin at `first`."""
        widest, most_steps = (max(map(of, sizes.values())) for of in (max, len))
        # NumPy reads the same memory: on a handful of numbers its operations take a fifth of
        # torch's.
        begins, places = np.array(first)[:, None], np.empty(0, dtype=np.int64)
        for n, of_size in sizes.items():  # which is all of them at once where clients are alike
            own = [m for m, length in enumerate(num_examples) if length == n]
            with_n = [clients[m] for m in own]
            drawn = local_training.orders(self.sgd, n, self.seed, round, with_n).numpy()
            drawn = drawn + begins[own]
            if drawn.size == len(clients) * most_steps * widest:  # all of them, without padding
                places = drawn
                break
            if not places.size:
                places = np.full((len(clients), most_steps * widest), PADDING)
            places[np.array(own)[:, None], _places(of_size, widest)] = drawn
        by_step = places.reshape(len(clients), most_steps, widest).swapaxes(0, 1)
        return torch.from_numpy(np.ascontiguousarray(by_step))


def _by_step(of_clients: Sequence[tuple[int, ...]], alike: bool) -> list[list[int]]:
    """Of each step: the sizes of the batches of those who take it."""
    if alike:
        return [[size] * len(of_clients) for size in of_clients[0]]
    return [[size for size in of_step if size] for of_step in zip_longest(*of_clients)]


def _places(sizes: tuple[int, ...], widest: int) -> NDArray[np.int64]:
    """Where the examples of a client's batches stand in its padded (steps, widest) rows."""
    return np.flatnonzero(np.arange(widest) < np.array(sizes)[:, None])


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
