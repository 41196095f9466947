"""A process that runs rounds when it is told to, so that several can take turns round by round.

`Contestant` is the benchmark's end of the line, `Pace` that of the process. Nothing but Python's
own library is imported here: other packages use it too.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks import ROOT
from benchmarks.rounds.process_tree import tree

VARIABLE: Final = "BENCHMARK_PACE"  # the path of the socket on which rounds are granted
PATIENCE: Final = 600.0  # seconds without a sign of life
FAREWELL: Final = 30.0  # seconds to end by itself


class ContestantError(Exception):
    """A contestant ended before its rounds did."""


@dataclass(frozen=True)
class Entry:
    """Who takes part: a command that calls `Pace` between its rounds."""

    arguments: Sequence[str]
    python: str = sys.executable
    environment: Mapping[str, str] = field(default_factory=dict)


class Contestant:
    """An entry that runs while it is entered; its output goes to a file, to quote errors from."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        self._opened = contextlib.ExitStack()

    def __enter__(self) -> Contestant:
        folder = Path(self._opened.enter_context(tempfile.TemporaryDirectory()))
        self._output = folder / "output"
        self._listening = self._opened.enter_context(socket.socket(socket.AF_UNIX))
        self._listening.bind(str(folder / "pace"))
        self._listening.listen(1)
        self._began = time.perf_counter()
        self._process = subprocess.Popen(
            [self._entry.python, *self._entry.arguments],
            cwd=ROOT,
            env={**os.environ, **self._entry.environment, VARIABLE: str(folder / "pace")},
            stdin=subprocess.DEVNULL,
            stdout=self._opened.enter_context(self._output.open("wb")),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._line: socket.socket | None = None
        return self

    def __exit__(self, *exception: object) -> None:
        family = tree(self.pid)
        if self._line is not None:
            self._line.shutdown(socket.SHUT_RDWR)  # it need not wait for more rounds
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(FAREWELL)
        if self._process.poll() is None:
            for pid in family:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait()
        self._opened.close()

    @property
    def pid(self) -> int:
        """Of its first process."""
        return self._process.pid

    @property
    def age(self) -> float:
        """Seconds since it was started."""
        return time.perf_counter() - self._began

    def announce(self, rounds: int) -> None:
        """Tells it how many rounds there will be; returns when it stands before the first."""
        self._line = self._opened.enter_context(self._accept())
        self._answers = self._opened.enter_context(self._line.makefile("r"))
        self._tell(rounds)

    def run(self, rounds: int) -> list[float]:
        """The seconds of each of these rounds."""
        return self._tell(rounds)

    def _tell(self, number: int) -> list[float]:
        if self._line is None:
            raise ContestantError("it was not announced how many rounds there will be")
        try:
            self._line.sendall(f"{number}\n".encode())
            answer = self._answers.readline()
        except OSError:
            answer = ""
        if not answer:
            raise ContestantError(self._last_words())
        seconds: list[float] = json.loads(answer)
        return seconds

    def _accept(self) -> socket.socket:
        self._listening.settimeout(0.02)
        while self._process.poll() is None and time.perf_counter() - self._began < PATIENCE:
            with contextlib.suppress(TimeoutError):
                line, _ = self._listening.accept()
                line.settimeout(PATIENCE)
                return line
        raise ContestantError(self._last_words())

    def _last_words(self) -> str:
        said = self._output.read_text(errors="replace").strip().splitlines()
        return said[-1].strip() if said else "it ended without a word"


class Pace:
    """Called before the first round and after each: waits until the next is granted.

    What is said, a line each: the benchmark says how many rounds there will be in all, and then how
    many may be run now; the contestant answers with the seconds of each.
    """

    def __init__(self) -> None:
        self._line = socket.socket(socket.AF_UNIX)
        self._line.connect(os.environ[VARIABLE])
        self._granting = self._line.makefile("r")
        self._granted = 0
        self._seconds: list[float] = []
        self._began = 0.0
        self.rounds = int(self._granting.readline())

    def __call__(self) -> None:
        """Between two rounds."""
        if self._granted:
            self._seconds.append(time.perf_counter() - self._began)
        if len(self._seconds) == self._granted:
            self._line.sendall(json.dumps(self._seconds).encode() + b"\n")
            self._seconds = []
            # Nothing more is granted after the last round; the contestant then ends by itself.
            self._granted = int(self._granting.readline() or sys.maxsize)
        self._began = time.perf_counter()
