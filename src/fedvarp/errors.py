"""Errors with a message for the user, and how any error is told in a sentence."""

from __future__ import annotations

import errno
import os
import re
from typing import Final

TRACEBACK_VARIABLE: Final = "FEDVARP_TRACEBACK"
"""The environment variable that asks for the traceback of an error besides its sentence."""

_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_DISK_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class FedvarpError(Exception):
    """An error whose message says what happened, the likely cause and the way out.

    All that this package refuses is one; where Python has a class of its own for the kind of
    mistake, such as ValueError, it is that too.
    """


class InvalidError(FedvarpError, ValueError):
    """Something that was passed cannot be used."""


class InvalidTypeError(FedvarpError, TypeError):
    """Something that was passed is of a kind that cannot be used."""


class UnknownClientError(FedvarpError, IndexError):
    """There is no such client."""


class DivergenceWarning(UserWarning):
    """Some replies of a run were refused, or nothing was learned in it."""


class DamageWarning(UserWarning):
    """Something on the disk was damaged, and was mended from what else is there."""


def is_for_the_user(error: BaseException) -> bool:
    """Whether the error's message was written for whoever called, not for a debugger.

    Args:
        error: Any error.

    Returns:
        True for errors of this package, for wrong values, for what the operating system refuses
        and for packages that are not installed; False for what is probably a bug.
    """
    return isinstance(error, (FedvarpError, ValueError, OSError, ImportError))


def sentence(error: BaseException) -> str:
    """Says what happened, the likely cause and the way out, without a traceback.

    Args:
        error: Any error.

    Returns:
        Its message, completed where the operating system's own is too short, and its notes.
    """
    if not is_for_the_user(error):
        said = (
            f"This should not have happened: {type(error).__name__}: {error}. It is probably a "
            f"mistake in fedvarp; `fedvarp --traceback …` shows where."
        )
    elif isinstance(error, OSError) and error.strerror:
        place = f" ({error.filename})" if error.filename else ""
        said = f"{error.strerror}{place}."
        if error.errno in _DISK_FULL:
            said += " The disk is full: free some space, or choose another directory."
    else:
        said = str(error)
    return plain(" ".join([said, *getattr(error, "__notes__", [])]))


def plain(text: str) -> str:
    r"""Writes out the control characters of a text, which could command a terminal.

    >>> print(plain("a\x1b[2Jb"))
    a\x1b[2Jb

    Args:
        text: From a file that anybody may have written; its line ends and tabs stay.
    """
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def wants_tracebacks() -> bool:
    """Whether the environment variable FEDVARP_TRACEBACK asks for tracebacks."""
    return os.environ.get(TRACEBACK_VARIABLE, "") not in ("", "0")
