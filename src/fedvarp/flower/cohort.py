"""Who is asked in a round: clients are named first, then drawn by name, whatever their node ids.

The draw is that of a sampler in `fedvarp.clients` over the clients in the order of their names.
With everybody known and online the cohorts are those of `fedvarp.simulate`.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from logging import INFO
from typing import Final, Literal, overload

import torch
from flwr.serverapp import Grid
from flwr.supercore import log
from torch import Generator, Tensor

from fedvarp.clients.cohorts import ClientSampler
from fedvarp.clients.draws import random_subset, uniform_integers
from fedvarp.clients.importance_sampling import UNIFORM_SHARE, ImportanceSampler
from fedvarp.clients.round_robin import RoundRobinSampler
from fedvarp.clients.sampling import UniformSampler
from fedvarp.clients.stratified_sampling import StratifiedSampler
from fedvarp.errors import InvalidError, UnknownClientError
from fedvarp.flower.identity import Client, KnownClients, Presence
from fedvarp.flower.names import name_of_node, name_order
from fedvarp.randomness import stream

WhenOffline = Literal["replace", "fewer"]
Sampling = Literal["uniform", "stratified", "round_robin", "importance"]
Select = Callable[[int, Sequence[str]], Iterable[str]]
"""(round, names of the clients online) → names of those who are asked."""

_LOOK_EVERY: Final = 0.5  # seconds between two looks at who is online
_MANY: Final = 1000  # nodes online; it takes a while to put so many in order in every round


@dataclass(frozen=True)
class Candidate:
    """A client that may be asked, or a node whose client is not known yet."""

    row: int | None  # None: its client is not known
    node: int | None  # None: offline
    name: str
    cluster: str | None = None  # None: there are none, or its own is not known
    residual: float | None = None  # None: nothing was seen of it
    weight: float | None = None  # in the round it was drawn for; None: all the same


def wait_for_nodes(grid: Grid, wanted: int, timeout: float | None) -> list[int]:
    """Waits for enough nodes while the timeout lasts; says so when their number changes.

    Args:
        grid: Flower's connection to the nodes.
        wanted: How many are enough.
        timeout: In seconds; None: as long as it takes.

    Returns:
        Those that Flower lists.
    """
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    said = -1
    while len(listed := list(grid.get_node_ids())) < wanted and time.monotonic() < deadline:
        if len(listed) != said:
            log(INFO, "Waiting for nodes: %d of %d are online.", len(listed), wanted)
            said = len(listed)
        time.sleep(min(_LOOK_EVERY, max(0.0, deadline - time.monotonic())))
    return listed


class Candidates(Sequence[Candidate]):
    """Everybody among whom a cohort is drawn, made only as far as they are looked at.

    The clients known but those who are gone, by name, then the nodes that have not said who they
    are.

    Args:
        clients: Those that are known.
        presence: Who is there.
    """

    def __init__(self, clients: KnownClients, presence: Presence) -> None:
        self._clients, self._presence = clients, presence
        gone = sorted(
            clients.place_in_order(client)
            for row in presence.gone
            if (client := clients.at_row(row)) is not None
        )
        self._before = [place - k for k, place in enumerate(gone)]  # how many others come first
        self._known = len(clients) - len(gone)

    def __len__(self) -> int:
        return self._known + len(self._presence.strangers)

    @overload
    def __getitem__(self, place: int) -> Candidate: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[Candidate]: ...

    def __getitem__(self, place: int | slice) -> Candidate | Sequence[Candidate]:
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        if not 0 <= place < len(self):
            raise UnknownClientError(place)
        if place >= self._known:
            return _stranger(self._presence.strangers[place - self._known])
        return self._candidate(self._known_at(place))

    def _known_at(self, place: int) -> Client:
        return self._clients.in_order[place + bisect_right(self._before, place)]

    def is_online(self, place: int) -> bool:
        """Whether one of them is online, without making it.

        Args:
            place: Counted from 0.

        Returns:
            True if it is.
        """
        return place >= self._known or self._known_at(place).node in self._presence.online

    def online(self) -> list[Candidate]:
        """Those who are online, in their order."""
        found = (self._clients.at(node) for node in self._presence.online)
        known = sorted((c for c in found if c is not None), key=lambda c: name_order(c.name))
        strangers = [_stranger(node) for node in self._presence.strangers]
        return [self._candidate(client) for client in known] + strangers

    @property
    def num_online(self) -> int:
        """How many of them are online."""
        return len(self._presence.online)

    def _candidate(self, client: Client) -> Candidate:
        node = client.node if client.node in self._presence.online else None
        return Candidate(client.row, node, client.name, client.cluster, client.residual)


def _stranger(node: int) -> Candidate:
    return Candidate(None, node, name_of_node(node))


def training_cohort(
    among: Sequence[Candidate],
    size: int,
    *,
    seed: int,
    round: int,
    when_offline: WhenOffline,
    sampling: Sampling = "uniform",
    uniform_share: float | None = None,
) -> list[Candidate]:
    """Draws who trains in a round, each client with the same probability, or by importance.

    The first draw is among all, so that it does not depend on who happens to be online. Those of it
    who are offline are replaced by a second draw among the others online, or left out. By
    importance the draw is among those online, as nobody could take another's place at its weight.

    Args:
        among: See `Candidates`.
        size: M.
        seed: The run's seed.
        round: 0, 1, 2, ...
        when_offline: What to do about a client that was drawn and is offline.
        sampling: How to draw: every cohort equally likely, from each cluster its share, in turn, or
            by importance.
        uniform_share: See `ImportanceSampler`.

    Returns:
        At most M candidates, all online; with weights if they are drawn by importance.
    """
    size = min(size, len(among))
    if size == 0:
        return []
    if sampling == "importance":
        return _by_importance(among, size, seed, round, uniform_share)
    drawn = _sampler(sampling, among, size, seed).cohort(round).clients.tolist()
    cohort = [among[i] for i in drawn if among[i].node is not None]
    missing = len(drawn) - len(cohort)
    if when_offline == "replace" and missing > 0:
        generator = stream(seed, "cohort replacements", round)
        cohort += _replacements(among, set(drawn), len(cohort), missing, generator)
    return cohort


def _replacements(
    among: Sequence[Candidate], drawn: set[int], found: int, missing: int, generator: Generator
) -> list[Candidate]:
    """Others online, each equally likely; where they are many not all of them are looked at."""
    if isinstance(among, Candidates) and _is_quicker_by_trying(among, found, missing):
        chosen: dict[int, None] = {}
        while len(chosen) < missing:
            places = uniform_integers(len(among), _MANY, generator).tolist()
            online = (p for p in places if p not in drawn and among.is_online(p))
            chosen |= dict.fromkeys(islice(online, missing - len(chosen)))
        return [among[place] for place in chosen]
    asked = {among[i].name for i in drawn}
    others = [candidate for candidate in _online(among) if candidate.name not in asked]
    subset = random_subset(len(others), min(missing, len(others)), generator)
    return [others[place] for place in subset.tolist()]


def _is_quicker_by_trying(among: Candidates, found: int, missing: int) -> bool:
    """Whether to draw until somebody is online, rather than to put all who are in order."""
    others, tries = among.num_online - found, missing * len(among) / max(1, among.num_online)
    return others > max(_MANY, 2 * missing) and tries < 3 * others


def _online(among: Sequence[Candidate]) -> list[Candidate]:
    if isinstance(among, Candidates):
        return among.online()
    return [candidate for candidate in among if candidate.node is not None]


@dataclass(frozen=True)
class _Online:
    """An availability that knows who is online now."""

    here: Tensor  # (N,) bool

    def online(self, seed: int, round: int, num_clients: int) -> Tensor:
        return self.here


def _by_importance(
    among: Sequence[Candidate], size: int, seed: int, round: int, uniform_share: float | None
) -> list[Candidate]:
    online = _Online(torch.tensor([one.node is not None for one in among]))
    share = uniform_share or UNIFORM_SHARE
    sampler = ImportanceSampler(len(among), size, seed, share, availability=online)
    seen = [math.nan if one.residual is None else one.residual for one in among]
    sampler.load_state_dict({"residuals": torch.tensor(seen, dtype=torch.float64)})
    cohort = sampler.cohort(round)
    assert cohort.weights is not None
    drawn = zip(cohort.clients.tolist(), cohort.weights.tolist(), strict=True)
    return [replace(among[i], weight=weight) for i, weight in drawn]


def selected_cohort(among: Sequence[Candidate], round: int, select: Select) -> list[Candidate]:
    """Those whom the user's function chooses.

    Args:
        among: See `Candidates`.
        round: 1, 2, 3, ...
        select: The function.

    Returns:
        Who is asked, all online.

    Raises:
        ValueError: The function names somebody who is not online.
    """
    online = {client.name: client for client in _online(among)}
    chosen = [str(name) for name in select(round, list(online))]
    if strange := [name for name in chosen if name not in online]:
        raise InvalidError(
            f"select() chose {strange[0]!r} for round {round}, which is not among the clients "
            f"online that it was given. It must return some of these names."
        )
    return [online[name] for name in dict.fromkeys(chosen)]


def _sampler(sampling: Sampling, among: Sequence[Candidate], size: int, seed: int) -> ClientSampler:
    if sampling == "round_robin":
        return RoundRobinSampler(len(among), size, seed)
    if sampling == "stratified":
        numbers: dict[str | None, int] = {}
        clusters = [numbers.setdefault(client.cluster, len(numbers)) for client in among]
        return StratifiedSampler(clusters, size, seed)
    return UniformSampler(len(among), size, seed)


def evaluation_cohort(
    online: Sequence[Candidate], size: int, *, seed: int, round: int
) -> list[Candidate]:
    """Draws who evaluates the model after a round, uniformly at random.

    Args:
        online: The candidates that are online.
        size: How many to ask.
        seed: The run's seed.
        round: 0, 1, 2, ...

    Returns:
        The cohort; everybody, if there are no more.
    """
    size = min(size, len(online))
    chosen = random_subset(len(online), size, stream(seed, "evaluation", round))
    return [online[place] for place in chosen.tolist()]
