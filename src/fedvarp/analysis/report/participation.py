"""Who took part how often, and how stale the server's memory of the others is."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedvarp.analysis.groups import Group
from fedvarp.analysis.runs import Floats, Record


@dataclass(frozen=True, eq=False)
class Participation:
    """How the clients of a group took part, over all its seeds.

    Attributes:
        num_clients: N.
        counts: (K,) clients that took part 0, 1, 2, … times; the mean over seeds.
        mean_staleness: (T,) after each round, the mean over clients of the rounds since a client
            last took part, or since the start for one that never did; the mean over seeds.
        max_staleness: (T,) the same for the client that waits longest; the maximum over seeds.
    """

    num_clients: int
    counts: Floats
    mean_staleness: Floats
    max_staleness: Floats

    def same(self, other: Participation) -> bool:
        """Whether both are alike: algorithms meet the same cohorts when their seeds agree."""
        return (
            self.num_clients == other.num_clients
            and np.array_equal(self.counts, other.counts)
            and np.array_equal(self.mean_staleness, other.mean_staleness)
            and np.array_equal(self.max_staleness, other.max_staleness)
        )


def participation(group: Group) -> Participation | None:
    """Counts who took part, over the rounds that all seeds of a group have.

    Args:
        group: The runs.

    Returns:
        How its clients took part; None where a run does not name the clients of all its rounds.
    """
    end = int(group.rounds[-1])
    cohorts = [_cohorts(run.metrics, end) for run in group.runs]
    if not all(cohorts) or len(set(map(len, cohorts))) > 1:
        return None
    num_clients = _num_clients(group, cohorts)
    times = [clients_by_times(one, num_clients) for one in cohorts]
    longest = max(map(len, times))
    waits = [staleness(one, num_clients) for one in cohorts]
    return Participation(
        num_clients=num_clients,
        counts=np.mean([np.pad(count, (0, longest - len(count))) for count in times], axis=0),
        mean_staleness=np.mean([mean for mean, _ in waits], axis=0),
        max_staleness=np.max([stalest for _, stalest in waits], axis=0),
    )


def clients_by_times(cohorts: Sequence[Sequence[int]], num_clients: int) -> NDArray[np.int64]:
    """Counts how many clients took part in none of the rounds, in one, in two and so on.

    Memory grows with those who took part and not with N, which is what a file says it is.

    Args:
        cohorts: The clients of each round.
        num_clients: N.

    Returns:
        (K,) the counts.

    >>> clients_by_times([[0, 2], [2]], num_clients=4)
    array([2, 1, 1])
    """
    times = Counter(itertools.chain.from_iterable(cohorts))
    counts = np.bincount(np.array([*times.values()], dtype=np.int64), minlength=1)
    counts[0] = num_clients - len(times)
    return counts


def staleness(cohorts: Sequence[Sequence[int]], num_clients: int) -> tuple[Floats, Floats]:
    """Says how long clients have waited after each round, in O(M) a round whatever N is.

    A client's staleness after round t is t − s, with s the last round it took part in. So the
    mean follows from the sum of all s, and the maximum from the smallest s, which never falls.

    Args:
        cohorts: The clients of each of T rounds.
        num_clients: N.

    Returns:
        (T,) the mean over clients, and (T,) the maximum.
    """
    last: dict[int, int] = {}  # s of the clients seen; 0 for all others
    holders = {0: num_clients}  # how many clients have each s
    total, oldest = 0, 0
    means, longest = np.empty(len(cohorts)), np.empty(len(cohorts))
    for i, clients in enumerate(cohorts):
        t = i + 1
        for client in clients:
            before = last.get(client, 0)
            holders[before] -= 1
            total += t - before
            last[client] = t
        holders[t] = len(clients)
        while not holders[oldest]:
            oldest += 1
        means[i], longest[i] = t - total / num_clients, t - oldest
    return means, longest


def _cohorts(metrics: Sequence[Record], end: int) -> list[list[int]]:
    return [
        record["clients"] for record in metrics if "clients" in record and record["round"] <= end
    ]


def _num_clients(group: Group, cohorts: Sequence[Sequence[Sequence[int]]]) -> int:
    """N as the first records tell it, and never less than the client numbers seen imply."""
    told = (run.metrics[0].get("num_clients", 0) for run in group.runs)
    seen = (client + 1 for one in cohorts for clients in one for client in clients)
    most: int = max(1, *told, max(seen, default=0))
    return most
