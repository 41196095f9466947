"""How a contestant is told when to run rounds, so that several can take turns round by round."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from typing import Final

VARIABLE: Final = "BENCHMARK_PACE"  # the path of the socket on which rounds are granted


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
