"""Contestants that take turns, and what they are measured at."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from benchmarks.rounds.contestant import Contestant, ContestantError, Entry
from benchmarks.rounds.process_tree import PeakMemory
from benchmarks.timing import ratios, table, with_spread


@dataclass(frozen=True)
class Turns:
    """How often: in fresh processes, `warm_up` rounds untimed, then `at_once` rounds a turn."""

    starts: int
    warm_up: int
    turns: int
    at_once: int = 1

    @property
    def rounds(self) -> int:
        """Of one process."""
        return self.warm_up + self.turns * self.at_once


@dataclass
class Result:
    """What one contestant was measured at; or, in `missing`, why it was not."""

    seconds: list[float] = field(default_factory=list)  # of a round, one for each turn
    first_round: list[float] = field(default_factory=list)  # seconds from start to its end
    peak_mb: list[float] = field(default_factory=list)
    missing: str | None = None

    @property
    def start_up(self) -> list[float]:
        """Seconds from the start of the process until rounds take their usual time."""
        usual = statistics.median(self.seconds)
        return [seconds - usual for seconds in self.first_round]


def compete(entries: Mapping[str, Entry], turns: Turns) -> dict[str, Result]:
    """Measures start-up and memory of each entry alone, then rounds of all of them in turn.

    A B C A B C ...: while one runs, the others wait. An entry that fails drops out.
    """
    results = {name: Result() for name in entries}

    def attempt(name: str, action: Callable[[], None]) -> None:
        if results[name].missing is None:
            try:
                action()
            except (ContestantError, OSError) as error:
                results[name].missing = str(error)

    for _ in range(turns.starts):
        for name, entry in entries.items():
            attempt(name, partial(_alone, entry, turns, results[name]))
        with contextlib.ExitStack() as running:
            contestants = {name: Contestant(entry) for name, entry in entries.items()}
            for name, contestant in contestants.items():
                attempt(name, partial(_warm_up, contestant, turns, running))
            for _ in range(turns.turns):
                for name, contestant in contestants.items():
                    attempt(name, partial(_take_turn, contestant, turns, results[name]))
    return results


def _alone(entry: Entry, turns: Turns, result: Result) -> None:
    # Others that run the same libraries would share their pages, and so take some off its PSS.
    with Contestant(entry) as contestant, PeakMemory(contestant.pid) as memory:
        contestant.announce(1 + turns.warm_up)
        contestant.run(1)
        result.first_round.append(contestant.age)
        contestant.run(turns.warm_up)
    result.peak_mb.append(memory.mb)


def _warm_up(contestant: Contestant, turns: Turns, running: contextlib.ExitStack) -> None:
    running.enter_context(contestant)
    contestant.announce(turns.rounds)
    contestant.run(turns.warm_up)


def _take_turn(contestant: Contestant, turns: Turns, result: Result) -> None:
    result.seconds.append(statistics.fmean(contestant.run(turns.at_once)))


def contest_table(
    title: str, results: Mapping[str, Result], bases: Sequence[str], targets: Mapping[str, str]
) -> str:
    """One row a contestant.

    Args:
        title: Of the table.
        results: Of `compete`.
        bases: Whom everybody is compared with; those who did not run are left out.
        targets: What the ratios to the first base are to reach, of some contestants.
    """
    usual = [statistics.median(r.seconds) for r in results.values() if r.missing is None]
    unit, factor, digits = ("s", 1.0, 3) if min(usual, default=1.0) > 0.1 else ("ms", 1e3, 2)
    told = [base for base in bases if base in results and results[base].missing is None]
    rows = []
    for name, result in results.items():
        target = targets.get(name, "") if told[:1] == bases[:1] else ""
        if result.missing is not None:
            rows.append([name, f"missing: {result.missing}", *[""] * len(told), target, "", ""])
            continue
        rows.append(
            [
                name,
                with_spread(result.seconds, digits, factor),
                *(with_spread(ratios(result.seconds, results[base].seconds), 3) for base in told),
                target,
                with_spread(result.start_up, 1),
                with_spread(result.peak_mb, 0),
            ]
        )
    to_bases = [f"ratio to {base}" for base in told]
    header = ["", f"round, {unit}", *to_bases, "target", "start-up, s", "peak PSS, MB"]
    return table(title, header, rows)
