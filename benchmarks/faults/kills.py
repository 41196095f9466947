"""Kills runs at any of their storage calls, and lets calls fail.

Every call that changes the disk, Python's or LMDB's, is a place: the process is killed before it,
or with half of a write done, or the call fails as on a failing or full disk. Then the same command
again must end with the same files, to the byte, and with no round lost whose commit had come back.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.faults import storage
from benchmarks.faults.storage import Tally, Variant, in_a_process, left_behind, train

BAD: Final = (
    "acknowledged rounds lost",
    "silent differences",
    "runs that need a hand",
    "exceptions that are not ours",
    "died of another signal",
)
_ROUNDS: Final = 5
_RUNS: Final = 0.15  # of those that are disturbed, whole runs; the others are servers alone
_LEFT_ALONE: Final = 0.8  # of those that came to their end before the fault; others are begun again


def main(arguments: Sequence[str]) -> int:
    """Runs the campaign.

    Args:
        arguments: As `storage.campaign` takes them; ``--count`` kills at least.

    Returns:
        How many things went wrong that should not.
    """
    return storage.campaign("kills", __doc__, arguments, _throw, bad=BAD, count=5000)


def _throw(folder: Path, count: int, draw: random.Random, tally: Tally) -> None:
    runs, servers = storage.variants(), storage.servers()
    known = {variant: _straight(folder, variant) for variant in (*runs, *servers)}
    while tally.counts.get("kills", 0) < count:
        variant = draw.choice(runs if draw.random() < _RUNS else servers)
        _one(folder / "killed", variant, known[variant], draw, tally)


def _straight(folder: Path, variant: Variant) -> tuple[dict[str, bytes], int]:
    """What the run leaves behind that nobody disturbs, and how many storage calls it makes."""
    run = folder / "straight"
    outcome = in_a_process(lambda: train(run, variant, _ROUNDS), folder)
    if outcome.how != "done":
        raise RuntimeError(f"{variant.name}: {outcome}")
    found = left_behind(run)
    shutil.rmtree(run)
    return found, outcome.calls


def _one(
    run: Path,
    variant: Variant,
    known: tuple[dict[str, bytes], int],
    draw: random.Random,
    tally: Tally,
) -> None:
    """Disturbs one run up to eight times, and lets it come to its end."""
    expected, calls = known
    shutil.rmtree(run, ignore_errors=True)
    acknowledged, where = -1, ""
    is_done = False
    for _ in range(draw.choice((1, 2, 4, 8))):
        left = 1 - max(0, acknowledged) / (_ROUNDS + 1)  # of its rounds, so of its calls too
        at = draw.randrange(1 + int(calls * left))
        action = draw.choice((storage.KILL,) * 3 + (storage.KILL_HALF_WAY,) * 3 + (3, 4))
        outcome = in_a_process(
            lambda: train(run, variant, _ROUNDS), run.parent, at=at, action=action
        )
        where += f"{variant.name}, call {at}, action {action}, {outcome.how}; "
        if outcome.how == "killed":
            tally.count("kills")
            if outcome.said != "9":
                tally.blame("died of another signal", where + storage.signal_name(outcome))
        elif outcome.how != "done":
            tally.count("calls that failed")
            if outcome.how == "foreign":
                tally.blame("exceptions that are not ours", where + outcome.said)
        _compare_rounds(outcome, acknowledged, where, tally)
        acknowledged = max((acknowledged, *outcome.committed))
        if is_done := outcome.how == "done" and draw.random() < _LEFT_ALONE:
            break
    if not is_done:
        last = in_a_process(lambda: train(run, variant, _ROUNDS), run.parent)
        _compare_rounds(last, acknowledged, where, tally)
        if last.how == "foreign":
            tally.blame("exceptions that are not ours", where + last.said)
        elif last.how != "done":
            tally.blame("runs that need a hand", f"{where}{last.how}: {last.said}")
        if last.how != "done":
            return
    if left_behind(run) != expected:
        tally.blame("silent differences", where)
    elif list(run.rglob("*.part")) or list(run.rglob("new.mdb*")):
        tally.blame("runs that need a hand", f"{where}strays: {list(run.rglob('*'))}")


def _compare_rounds(outcome: storage.Outcome, acknowledged: int, where: str, tally: Tally) -> None:
    # A run that fails before its first round takes itself back: the initial model is no round.
    came_so_far = outcome.how == "done" or outcome.resumed_at is not None
    if came_so_far and acknowledged > (outcome.resumed_at or 0):
        tally.blame("acknowledged rounds lost", f"{where}{acknowledged}, then {outcome}")
