"""Damages files of runs, and sees whether it is noticed.

A run of some rounds is kept; one of its files is then damaged as disks, copies and people do it,
`fedvarp verify` looks at it, and the run is gone on with to more rounds. It must end with the
files of a run that nobody damaged, to the byte, or be refused in a sentence, the file as it was.
What may be told anew in config.toml, such as the number of rounds, is the user's to edit, so a bit
that turns it into another is believed: those cases are counted by themselves.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from benchmarks.faults import storage
from benchmarks.faults.storage import Outcome, Tally, Variant, in_a_process, left_behind, train

BAD: Final = (
    "silent differences",
    "changed although refused",
    "exceptions that are not ours",
    "deaths by a signal",
)
_KEPT, _BEFORE, _ROUNDS = 5, 4, 7
_PAGE: Final = 4096
_TARGETS: Final = (
    *("checkpoint/data.mdb", "state/data.mdb") * 12,
    *("checkpoint/earlier.mdb", "state/earlier.mdb"),
    *("metrics.jsonl",) * 3,
    *("model.safetensors",) * 3,
    "config.toml",
    "versions.json",
    "timings.jsonl",
    *("checkpoint/lock", "state/lock"),
    *("checkpoint/data.mdb-lock", "state/data.mdb-lock"),
)
_RUNS: Final = 0.4  # of those that are damaged, whole runs; the others are servers alone

Damage = Callable[[bytearray, bytes, random.Random], bytes | None]


def _flip(content: bytearray, _: bytes, draw: random.Random) -> bytes:
    if content:
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    return bytes(content)


def _flip_in_a_header(content: bytearray, _: bytes, draw: random.Random) -> bytes:
    """In the first bytes of a page, where its numbers are."""
    at = draw.randrange(0, max(1, len(content)), _PAGE) + draw.randrange(200)
    if at < len(content):
        content[at] ^= 1 << draw.randrange(8)
    return bytes(content)


def _zeros(content: bytearray, _: bytes, draw: random.Random) -> bytes:
    size = draw.choice((1, 8, 512, _PAGE))
    at = draw.randrange(0, max(1, len(content)), size)
    end = min(len(content), at + size)
    content[at:end] = bytes(end - at)
    return bytes(content)


def _noise(content: bytearray, _: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(max(1, len(content)))
    end = min(len(content), at + draw.choice((2, 64, 512)))
    content[at:end] = draw.randbytes(end - at)
    return bytes(content)


def _cut_off(content: bytearray, _: bytes, draw: random.Random) -> bytes:
    return bytes(content[: draw.randrange(max(1, len(content)))])


def _longer(content: bytearray, _: bytes, draw: random.Random) -> bytes:
    return bytes(content) + draw.choice((bytes(_PAGE), draw.randbytes(100), b"\n"))


def _page_elsewhere(content: bytearray, _: bytes, draw: random.Random) -> bytes:
    pages = max(1, len(content) // _PAGE)
    a, b = draw.randrange(pages) * _PAGE, draw.randrange(pages) * _PAGE
    content[a : a + _PAGE] = content[b : b + _PAGE]
    return bytes(content)


def _lost_write(content: bytearray, before: bytes, draw: random.Random) -> bytes:
    """A page as it was a round before."""
    at = draw.randrange(0, max(1, len(content)), _PAGE)
    content[at : at + _PAGE] = before[at : at + _PAGE] or content[at : at + _PAGE]
    return bytes(content)


def _gone(content: bytearray, _: bytes, draw: random.Random) -> None:
    return None


DAMAGES: Final[tuple[Damage, ...]] = (
    *(_flip, _flip, _flip, _flip_in_a_header, _flip_in_a_header, _zeros, _noise),
    *(_cut_off, _longer, _page_elsewhere, _lost_write, _gone),
)


def main(arguments: Sequence[str]) -> int:
    """Runs the campaign.

    Args:
        arguments: As `storage.campaign` takes them; ``--count`` damaged files.

    Returns:
        How many things went wrong that should not.
    """
    return storage.campaign("damage", __doc__, arguments, _throw, bad=BAD, count=2000)


def _throw(folder: Path, count: int, draw: random.Random, tally: Tally) -> None:
    runs, servers = storage.variants()[:5], storage.servers()
    prepared = {v: _prepared(folder, v, n) for n, v in enumerate((*runs, *servers))}
    for _ in range(count):
        variant = draw.choice(runs if draw.random() < _RUNS else servers)
        _one(folder / "run", variant, *prepared[variant], draw, tally)


def _prepared(folder: Path, variant: Variant, n: int) -> tuple[Path, Path, dict[str, bytes]]:
    """A run of five rounds, the same after four, and what seven rounds leave behind."""
    run, kept, before = folder / "run", folder / f"kept-{n}", folder / f"before-{n}"
    for rounds, copy in ((_BEFORE, before), (_KEPT, kept), (_ROUNDS, None)):
        outcome = in_a_process(lambda rounds=rounds: train(run, variant, rounds), folder)  # type: ignore[misc]
        if outcome.how != "done":
            raise RuntimeError(f"{variant.name}: {outcome}")
        if copy is not None:
            shutil.copytree(run, copy)
    expected = left_behind(run)
    shutil.rmtree(run)
    return kept, before, expected


def _one(
    run: Path,
    variant: Variant,
    kept: Path,
    before: Path,
    expected: dict[str, bytes],
    draw: random.Random,
    tally: Tally,
) -> None:
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(kept, run)
    target = draw.choice([name for name in _TARGETS if (before / name).exists()])
    damage = draw.choice(DAMAGES)
    file, whole = run / target, (kept / target).read_bytes()
    damaged = damage(bytearray(whole), (before / target).read_bytes(), draw)
    if damaged is None:
        file.unlink()
    else:
        file.write_bytes(damaged)
    tally.count("damaged files")
    if damaged == whole:
        tally.count("  of them as before by chance")
    looked = in_a_process(lambda: _verify(run), run)
    outcome = in_a_process(lambda: train(run, variant, _ROUNDS), run)
    where = f"{variant.name}, {target}, {damage.__name__}, {looked.how} {looked.said}, {outcome}"
    found = file.read_bytes() if file.exists() else None
    _judge(run, outcome, expected, found == damaged, where, tally)
    for each in (looked, outcome):
        if each.how == "killed":
            tally.blame("deaths by a signal", where)
        elif each.how in ("foreign", "failed"):
            tally.blame("exceptions that are not ours", where)


def _verify(run: Path) -> None:
    from fedvarp.errors import FedvarpError
    from fedvarp.simulation.safekeeping import verify

    looked_at = run / "state" if (run / "state").exists() else run
    if wrong := [found for found in verify(looked_at) if not found.is_sound]:
        raise FedvarpError(str(wrong))


def _judge(
    run: Path,
    outcome: Outcome,
    expected: dict[str, bytes],
    is_as_it_was: bool,
    where: str,
    tally: Tally,
) -> None:
    if outcome.how == "refused":
        tally.count("refused in a sentence, to be restored from a backup")
        if not is_as_it_was:
            tally.blame("changed although refused", where)
    elif outcome.how == "done" and left_behind(run) == expected:
        resumed = -1 if outcome.resumed_at is None else outcome.resumed_at
        what = "went on a round before" if resumed < _KEPT else "went on as if nothing had happened"
        tally.count(what)
    elif outcome.how == "done" and "config.toml," in where:
        tally.count("told otherwise by config.toml")
    elif outcome.how == "done":
        tally.blame("silent differences", where)
