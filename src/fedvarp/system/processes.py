"""This process and its children: cores, memory, Ctrl-C, and the death of a parent.

What the operating system has to be asked for, in one place and without torch.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import sys
import threading
from types import FrameType
from typing import Any, Final

from fedvarp.errors import InvalidError

CORES_VARIABLE: Final = "FEDVARP_CORES"
"""The environment variable that says how many cores a process may use."""
_TRIM_THRESHOLD: Final = -1  # the numbers of malloc.h
_MMAP_THRESHOLD: Final = -3
_LARGEST_MMAP_THRESHOLD: Final = 32 * 2**20  # glibc refuses more
_NEVER_TRIM: Final = 2**30
_PR_SET_PDEATHSIG: Final = 1


def usable_cores() -> int:
    """Counts the cores this process may use.

    A sweep sets the environment variable FEDVARP_CORES, so that several runs at once do not each
    take all cores.

    Returns:
        What FEDVARP_CORES says; else how many cores the system gives this process.

    Raises:
        ValueError: FEDVARP_CORES is no whole number of at least 1.
    """
    told = os.environ.get(CORES_VARIABLE, "")
    if told:
        if not told.isdecimal() or int(told) < 1:
            raise InvalidError(f"{CORES_VARIABLE}={told!r} must be a whole number of at least 1.")
        return int(told)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def keep_freed_memory() -> bool:
    """Lets this process reuse freed memory in place of giving it back to the system.

    Each local step frees its activations, and by default the next step has them mapped and zeroed
    anew: thousands of page faults for one LeNet-5 client. Called by the command line, the workers
    of `ParallelTrainer` and Ray's actors; a script that trains in its own process may call it
    first.

    Returns:
        Whether this system has the setting.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    malloc = ctypes.CDLL(None)
    kept_small = malloc.mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
    return bool(kept_small and malloc.mallopt(_TRIM_THRESHOLD, _NEVER_TRIM))


def who_is_watched() -> int | None:
    """Says whose death a child should notice, for `signal_when_orphaned` in that child.

    Returns:
        The number of this process; None outside the main thread, since Linux takes the end of the
        thread that started a child for the end of its parent.
    """
    return os.getpid() if threading.current_thread() is threading.main_thread() else None


def signal_when_orphaned(parent: int | None, which: signal.Signals) -> None:
    """Asks Linux, in a child, for a signal when the parent dies; other systems cannot be asked.

    It may come more than once: each thread of a dying parent hands the child on to the next one,
    and the kernel sends the signal each time.

    Args:
        parent: What `who_is_watched` said in the parent; None: nothing is asked for.
        which: The signal.
    """
    if parent is None:
        return
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, which)
    if os.getppid() != parent:  # it died before we asked
        os._exit(1)


def interrupt_on_sigterm() -> None:
    """Lets SIGTERM do what Ctrl-C does, for programs that finish their round then.

    Schedulers end a job by SIGTERM. Called by the main thread of a program of ours.
    """
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))


def interrupt_once_on(which: signal.Signals) -> None:
    """Lets the first signal of a kind do what Ctrl-C does once; later ones of that kind do nothing.

    For `signal_when_orphaned`, whose second signal would count as a second Ctrl-C. Called by the
    main thread of a program of ours.

    Args:
        which: The signal.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(which, signal.SIG_IGN)
        signal.raise_signal(signal.SIGINT)

    signal.signal(which, interrupt)


class Interruption:
    """While entered, the first SIGINT only sets `requested`; the second one raises as usual.

    Attributes:
        requested: Whether somebody has pressed Ctrl-C.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: Any = None

    def __enter__(self) -> Interruption:
        # Only the main thread may handle signals; elsewhere Ctrl-C goes to whoever runs there.
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
