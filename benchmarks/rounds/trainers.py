"""What a round takes: fedvarp's trainers against bare loops over the same steps."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.rounds.contest import Turns, compete, contest_table
from benchmarks.rounds.contestant import Entry
from benchmarks.rounds.workload import AS_USUAL, Workload
from benchmarks.rounds.workloads import w1, w2, w3
from fedvarp.simulation.cohorts_ahead import AHEAD

PLAIN, TWO_BARE = "plain loop, one thread", "two bare workers"
BARE: Mapping[str, str] = {PLAIN: "plain", TWO_BARE: "two-workers"}
SEQUENTIAL, TWO_WORKERS = "fedvarp, sequential", "fedvarp, two workers"
SHARING = "fedvarp, two workers, exact = false"
ON_RAY = "fedvarp, two actors of Ray"
VECTORISED = "fedvarp, vectorised"
TRAINERS: Mapping[str, Mapping[str, Any]] = {
    SEQUENTIAL: {"name": "sequential"},
    TWO_WORKERS: {"name": "parallel", "workers": 2},
    "fedvarp, two workers, compiled": {"name": "parallel", "workers": 2, "compile": True},
    SHARING: {"name": "parallel", "workers": 2, "exact": False},
    ON_RAY: {"name": "ray", "workers": 2},
    VECTORISED: {"name": "vectorised"},
}


USUAL = ", LeNet-5 as usually written"  # at the end of a contestant's name


def entry(name: str, folder: Path) -> Entry:
    """A contestant of this package by its name in the tables."""
    if name.endswith(USUAL):
        return as_usual(entry(name.removesuffix(USUAL), folder))
    if name in BARE:
        return Entry(["-m", "benchmarks.rounds.with_plain_torch", BARE[name], str(folder)])
    return Entry(["-m", "benchmarks.rounds.with_fedvarp", str(folder), json.dumps(TRAINERS[name])])


def as_usual(other: Entry) -> Entry:
    """The same contestant with LeNet-5 as it is usually written."""
    return dataclasses.replace(other, environment={**other.environment, AS_USUAL: "1"})


def contest(
    workload: Workload,
    names: Sequence[str],
    bases: Sequence[str],
    targets: Mapping[str, str],
    turns: Turns,
    others: Callable[[Path], Mapping[str, Entry]] = lambda folder: {},
) -> str:
    """The table of one workload.

    Args:
        workload: What a round is.
        names: Contestants of this package.
        bases: Whom everybody is compared with.
        targets: What the ratios to the first of them are to reach, of some contestants.
        turns: How often.
        others: More contestants, given the folder with the workload.
    """
    with tempfile.TemporaryDirectory() as place:
        folder = workload.save(Path(place))
        entries = {name: entry(name, folder) for name in names} | dict(others(folder))
        results = compete(entries, turns)
    settings = workload.settings
    title = f"Rounds of {settings.name}: {settings.model} on {settings.source}"
    return contest_table(title, results, bases, targets)


def measure() -> str:
    """W1, W2 and W3, every turn of a workload in fresh processes three times."""
    first = contest(
        w1(),
        [
            PLAIN,
            TWO_BARE + USUAL,
            TWO_BARE,
            SEQUENTIAL,
            TWO_WORKERS,
            SHARING,
            "fedvarp, two workers, compiled",
            ON_RAY,
        ],
        [TWO_BARE],
        {TWO_WORKERS: "≤ 0.85; PSS < 1050", SHARING: "≤ 0.7"},
        Turns(starts=3, warm_up=2, turns=7),
    )
    second = contest(
        w2(),
        [PLAIN, SEQUENTIAL, VECTORISED],
        [PLAIN],
        {VECTORISED: "≤ 0.1"},
        Turns(starts=3, warm_up=5, turns=7, at_once=3 * AHEAD),
    )
    third = contest(
        w3(),
        [PLAIN, SEQUENTIAL],
        [PLAIN],
        {SEQUENTIAL: "≤ 1.05"},
        Turns(starts=3, warm_up=2, turns=7),
    )
    return "\n".join([first, second, third])
