"""Who resumes the runs of a sweep: processes of this machine, or Ray."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol

from fedvarp.errors import InvalidError, wants_tracebacks
from fedvarp.experiments.sweep_worker import SWEEP_IS_DEAD
from fedvarp.processes import CORES_VARIABLE, signal_when_orphaned, usable_cores, who_is_watched

_LOOK_EVERY: Final = 0.05  # seconds
_HEARTBEAT: Final = 0.5


@dataclass(frozen=True)
class Outcome:
    """How a run came to an end.

    Attributes:
        directory: The run.
        error: Why it failed, in a sentence; None if it did not.
    """

    directory: Path
    error: str | None = None


class Engine(Protocol):
    """Resumes runs, several at once."""

    def run(
        self, directories: Sequence[Path], stop: Callable[[], bool]
    ) -> Iterator[Outcome | None]:
        """Resumes all runs; one that fails stops no other.

        Args:
            directories: The runs.
            stop: Says whether to end. Once it does, the runs under way finish their round and no
                other is begun; what they end with then is no error.

        Yields:
            Each outcome as it comes, and None now and then while nothing happens.
        """


def make_engine(
    name: Literal["local", "ray"], jobs: int | None, address: str | None, data_dir: Path | None
) -> Engine:
    """The engine of that name.

    Args:
        name: "local" for processes of this machine, "ray" for tasks of Ray.
        jobs: Runs at once; None: one for each core.
        address: Of a Ray cluster.
        data_dir: Where the data files are; None: in the folder of FEDVARP_DATA.

    Returns:
        The engine; nothing is started yet.

    Raises:
        ValueError: There is an address, but the engine is not Ray's.
    """
    at_once = jobs or usable_cores()
    if name == "local":
        if address is not None:
            raise InvalidError(f"--address {address} is Ray's: add --engine ray.")
        return LocalEngine(at_once, data_dir)
    from fedvarp.experiments.sweep_on_ray import RayEngine

    return RayEngine(address, at_once, data_dir)


@dataclass(frozen=True)
class LocalEngine:
    """Every run in a process of its own; see `fedvarp.experiments.sweep_worker`.

    Attributes:
        jobs: Runs at once.
        data_dir: Where the data files are; None: in the folder of FEDVARP_DATA.
    """

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
                    error = process.error()
                    yield Outcome(process.directory, None if stopping or stop() else error)
                if time.monotonic() - heartbeat > _HEARTBEAT:
                    heartbeat = time.monotonic()
                    yield None
                time.sleep(_LOOK_EVERY)
        finally:
            for process in running:
                process.kill()


class _Process:
    """A `sweep_worker` for one run."""

    def __init__(self, directory: Path, data_dir: Path | None, cores: int) -> None:
        self.directory = directory
        # Files, not pipes: a process whose pipe is full would wait for a reader.
        with ExitStack() as opened:
            self._report = opened.enter_context(tempfile.TemporaryFile())
            self._said = opened.enter_context(tempfile.TemporaryFile())
            where = [] if data_dir is None else [str(data_dir)]
            watched = who_is_watched()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "fedvarp.experiments.sweep_worker", str(directory), *where],
                stdin=subprocess.DEVNULL,
                stdout=self._report,
                stderr=None if wants_tracebacks() else self._said,
                env={**os.environ, CORES_VARIABLE: str(cores)},
                # Ctrl-C reaches all processes of a terminal's group; a second SIGINT, from us,
                # would make them drop their round.
                start_new_session=True,
                # A sweep that is killed leaves nothing running: its runs finish their round.
                preexec_fn=lambda: signal_when_orphaned(watched, SWEEP_IS_DEAD),
            )
            self._opened = opened.pop_all()

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._opened.close()

    def error(self) -> str | None:
        """Why it ended too early, once it has ended; None if it did not."""
        with self._opened:
            self._report.seek(0)
            self._said.seek(0)
            report, said = self._report.read(), self._said.read().decode(errors="replace")
        if report.endswith(b"\n"):  # else it ended before it could say how
            error: str | None = json.loads(report)["error"]
            return error
        code = self._process.returncode
        if code < 0:
            return f"{signal.Signals(-code).name} ended it; SIGKILL often means too little memory"
        last = [f": {line}" for line in said.strip().splitlines()[-1:]]
        return f"it ended with exit code {code}" + "".join(last)
