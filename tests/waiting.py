"""Waiting for other processes to come so far."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def lines_of(file: Path) -> int:
    return file.read_bytes().count(b"\n") if file.exists() else 0
