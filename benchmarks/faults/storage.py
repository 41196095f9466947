"""Small real runs in processes of their own, whose storage calls are counted, cut short or logged.

A process is forked for each run, so that a run costs some hundredths of a second, not the seconds
of loading torch. `storage_calls.c` stands between it and the C library.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

NOTHING, KILL, KILL_HALF_WAY, FAIL_EIO, FAIL_ENOSPC = range(5)

_READY: Final = "FEDVARP_FAULTS_SHIM"


Throw = Callable[[Path, int, random.Random, "Tally"], None]
"""Throws so many faults at runs in a folder, and counts what comes of them."""


def campaign(
    name: str,
    about: str | None,
    arguments: Sequence[str],
    throw: Throw,
    *,
    bad: Sequence[str],
    count: int,
) -> int:
    """Runs a campaign under the shim, and prints its counts; Ctrl-C prints those so far.

    Args:
        name: Of the campaign.
        about: What it does.
        arguments: ``--count``, how many faults; ``--seed``: others are thrown with another one.
        throw: Throws them.
        bad: What should not happen.
        count: How many unless told otherwise.

    Returns:
        How many things went wrong that should not.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.faults {name}", description=about)
    parser.add_argument("--count", type=int, default=count, help=f"{count:,} unless given")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    if not os.environ.get(_READY):  # this program again, with the shim before the C library
        with shim() as environment:
            command = [sys.executable, "-m", "benchmarks.faults", name, *arguments]
            return subprocess.run(command, env=environment, check=False).returncode
    tally = Tally()
    with tempfile.TemporaryDirectory(dir=_scratch()) as place:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background too
        with contextlib.suppress(KeyboardInterrupt):
            throw(Path(place).resolve(), given.count, random.Random(given.seed), tally)
        return tally.report(bad)


@contextlib.contextmanager
def shim() -> Iterator[dict[str, str]]:
    """Compiles the shim, and gives the environment variables of a program that has it."""
    compiler = shutil.which("cc")
    if compiler is None:
        sys.exit("The campaigns of kills and power cuts need a C compiler, as cc.")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "storage_calls.so"
        source = Path(__file__).with_name("storage_calls.c")
        subprocess.run(
            [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(source)], check=True
        )
        yield {**os.environ, "LD_PRELOAD": str(library), _READY: "1"}


def _scratch() -> str | None:
    """A folder in memory, if there is one: what a disk would lose is simulated, not waited for."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@dataclass(frozen=True, eq=False)
class Variant:
    """A kind of run.

    Attributes:
        name: What it is called.
        settings: What `simulate` is told beyond the usual.
        fsync: Whether commits wait for the disk.
        commit_every: Rounds between commits.
        keep: How many of the last commits can be gone back to.
        is_served: Whether it is a server alone, without clients that train: a tenth of the time.
        is_beside: Whether each commit runs beside the next training, as that of a slow disk does.
    """

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    fsync: bool = True
    commit_every: int = 1
    keep: int = 2
    is_served: bool = False
    is_beside: bool = False


def servers() -> list[Variant]:
    """Servers alone, as behind Flower's strategy."""
    return [
        Variant("server", is_served=True),
        Variant("server, rows on disk", {"codec": "float32"}, is_served=True),
        Variant("server, int8 on disk", {"codec": "int8"}, is_served=True),
        Variant("server, four states", keep=4, is_served=True),
        Variant("server, no fsync", fsync=False, is_served=True),
    ]


def variants() -> list[Variant]:
    """The kinds of run that faults are thrown at; loads all that they need, once for all."""
    import torch

    from fedvarp import Table

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        train(Path(folder) / "run", Variant("warm"), 1)
    gc.freeze()  # or each collection of a child would copy the pages of all objects there are
    _use_huge_pages()

    return [
        Variant("rows in memory"),
        Variant("rows on disk", {"table": Table(where="disk")}),
        Variant("int8 on disk", {"table": Table(where="disk", codec="int8"), "algorithm": "mifa"}),
        Variant("few rows", {"table": Table(max_rows=3)}),
        Variant("scaffold, four states", {"algorithm": "scaffold"}, keep=4),
        Variant("every second round", commit_every=2),
        Variant("no fsync", fsync=False),
        Variant("on disk, no fsync", {"table": Table(where="disk")}, fsync=False),
        Variant("beside training", is_beside=True),
        Variant("on disk, beside training", {"table": Table(where="disk")}, is_beside=True),
    ]


def _use_huge_pages() -> None:
    """Has a fork copy a thousand entries of page tables in place of forty thousand, if it can."""
    c_library, huge, advise, collapse = ctypes.CDLL(None), 2**21, 14, 25
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        extent, access, _, _, inode, *name = line.split()
        begin, end = (int(address, 16) for address in extent.split("-"))
        begin, end = -(-begin // huge) * huge, end // huge * huge
        if access == "rw-p" and inode == "0" and name in ([], ["[heap]"]) and begin < end:
            for advice in (advise, collapse):  # a kernel that cannot says so, and all is as before
                c_library.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), advice)


DIM: Final = 40


def train(folder: Path, variant: Variant, rounds: int) -> None:
    """Begins a small run in a folder, or goes on with it: the same call whatever is there.

    Args:
        folder: Of the run.
        variant: Which.
        rounds: T.
    """
    if variant.is_served:
        _serve(folder, variant, rounds)
        return
    import torch

    from fedvarp import Evaluation, LocalSGD, Recording, simulate, stream
    from fedvarp.data import from_tensors
    from fedvarp.models import Quadratic, quadratic_loss
    from fedvarp.simulation import recording

    x = torch.randn(6, DIM, generator=stream(0, "centres"))
    clients = from_tensors([(row[None], torch.ones(1, DIM)) for row in x])
    given: dict[str, Any] = {"algorithm": "fedvarp", **variant.settings}
    if variant.is_beside:  # a process is forked for each run, so this is for this one only
        setattr(recording, "_SLOW", 0.0)  # noqa: B010
    simulate(
        clients,
        Quadratic(DIM),
        quadratic_loss,
        local_sgd=LocalSGD(lr=0.1, batch_size=1, epochs=2),
        clients_per_round=2,
        rounds=rounds,
        evaluation=Evaluation(every=1),
        recording=Recording(
            out=str(folder),
            resume=True,
            fsync=variant.fsync,
            commit_every=variant.commit_every,
            keep_checkpoints=variant.keep,
            progress=False,
        ),
        **given,
    )


def _serve(folder: Path, variant: Variant, rounds: int) -> None:
    import torch

    from fedvarp import (
        Checkpoint,
        DiskTable,
        FedVARP,
        MemoryTable,
        RoundUpdates,
        Server,
        ServerMomentum,
        stream,
    )
    from fedvarp.system.whole_files import write_whole

    clients, two, state = 6, torch.full((2,), 2), folder / "state"
    with contextlib.ExitStack() as opened:
        checkpoint = opened.enter_context(Checkpoint(state, fsync=variant.fsync, keep=variant.keep))
        table: MemoryTable | DiskTable = MemoryTable(clients, DIM)
        if variant.settings:
            codec = variant.settings["codec"]
            table = opened.enter_context(DiskTable(state, clients, DIM, codec, fsync=variant.fsync))
        server = Server(torch.zeros(DIM), FedVARP(table), ServerMomentum(0.9))
        checkpoint.restore(server)
        while server.round < rounds:
            draw = stream(0, "round", server.round)
            cohort = torch.randperm(clients, generator=draw)[:2].sort().values
            deltas = torch.randn(2, DIM, generator=draw) + server.w
            server.receive(RoundUpdates(cohort, deltas, two, two, scale=0.05))
            checkpoint.commit(server)
        found = torch.cat([server.w[None], table.mean()[None], table.get(torch.arange(clients))])
    write_whole(folder / "server.bin", found.numpy().tobytes())


@dataclass(frozen=True)
class Outcome:
    """How a process ended.

    Attributes:
        how: "done", "refused" (an error of ours), "failed" (an error of the operating system's),
            "foreign" (any other error) or "killed".
        said: The error's message, or the number of the signal.
        committed: The rounds whose commit came back.
        resumed_at: The round that the checkpoint held when it began; None without one.
        calls: How many storage calls it made.
    """

    how: str
    said: str = ""
    committed: tuple[int, ...] = ()
    resumed_at: int | None = None
    calls: int = 0


def in_a_process(
    work: Callable[[], None],
    folder: Path,
    *,
    at: int = -1,
    action: int = NOTHING,
    log: Path | None = None,
) -> Outcome:
    """Does something in a process of its own.

    Args:
        work: What.
        folder: The storage calls below it count.
        at: The call to act upon; -1 for none.
        action: What to do at it.
        log: Where to log all calls, if anywhere.

    Returns:
        How it ended.
    """
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        _child(work, folder, at, action, log, write)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        lines = [json.loads(line) for line in pipe.read().splitlines()]
    _, status = os.waitpid(pid, 0)
    told: dict[str, Any] = {"how": "killed", "said": str(os.WTERMSIG(status))}
    committed = [line["committed"] for line in lines if "committed" in line]
    for line in lines:
        told |= {name: value for name, value in line.items() if name != "committed"}
    return Outcome(committed=tuple(committed), **told)


def _child(
    work: Callable[[], None], folder: Path, at: int, action: int, log: Path | None, pipe: int
) -> None:
    from fedvarp.errors import FedvarpError
    from fedvarp.server.checkpoint import Checkpoint

    warnings.simplefilter("ignore")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    shim = ctypes.CDLL(None)

    def tell(**what: object) -> None:
        os.write(pipe, json.dumps(what).encode() + b"\n")

    commit, restore = Checkpoint.commit, Checkpoint.restore

    def committing(self: Checkpoint, *arguments: Any, **named: Any) -> None:
        commit(self, *arguments, **named)
        if hasattr(shim, "faults_mark"):
            shim.faults_mark(ctypes.c_long(self.round or 0))
        tell(committed=self.round)

    def restoring(self: Checkpoint, *arguments: Any) -> bool:
        tell(resumed_at=self.round)
        return restore(self, *arguments)

    Checkpoint.commit = committing  # type: ignore[method-assign]
    Checkpoint.restore = restoring  # type: ignore[method-assign, assignment]
    if hasattr(shim, "faults_arm"):
        descriptor = -1
        if log is not None:
            descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        shim.faults_arm(str(folder).encode(), descriptor, ctypes.c_long(at), action)
    code = 1
    try:
        work()
        tell(how="done", calls=shim.faults_count() if hasattr(shim, "faults_count") else 0)
        code = 0
    except FedvarpError as error:
        tell(how="refused", said=str(error))
    except OSError as error:
        tell(how="failed", said=repr(error))
    except BaseException as error:
        import traceback

        tell(how="foreign", said="".join(traceback.format_exception(error)))
    finally:
        os._exit(code)


def left_behind(run: Path) -> dict[str, bytes]:
    """What two runs that are the same have the same, to the byte.

    Args:
        run: Its folder.

    Returns:
        The content of those files by name.
    """
    names = ("metrics.jsonl", "model.safetensors", "config.toml", "server.bin")
    return {name: (run / name).read_bytes() for name in names if (run / name).exists()}


class Tally:
    """Counts, and the first few things that should not have happened."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.wrong: list[str] = []

    def count(self, what: str, times: int = 1) -> None:
        """Adds to one of the counts; tells of every five hundred, since hours may pass."""
        self.counts[what] = self.counts.get(what, 0) + times
        if self.counts[what] % 500 == 0:
            sys.stderr.write(f"{self.counts[what]:,} {what}; {len(self.wrong)} wrong so far\n")

    def blame(self, what: str, where: str) -> None:
        """Counts what should not have happened, and remembers where it did."""
        self.count(what)
        self.wrong.append(f"{what}: {where}")

    def report(self, bad: Sequence[str]) -> int:
        """Prints all counts, with zeros for what never happened.

        Args:
            bad: What should not.

        Returns:
            How often it did.
        """
        for what in (*self.counts, *(b for b in bad if b not in self.counts)):
            sys.stdout.write(f"{self.counts.get(what, 0):7,}  {what}\n")
        for line in self.wrong[:10]:
            sys.stdout.write(f"\n{line}\n")
        return len(self.wrong)


def signal_name(outcome: Outcome) -> str:
    """The name of the signal that ended a process."""
    return signal.Signals(int(outcome.said)).name if outcome.how == "killed" else ""
