"""Who is asked in a round: drawn by name, so that the same seed gives the same cohorts.

The draw is that of `fedvarp.clients.sampling.UniformSampler` over the clients in the order of their
names; Flower's node ids have no say in it. With everybody known and online the cohorts are those of
`fedvarp.simulate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fedvarp.clients.sampling import random_subset
from fedvarp.flower.identity import Identities, name_of_node
from fedvarp.randomness import stream

WhenOffline = Literal["replace", "fewer"]


@dataclass(frozen=True)
class Candidate:
    """A client that may be asked, or a node whose client is not known yet."""

    row: int | None
    node: int | None  # None: offline
    name: str


def candidates(clients: Identities, online: Sequence[int]) -> list[Candidate]:
    """Everybody known, by name, then the nodes that have not said who they are."""
    here = set(online)
    known = [
        Candidate(client.row, client.node if client.node in here else None, client.name)
        for client in clients.in_order()
    ]
    strangers = sorted(node for node in here if clients.at(node) is None)
    return known + [Candidate(None, node, name_of_node(node)) for node in strangers]


def draw(
    among: Sequence[Candidate],
    size: int,
    *,
    seed: int,
    purpose: str,
    round: int,
    when_offline: WhenOffline,
) -> list[Candidate]:
    """A uniformly random cohort of those online.

    The first draw is among all, so that it does not depend on who happens to be online. Those of it
    who are offline are replaced by a second draw among the others online, or left out.

    Args:
        among: See `candidates`.
        size: M.
        seed: The run's seed.
        purpose: Of the random stream, such as "cohort".
        round: 0, 1, 2, ...
        when_offline: What to do about a client that was drawn and is offline.
    """
    size = min(size, len(among))
    first = random_subset(len(among), size, stream(seed, purpose, round)).tolist()
    cohort = [among[i] for i in first if among[i].node is not None]
    if when_offline == "replace":
        chosen = set(first)
        others = [c for i, c in enumerate(among) if i not in chosen and c.node is not None]
        missing = min(size - len(cohort), len(others))
        replacements = stream(seed, f"{purpose} replacements", round)
        cohort += [others[i] for i in random_subset(len(others), missing, replacements).tolist()]
    return cohort
