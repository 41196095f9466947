"""The campaigns of faults find nothing, and would find something if there were anything to find."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.faults.lost_power import Call, Disk
from benchmarks.faults.storage import shim

ROOT = Path(__file__).parents[1]
needs_a_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="compiles a shim in C")


def campaigns(kills: int, cuts: int, damages: int) -> str:
    """All three in one process, which loads torch once; what they count."""
    counts = {"kills": kills, "power": cuts, "damage": damages}
    calls = "+".join(f"{name}.main(['--count', '{count}'])" for name, count in counts.items())
    code = f"import sys; from benchmarks.faults import damage, kills, power; sys.exit({calls})"
    with shim() as environment:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_a_compiler
def test_a_few_faults_of_each_kind_cost_nothing() -> None:
    said = campaigns(12, 10, 10)
    assert "10  power cuts" in said
    assert "10  damaged files" in said


@pytest.mark.slow
@needs_a_compiler
def test_hundreds_of_faults_of_each_kind_cost_nothing() -> None:
    campaigns(500, 300, 300)


def states(calls: list[Call], root: Path, place: Path) -> set[tuple[tuple[str, bytes], ...]]:
    """The states that a disk was found in after many cuts of the power."""
    found = set()
    for n in range(200):
        disk = Disk(root)
        for call in calls:
            disk.do(call)
        to = place / str(n)
        disk.after_the_cut(to, random.Random(n))
        files = sorted((str(f.relative_to(to)), f.read_bytes()) for f in to.rglob("*"))
        found.add(tuple(files))
    return found


def test_a_disk_without_power_may_have_lost_what_was_not_waited_for(tmp_path: Path) -> None:
    root = Path("/disk")
    new, renamed = "/disk/new", b"/disk/name"
    write = [Call("c", 1, 0, new, b""), Call("w", 1, 0, new, b"text")]
    sync, move = Call("s", 1, 0, new, b""), Call("r", 0, 0, new, renamed)
    folder = Call("s", 2, 0, "/disk", b"")
    nothing, empty, zeros, whole = (
        (),
        (("new", b""),),
        (("new", bytes(4)),),
        (("new", b"text"),),
    )
    assert states(write, root, tmp_path / "a") == {nothing, empty, zeros, whole}
    assert states([*write, folder], root, tmp_path / "b") == {empty, zeros, whole}
    assert states([*write, sync], root, tmp_path / "c") == {nothing, whole}
    whole_and_named = (("name", b"text"),)
    moved = states([*write, sync, move], root, tmp_path / "d")
    assert moved == {nothing, whole, whole_and_named}
    assert states([*write, sync, move, folder], root, tmp_path / "e") == {whole_and_named}
    half_named = (("name", b""),)
    assert half_named in states([*write, move, folder], root, tmp_path / "f")


def test_sectors_arrive_in_any_order_and_waiting_writes_at_once(tmp_path: Path) -> None:
    root, file = Path("/disk"), "/disk/file"
    there = [Call("c", 1, 0, file, b""), Call("s", 2, 0, "/disk", b"")]
    both = [*there, Call("w", 1, 0, file, b"a" * 1024)]
    found = {dict(state)["file"] for state in states(both, root, tmp_path / "a")}
    assert bytes(512) + b"a" * 512 in found
    assert {b"a" * 512, b"a" * 1024, b"", b"a" * 512 + bytes(512)} <= found
    waited = [*there, Call("d", 1, 0, file, b"a" * 1024)]
    assert states(waited, root, tmp_path / "b") == {(("file", b"a" * 1024),)}
