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
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, Final

import typer
from typer.core import TyperGroup

from fedvarp.errors import TRACEBACK_VARIABLE, sentence, wants_tracebacks
from fedvarp.runs.errors import RunError

FAILED: Final = 1
UNUSABLE: Final = 2
LEARNED_NOTHING: Final = 3
INTERRUPTED: Final = 130

_NEAR: Final = 0.75  # what an option must have in common with another to be suggested for it


class SentencesNotTracebacks(TyperGroup):
    """Commands whose errors end in a sentence on standard error; FEDVARP_TRACEBACK=1 shows all."""

    def invoke(self, ctx: Any) -> Any:
        """Runs a command."""
        given = [*getattr(ctx, "_protected_args", ()), *ctx.args]
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo("Interrupted.", err=True)
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            raise  # the reader of a pipe has seen enough; typer ends quietly
        except Exception as error:
            if isinstance(error, typer.Abort) or hasattr(error, "exit_code"):
                point_to_the_setting(error, given)
                raise  # typer's own way to end
            if wants_tracebacks():
                traceback.print_exception(error, file=sys.stderr)
            typer.echo(f"fedvarp: {sentence(error)}", err=True)
            raise typer.Exit(exit_code(error)) from error


def point_to_the_setting(error: Any, given: Sequence[str]) -> None:
    """Says of an unknown option that is a setting how settings are given.

    Args:
        error: Perhaps typer's error about an unknown option; its message is changed then.
        given: The words after the name of the program.
    """
    option = getattr(error, "option_name", None)
    if option is None:
        return
    from fedvarp.experiments.files import setting_named

    near = get_close_matches(option, error.possibilities or (), n=1, cutoff=_NEAR)
    error.possibilities = near or None
    setting = setting_named(option.lstrip("-").replace("-", "_"))
    if setting is not None and not near:
        words = [*given, "…"]
        at = next((n for n, word in enumerate(words) if word.startswith(option)), len(words) - 2)
        value = words[at].partition("=")[2] or words[at + 1]
        value = "…" if value.startswith("-") else value
        error.message = f"{option} is a setting, not an option: --set {setting}={value}"


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
