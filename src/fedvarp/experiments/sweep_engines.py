"""Who resumes the runs of a sweep: processes of this machine, or Ray."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Literal, Protocol

from fedvarp.cli.errors import INTERRUPTED
from fedvarp.processes import CORES_VARIABLE, signal_when_orphaned, usable_cores, who_is_watched

_LOOK_EVERY: Final = 0.05  # seconds
_HEARTBEAT: Final = 0.5
INTERRUPTED_ALONE: Final = (
    "it was interrupted, though the sweep was not: by a SIGINT or SIGTERM of somebody else. Its "
    "rounds are kept; the same command again goes on"
)


@dataclass(frozen=True)
class Outcome:
    """A run came to an end; an error says it failed."""

    directory: Path
    error: str | None = None


class Engine(Protocol):
    """Resumes runs, several at once."""

    def run(
        self, directories: Sequence[Path], stop: Callable[[], bool]
    ) -> Iterator[Outcome | None]:
        """Yields each outcome as it comes, and None now and then while nothing happens.

        Once `stop` says so, the runs under way finish their round and no other is begun. A run
        that fails stops no other.
        """


def make_engine(
    name: Literal["local", "ray"], jobs: int | None, address: str | None, data_dir: Path | None
) -> Engine:
    """The engine of that name.

    Args:
        name: Which.
        jobs: Runs at once; None: one for each core.
        address: Of a Ray cluster.
        data_dir: Where the data files are; None: in the folder of FEDVARP_DATA.
    """
    at_once = jobs or usable_cores()
    if name == "local":
        if address is not None:
            raise ValueError(f"--address {address} is Ray's: add --engine ray.")
        return LocalEngine(at_once, data_dir)
    from fedvarp.experiments.sweep_on_ray import RayEngine

    return RayEngine(address, at_once, data_dir)


@dataclass(frozen=True)
class LocalEngine:
    """Every run a process of its own: `fedvarp resume DIRECTORY`."""

    jobs: int
    data_dir: Path | None = None

    def run(
        self, directories: Sequence[Path], stop: Callable[[], bool]
    ) -> Iterator[Outcome | None]:
        """See `Engine.run`."""
        waiting = deque(directories)
        running: list[_Process] = []
        # Runs use cores better than clients do, which leave some idle at the end of each round.
        cores = max(1, usable_cores() // max(1, min(self.jobs, len(waiting))))
        stopping, heartbeat = False, time.monotonic()
        try:
            while running or (waiting and not stopping):
                if stop() and not stopping:
                    stopping = True
                    for process in running:
                        process.interrupt()
                while waiting and len(running) < self.jobs and not stopping:
                    running.append(_Process(waiting.popleft(), self.data_dir, cores))
                for process in [process for process in running if process.ended]:
                    running.remove(process)
                    yield process.outcome(stopping or stop())
                if time.monotonic() - heartbeat > _HEARTBEAT:
                    heartbeat = time.monotonic()
                    yield None
                time.sleep(_LOOK_EVERY)
        finally:
            for process in running:
                process.kill()


class _Process:
    def __init__(self, directory: Path, data_dir: Path | None, cores: int) -> None:
        self.directory = directory
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed in outcome()
        where = [] if data_dir is None else ["--data-dir", str(data_dir)]
        watched = who_is_watched()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fedvarp.cli", "resume", str(directory), "--quiet", *where],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            env={**os.environ, CORES_VARIABLE: str(cores)},
            # Ctrl-C reaches all processes of a terminal's group; a second SIGINT, from us, would
            # make them drop their round.
            start_new_session=True,
            # A sweep that is killed leaves nothing running: its runs finish their round and stop.
            preexec_fn=lambda: signal_when_orphaned(watched, signal.SIGINT),
        )

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._errors.close()

    def outcome(self, stopping: bool) -> Outcome:
        code = self._process.returncode
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().removeprefix("fedvarp: ")
        self._errors.close()
        if code == 0 or stopping:
            return Outcome(self.directory)
        if code == INTERRUPTED:
            said = INTERRUPTED_ALONE
        if code < 0:
            said = f"{signal.Signals(-code).name} ended it; SIGKILL often means too little memory"
        return Outcome(self.directory, said or f"it ended with exit code {code}")
