"""Errors on the command line: one readable sentence, and an exit code that scripts can rely on.

0   done
1   the run failed: no data, a full disk, a mistake in the program
2   it cannot be run: wrong usage, wrong settings, a directory that is taken
130 interrupted; the round was finished first
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from typing import Any, Final

import typer
from typer.core import TyperGroup

FAILED: Final = 1
UNUSABLE: Final = 2
INTERRUPTED: Final = 130

_TRACEBACK: Final = "FEDVARP_TRACEBACK"
_DISK_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class SentencesNotTracebacks(TyperGroup):
    """Commands whose errors end in a sentence on standard error; FEDVARP_TRACEBACK=1 shows all."""

    def invoke(self, ctx: Any) -> Any:
        """Runs a command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo("Interrupted.", err=True)
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            raise  # the reader of a pipe has seen enough; typer ends quietly
        except Exception as error:
            if isinstance(error, typer.Abort) or hasattr(error, "exit_code"):
                raise  # typer's own way to end
            if os.environ.get(_TRACEBACK, "") not in ("", "0"):
                traceback.print_exception(error, file=sys.stderr)
            typer.echo(f"fedvarp: {sentence(error)}", err=True)
            raise typer.Exit(exit_code(error)) from error


def show_tracebacks() -> None:
    """From now on, in this process and those it starts."""
    os.environ[_TRACEBACK] = "1"


def sentence(error: BaseException) -> str:
    """What happened, the likely cause, the way out."""
    if not is_expected(error):
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
    return " ".join([said, *getattr(error, "__notes__", [])])


def exit_code(error: BaseException) -> int:
    """Whether something failed, or could never have worked."""
    from fedvarp.runs.directory import RunError

    return UNUSABLE if isinstance(error, (ValueError, RunError)) else FAILED


def is_expected(error: BaseException) -> bool:
    """Whether its message was written for the user."""
    from fedvarp.runs.directory import RunError

    if isinstance(error, (ValueError, RunError, OSError, ImportError)):
        return True  # said without loading torch, as the next lines do
    from fedvarp.data import DataError
    from fedvarp.tables.store import StoreError
    from fedvarp.trainers.worker_pool import WorkerError

    return isinstance(error, (DataError, StoreError, WorkerError))
