"""Cuts the power of runs: between any two storage calls, with what was not waited for half there.

Runs are logged call by call, begun, killed and gone on with. A cut is a place in the log and one
of the states that the disk may be in there (`lost_power.py`). The same command again must then end
with the same files, to the byte. With fsync no round may be lost whose commit had come back;
without it a run may be refused as damaged, which is counted, but never end with other figures.
"""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.faults import storage
from benchmarks.faults.lost_power import Call, Disk, read_log
from benchmarks.faults.storage import Tally, Variant, in_a_process, left_behind, train

BAD: Final = (
    "acknowledged rounds lost",
    "silent differences",
    "runs that need a hand",
    "exceptions that are not ours",
)
_ROUNDS: Final = 5
_CUTS_A_LOG: Final = 25


def main(arguments: Sequence[str]) -> int:
    """Runs the campaign.

    Args:
        arguments: As `storage.campaign` takes them; ``--count`` power cuts.

    Returns:
        How many things went wrong that should not.
    """
    return storage.campaign("power", __doc__, arguments, _throw, bad=BAD, count=2000)


def _throw(folder: Path, count: int, draw: random.Random, tally: Tally) -> None:
    known = itertools.cycle((*storage.servers(), *storage.variants(), *storage.servers()))
    for done, variant in zip(range(0, count, _CUTS_A_LOG), known, strict=False):
        calls, expected = _logged(folder, variant, draw)
        for _ in range(min(_CUTS_A_LOG, count - done)):
            _cut(folder, calls, draw.randint(0, len(calls)), variant, expected, draw, tally)


def _logged(
    folder: Path, variant: Variant, draw: random.Random
) -> tuple[list[Call], dict[str, bytes]]:
    """The storage calls of a run that is begun, killed and gone on with."""
    root, log = folder / "logged", folder / "log"
    shutil.rmtree(root, ignore_errors=True)
    log.unlink(missing_ok=True)
    root.mkdir()
    run = root / "run"
    first = draw.randint(10, 30) if variant.is_served else draw.randint(40, 70)
    for at in (first, -1):
        in_a_process(
            lambda: train(run, variant, _ROUNDS), root, at=at, action=storage.KILL, log=log
        )
    return read_log(log), left_behind(run)


def _cut(
    folder: Path,
    calls: Sequence[Call],
    at: int,
    variant: Variant,
    expected: dict[str, bytes],
    draw: random.Random,
    tally: Tally,
) -> None:
    root = folder / "logged"
    disk = Disk(root)
    for call in calls[:at]:
        disk.do(call)
    acknowledged = max((call.offset for call in calls[:at] if call.kind == "!"), default=-1)
    shutil.rmtree(root, ignore_errors=True)  # in its own place: a run may note where it is
    disk.after_the_cut(root, draw)
    found = sorted(str(f.relative_to(root)) for f in root.rglob("*"))
    outcome = in_a_process(lambda: train(root / "run", variant, _ROUNDS), root)
    where = f"{variant.name}, call {at} of {len(calls)}, {found}, {outcome}"
    kind = "power cuts" if variant.fsync else "power cuts without fsync"
    tally.count(kind)
    resumed = -1 if outcome.resumed_at is None else outcome.resumed_at
    if outcome.how in ("foreign", "failed", "killed"):
        tally.blame("exceptions that are not ours", where)
    elif outcome.how == "refused" and variant.fsync:
        tally.blame("runs that need a hand", where)
    elif outcome.how == "refused":
        tally.count("refused as damaged, without fsync")
    elif left_behind(root / "run") != expected:
        tally.blame("silent differences", where)
    elif variant.fsync and resumed < acknowledged:
        tally.blame("acknowledged rounds lost", where)
    elif resumed < acknowledged:
        tally.count("rounds trained again, without fsync")
