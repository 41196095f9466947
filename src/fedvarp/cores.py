"""How many processes this run may have at work at once."""

from __future__ import annotations

import os
from typing import Final

CORES_VARIABLE: Final = "FEDVARP_CORES"


def usable_cores() -> int:
    """What the environment variable FEDVARP_CORES says; else the cores this process may use.

    A sweep sets it, so that several runs at once do not each take all cores.
    """
    told = os.environ.get(CORES_VARIABLE, "")
    if told:
        if not told.isdecimal() or int(told) < 1:
            raise ValueError(f"{CORES_VARIABLE}={told!r} must be a whole number of at least 1.")
        return int(told)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
