"""`fedvarp verify` and `fedvarp backup`: is a run whole, and a copy of one."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedvarp.cli.errors import FAILED
from fedvarp.errors import plain

if TYPE_CHECKING:
    from fedvarp.simulation.safekeeping import Finding

_RunDir = Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run.")]
_Json = Annotated[bool, typer.Option("--json", help="Prints the result as JSON.")]


def register(app: typer.Typer) -> None:
    """Adds the commands.

    Args:
        app: The program.
    """
    app.command()(verify)
    app.command()(backup)


def verify(run: _RunDir, as_json: _Json = False) -> None:
    """Checks every byte of a run, or of Flower's checkpoint, and changes nothing.

    Ends with code 1 if something is damaged. It may be asked while the run is trained.
    """
    from fedvarp.simulation.safekeeping import verify as verified

    findings = verified(run)
    _show(findings, as_json)
    if not all(found.is_sound for found in findings):
        raise typer.Exit(FAILED)


def backup(
    run: _RunDir,
    to: Annotated[Path, typer.Argument(metavar="TO", help="A directory that is not there yet.")],
    as_json: _Json = False,
) -> None:
    """Copies a run as of its last commit, while it is trained or not; `resume` goes on with it."""
    from fedvarp.simulation.safekeeping import backup as copied

    _show(copied(run, to), as_json)


def _show(findings: Sequence[Finding], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(found) for found in findings]))
        return
    for found in findings:
        typer.echo(plain(f"{'sound ' if found.is_sound else 'WRONG '} {found.file} {found.said}"))
