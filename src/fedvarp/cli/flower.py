"""`fedvarp flower …`: what can be done to a run under Flower that nobody is running."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Runs under Flower: what to do with their folders.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def options() -> None:
    """Makes `forget` a command of its own, though it is the only one."""


@app.command()
def forget(
    state: Annotated[
        Path, typer.Argument(metavar="STATE", help="The folder of the run, its `checkpoint`.")
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the client is known by.")],
) -> None:
    """Erases a client from a run: its row, its name, its history. The model stays as it is."""
    from fedvarp.errors import FedvarpError
    from fedvarp.flower.forgetting import forget_client

    if not (state / "data.mdb").is_file():
        raise FedvarpError(f"{state} holds no run. Give the folder that is the run's checkpoint.")
    forget_client(state, name)
    typer.echo(f"{state} knows nothing of {name!r} any more.")
