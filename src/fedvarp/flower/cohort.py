"""Who is asked in a round: clients are named first, then drawn by name, whatever their node ids.

The draw is that of a sampler in `fedvarp.clients` over the clients in the order of their names.
With everybody known and online the cohorts are those of `fedvarp.simulate`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from logging import INFO
from typing import Final, Literal

import torch
from flwr.serverapp import Grid
from flwr.supercore import log
from torch import Tensor

from fedvarp.clients.cohorts import ClientSampler
from fedvarp.clients.draws import random_subset
from fedvarp.clients.importance_sampling import UNIFORM_SHARE, ImportanceSampler
from fedvarp.clients.round_robin import RoundRobinSampler
from fedvarp.clients.sampling import UniformSampler
from fedvarp.clients.stratified_sampling import StratifiedSampler
from fedvarp.flower.identity import KnownClients
from fedvarp.flower.names import name_of_node
from fedvarp.randomness import stream

WhenOffline = Literal["replace", "fewer"]
Sampling = Literal["uniform", "stratified", "round_robin", "importance"]
Select = Callable[[int, Sequence[str]], Iterable[str]]
"""(round, names of the clients online) → names of those who are asked."""

_LOOK_EVERY: Final = 0.5  # seconds between two looks at who is online


@dataclass(frozen=True)
class Candidate:
    """A client that may be asked, or a node whose client is not known yet."""

    row: int | None  # None: its client is not known
    node: int | None  # None: offline
    name: str
    cluster: str | None = None  # None: there are none, or its own is not known
    residual: float | None = None  # None: nothing was seen of it
    weight: float | None = None  # in the round it was drawn for; None: all the same


def wait_for_nodes(grid: Grid, wanted: int, timeout: float | None) -> int:
    """Waits for enough nodes while the timeout lasts; says so when their number changes.

    Args:
        grid: Flower's connection to the nodes.
        wanted: How many are enough.
        timeout: In seconds; None: as long as it takes.

    Returns:
        How many are online.
    """
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    said = -1
    while (online := len(list(grid.get_node_ids()))) < wanted and time.monotonic() < deadline:
        if online != said:
            log(INFO, "Waiting for nodes: %d of %d are online.", online, wanted)
            said = online
        time.sleep(min(_LOOK_EVERY, max(0.0, deadline - time.monotonic())))
    return online


def candidates(clients: KnownClients, online: Iterable[int]) -> list[Candidate]:
    """Lists everybody among whom a cohort is drawn.

    Args:
        clients: Those that are known.
        online: Node ids.

    Returns:
        The clients known but those who are gone, by name, then the nodes that have not said who
        they are.
    """
    here = set(online)
    known = [
        Candidate(
            client.row,
            client.node if client.node in here else None,
            client.name,
            client.cluster,
            client.residual,
        )
        for client in clients.in_order()
        if not client.is_gone(here)
    ]
    strangers = sorted(node for node in here if clients.at(node) is None)
    return known + [Candidate(None, node, name_of_node(node)) for node in strangers]


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
        among: See `candidates`.
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
    if when_offline == "replace":
        chosen = set(drawn)
        others = [c for i, c in enumerate(among) if i not in chosen and c.node is not None]
        missing = min(len(drawn) - len(cohort), len(others))
        cohort += _draw(others, missing, seed, "cohort replacements", round)
    return cohort


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
        among: See `candidates`.
        round: 1, 2, 3, ...
        select: The function.

    Returns:
        Who is asked, all online.

    Raises:
        ValueError: The function names somebody who is not online.
    """
    online = {client.name: client for client in among if client.node is not None}
    chosen = [str(name) for name in select(round, list(online))]
    if strange := [name for name in chosen if name not in online]:
        raise ValueError(
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
    return _draw(online, min(size, len(online)), seed, "evaluation", round)


def _draw(
    among: Sequence[Candidate], size: int, seed: int, purpose: str, round: int
) -> list[Candidate]:
    chosen = random_subset(len(among), size, stream(seed, purpose, round))
    return [among[i] for i in chosen.tolist()]
