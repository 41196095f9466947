"""Settings of glibc's malloc that spare training a page fault for every activation."""

from __future__ import annotations

import ctypes
import platform
from typing import Final

_TRIM_THRESHOLD: Final = -1  # the numbers of malloc.h
_MMAP_THRESHOLD: Final = -3
_LARGEST_MMAP_THRESHOLD: Final = 32 * 2**20  # glibc refuses more
_NEVER_TRIM: Final = 2**30


def keep_freed_memory() -> bool:
    """Lets this process reuse freed memory in place of giving it back to the system.

    Each local step frees its activations, and by default the next step has them mapped and zeroed
    anew: thousands of page faults for one LeNet-5 client. Called by the command line and by the
    workers of `ParallelTrainer`; a script that trains in its own process may call it first.

    Returns:
        Whether this system has the setting.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    malloc = ctypes.CDLL(None)
    kept_small = malloc.mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
    return bool(kept_small and malloc.mallopt(_TRIM_THRESHOLD, _NEVER_TRIM))
