"""The commands that say which runs there are, and how one stands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer


def register(app: typer.Typer) -> None:
    """Adds the commands to the program."""
    app.command("list")(list_them)
    app.command()(show)


def list_them(
    folder: Annotated[
        Path, typer.Argument(metavar="[DIR]", help="Where to look, below it too.")
    ] = Path("runs"),
    format: Annotated[
        Literal["text", "markdown", "csv", "json"], typer.Option(help="How to print it.")
    ] = "text",
) -> None:
    """Lists runs: algorithm, rounds done of those asked for, last figures, state."""
    from fedvarp.analysis.overview import list_runs

    typer.echo(getattr(list_runs(folder), format)(), nl=False)


def show(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run.")],
) -> None:
    """Says what a run is: settings, objective, last figures, and how to go on."""
    from fedvarp.analysis.overview import about_run

    typer.echo(about_run(run), nl=False)
