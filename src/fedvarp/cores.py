"""How many processes this machine can run at once."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """The cores this process may use, where the system tells."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
