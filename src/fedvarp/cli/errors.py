"""Errors on the command line: one readable sentence, and an exit code that scripts can rely on.

0   done
1   the run failed: no data, a full disk, a mistake in the program
2   it cannot be run: wrong usage, wrong settings, a directory that is taken
3   it came to its end, but nothing was learned: the rate is too high; all of it is kept
130 interrupted; the round was finished first
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any, Final

import typer
from typer.core import TyperGroup

from fedvarp.errors import TRACEBACK_VARIABLE, sentence, wants_tracebacks
from fedvarp.runs.errors import RunError

FAILED: Final = 1
UNUSABLE: Final = 2
LEARNED_NOTHING: Final = 3
INTERRUPTED: Final = 130


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
            if wants_tracebacks():
                traceback.print_exception(error, file=sys.stderr)
            typer.echo(f"fedvarp: {sentence(error)}", err=True)
            raise typer.Exit(exit_code(error)) from error


def show_tracebacks() -> None:
    """Asks for tracebacks from now on, in this process and those it starts."""
    os.environ[TRACEBACK_VARIABLE] = "1"


def exit_code(error: BaseException) -> int:
    """The exit code of a program that ends with this error.

    Args:
        error: What ended it.

    Returns:
        UNUSABLE if it could never have worked as it was called, FAILED for all else.
    """
    return UNUSABLE if isinstance(error, (ValueError, RunError)) else FAILED
