"""Any algorithm over updates that are shortened to a multiple of their running median norm."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Final

import torch
from torch import Tensor

from fedvarp.algorithms.aggregator import Aggregator
from fedvarp.algorithms.round_updates import RoundUpdates
from fedvarp.errors import InvalidError
from fedvarp.settings.bounds import AboveOne
from fedvarp.settings.checked import check_fields
from fedvarp.tables.base import ClientTable
from fedvarp.tables.largest_entries import LargestEntries

WINDOW: Final = 100
"""How many norms the running median is taken of."""

_FORWARDED: Final = (
    "vectors_down",
    "vectors_up",
    "counts_steps",
    "needs_gradients",
    "needs_models",
    "needs_equal_weights",
    "withstands_outliers",
)


@dataclass(eq=False)
class Clipped(Aggregator):
    """An algorithm that no client can push further than a multiple of what clients mostly send.

    A row is replayed in every round until its client returns, so that one bad update costs FedVARP
    and its kin more than FedAvg. Here both v and the rows are bounded: an update longer than
    c · median is shortened to that length before the algorithm sees it. The median is that of the
    norms of the last hundred updates that were used, as they were used, so that nobody can raise it
    by more than a factor c at once, nor at all while most are honest. Before there are any it is
    the median of the cohort itself: a bad reply in the very first round counts in full if it comes
    alone. Of an even number of norms the smaller middle one is taken. An update of zeros says
    nothing of how long others are, and is not counted.

    Where rows are means of gradients, Δ_i / τ_i (SCAFFOLD), these are bounded in the same way, by
    taking τ_i for more than was said: what is bounded is what is kept.

    What is not clipped is passed on as it came: such rounds are the algorithm's own to the bit.
    What is clipped counts for less, so that E[v] is biased where it clips. Honest updates differ in
    length too: plain differences of models grow with the number of local steps, so that a client
    that takes more than c times as many as the median counts as if it had taken c times as many
    (`normalise_steps` makes up for that), and updates that grow quickly are held back to a factor
    c for each half window.

    Args:
        aggregator: The algorithm.
        multiple: c, above 1.

    >>> from fedvarp import FedAvg
    >>> clipped = Clipped(FedAvg(), multiple=3.0)
    >>> S, ones = torch.arange(3), torch.ones(3, dtype=torch.int64)
    >>> updates = RoundUpdates(S, torch.tensor([[1.0], [1.0], [100.0]]), ones, ones, scale=0.1)
    >>> clipped.aggregate(updates)  # (1 + 1 + 3) / 3
    tensor([1.6667])
    >>> clipped.admit(updates).shortened
    frozenset({2})
    """

    unbiased: ClassVar[bool] = False  # where it clips
    full_is_fedavg: ClassVar[bool] = False
    bounds_lengths: ClassVar[bool] = True

    aggregator: Aggregator
    multiple: AboveOne = 3.0

    def __post_init__(self) -> None:
        check_fields(self)
        if self.aggregator.bounds_lengths:
            raise InvalidError("Clipped(Clipped(…)): updates are clipped already; clip them once.")
        for name in _FORWARDED:
            setattr(self, name, getattr(self.aggregator, name))
        self._norms: list[float] = []  # of the last updates used, newest last
        self._gradient_norms: list[float] = []  # ‖Δ_i‖ / τ_i of the same, where rows are such

    def aggregate(self, updates: RoundUpdates) -> Tensor:
        """What the algorithm makes of the clipped updates."""
        admitted = self.admit(updates)
        norms = admitted.norms  # as they are before the algorithm does with them what it likes
        v = self.aggregator.aggregate(admitted)
        self._remember(admitted, norms)
        return v

    def receive_late(self, updates: RoundUpdates) -> bool:
        """Late replies are clipped as all others are."""
        admitted = self.admit(updates)
        norms = admitted.norms
        used = self.aggregator.receive_late(admitted)
        if used:
            self._remember(admitted, norms)
        return used

    def admit(self, updates: RoundUpdates) -> RoundUpdates:
        """The updates, none of them too long; what is admitted already stays as it is."""
        clients, deltas = updates.clients.tolist(), updates.deltas
        norms, largest = updates.norms, list(updates.largest_entries.values)
        limit = self._limit(self._norms, norms)
        too_long = {m for m, norm in enumerate(norms) if norm > limit}
        if too_long:
            deltas = deltas.clone()
        for m in too_long:
            deltas[m] *= limit / norms[m]
            norms[m], largest[m] = limit, float(deltas[m].abs().max())
        measured = LargestEntries.known(largest, deltas, norms)
        if self.aggregator.needs_gradients:
            gradients, counts = _per_gradient(updates, norms), updates.gradient_counts.tolist()
            limit = self._limit(self._gradient_norms, gradients)
            too_few = {m for m, norm in enumerate(gradients) if norm > limit}
            if too_few:
                told = [norms[m] / limit if m in too_few else n for m, n in enumerate(counts)]
                updates = replace(updates, num_gradients=torch.tensor(told, dtype=torch.float64))
            too_long |= too_few
        shortened = updates.shortened | {clients[m] for m in too_long}
        return replace(updates, deltas=deltas, measured=measured, shortened=shortened)

    def _limit(self, earlier: list[float], now: list[float]) -> float:
        known = earlier or [norm for norm in now if norm > 0]
        return self.multiple * statistics.median_low(known) if known else math.inf

    def _remember(self, updates: RoundUpdates, norms: list[float]) -> None:
        self._norms = _newest(self._norms, norms)
        if self.aggregator.needs_gradients:
            self._gradient_norms = _newest(self._gradient_norms, _per_gradient(updates, norms))

    def state_dict(self) -> Mapping[str, Tensor]:
        """The norms of the last updates, and what the algorithm remembers."""
        own = {f"algorithm/{name}": t for name, t in self.aggregator.state_dict().items()}
        kept = {"norms": self._norms}
        if self.aggregator.needs_gradients:
            kept["gradient_norms"] = self._gradient_norms
        return {n: torch.tensor(norms, dtype=torch.float64) for n, norms in kept.items()} | own

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes back what `state_dict` gave.

        Args:
            tensors: By name.
        """
        self._norms = tensors["norms"].tolist()
        self._gradient_norms = tensors.get("gradient_norms", torch.empty(0)).tolist()
        own = {
            name.removeprefix("algorithm/"): tensor
            for name, tensor in tensors.items()
            if name.startswith("algorithm/")
        }
        if own:
            self.aggregator.load_state_dict(own)

    def describe(self) -> Mapping[str, object]:
        """What must be the same for a saved run to go on: the algorithm's, and c."""
        return {**self.aggregator.describe(), "clip_updates": self.multiple}

    # All else is the algorithm's

    @property
    def unwrapped(self) -> Aggregator:
        """The algorithm whose updates are clipped."""
        return self.aggregator.unwrapped

    @property
    def table(self) -> ClientTable | None:
        """The algorithm's table."""
        return self.aggregator.table

    @property
    def proximal(self) -> float:
        """The algorithm's ρ."""
        return self.aggregator.proximal

    def corrections(self, clients: Tensor) -> Tensor | None:
        """The algorithm's corrections, (M, d)."""
        return self.aggregator.corrections(clients)

    def without_replies(self) -> Tensor | None:
        """The algorithm's direction without replies, (d,)."""
        return self.aggregator.without_replies()


def _newest(earlier: list[float], now: list[float]) -> list[float]:
    return [*earlier, *(norm for norm in now if norm > 0)][-WINDOW:]


def _per_gradient(updates: RoundUpdates, norms: list[float]) -> list[float]:
    """‖Δ_i‖ / τ_i."""
    return [norm / n for norm, n in zip(norms, updates.gradient_counts.tolist(), strict=True)]
