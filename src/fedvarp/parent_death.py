"""Children that do not outlive their parent, whatever ended it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def who_is_watched() -> int | None:
    """Our process number, for `signal_when_orphaned` in a child; None from a passing thread.

    Linux takes the end of the thread that started a child for the end of its parent.
    """
    return os.getpid() if threading.current_thread() is threading.main_thread() else None


def signal_when_orphaned(parent: int | None, which: signal.Signals) -> None:
    """In a child: asks Linux for that signal when the parent dies. Other systems have no such call.

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
