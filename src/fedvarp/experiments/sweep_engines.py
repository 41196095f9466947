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
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol

from fedvarp.errors import InvalidError, wants_tracebacks
from fedvarp.experiments.sweep_worker import SWEEP_IS_DEAD
from fedvarp.system.processes import (
    CORES_VARIABLE,
    signal_when_orphaned,
    usable_cores,
    who_is_watched,
)

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
    """Processes that train one run after another; see `fedvarp.experiments.sweep_worker`.

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
        busy: list[_Worker] = []
        idle: list[_Worker] = []
        # Runs use cores better than clients do, which leave some idle at the end of each round.
        cores = max(1, usable_cores() // max(1, min(self.jobs, len(waiting))))
        stopping, heartbeat = False, time.monotonic()
        try:
            while busy or (waiting and not stopping):
                if stop() and not stopping:
                    stopping = True
                    for worker in busy:
                        worker.interrupt()
                while waiting and len(busy) < self.jobs and not stopping:
                    worker = idle.pop() if idle else _Worker(self.data_dir, cores)
                    busy.append(worker)
                    worker.begin(waiting.popleft())
                for worker in [worker for worker in busy if worker.run_has_ended]:
                    busy.remove(worker)
                    error = worker.error()
                    if worker.is_alive:
                        idle.append(worker)
                    else:
                        worker.end()
                    yield Outcome(worker.directory, None if stopping or stop() else error)
                if time.monotonic() - heartbeat > _HEARTBEAT:
                    heartbeat = time.monotonic()
                    yield None
                time.sleep(_LOOK_EVERY)
        finally:
            for worker in busy:
                worker.kill()
            for worker in [*busy, *idle]:
                worker.end()


class _Worker:
    """A `sweep_worker`, which takes runs from its standard input.

    Attributes:
        directory: The run that it was given last.
    """

    directory: Path

    def __init__(self, data_dir: Path | None, cores: int) -> None:
        self._read = 0  # bytes of its reports
        # Files, not pipes: a process whose pipe is full would wait for a reader.
        with ExitStack() as opened:
            self._reports = opened.enter_context(tempfile.TemporaryFile())
            self._said = opened.enter_context(tempfile.TemporaryFile())
            where = [] if data_dir is None else [str(data_dir)]
            watched = who_is_watched()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "fedvarp.experiments.sweep_worker", *where],
                stdin=subprocess.PIPE,
                stdout=self._reports,
                stderr=None if wants_tracebacks() else self._said,
                env={**os.environ, CORES_VARIABLE: str(cores)},
                # Ctrl-C reaches all processes of a terminal's group; a second SIGINT, from us,
                # would make them drop their round.
                start_new_session=True,
                # A sweep that is killed leaves nothing running: its runs finish their round.
                preexec_fn=lambda: signal_when_orphaned(watched, SWEEP_IS_DEAD),
            )
            self._opened = opened.pop_all()

    def begin(self, directory: Path) -> None:
        """Hands it the next run."""
        self.directory = directory
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has died meanwhile, which `error` tells
            self._process.stdin.write(json.dumps(str(directory)).encode() + b"\n")
            self._process.stdin.flush()

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def run_has_ended(self) -> bool:
        return not self.is_alive or self._unread().endswith(b"\n")

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> None:
        """Lets it come to its end, once no run of its own is under way."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._opened.close()

    def error(self) -> str | None:
        """Why its run ended too early, once that has ended; None if it did not."""
        report = self._unread()
        self._read += len(report)
        if report.endswith(b"\n"):  # else it ended before it could say how
            error: str | None = json.loads(report)["error"]
            return error
        code = self._process.wait()
        if code < 0:
            return f"{signal.Signals(-code).name} ended it; SIGKILL often means too little memory"
        self._said.seek(0)
        said = self._said.read().decode(errors="replace").strip()
        last = [f": {line}" for line in said.splitlines()[-1:]]
        return f"it ended with exit code {code}" + "".join(last)

    def _unread(self) -> bytes:
        # Not by seek and read: the position in the file is the process's own, too.
        size = os.fstat(self._reports.fileno()).st_size
        return os.pread(self._reports.fileno(), size - self._read, self._read)
