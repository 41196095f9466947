"""The command that says what holds a training back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedvarp.cli.folders import telling_new_folders


def register(app: typer.Typer) -> None:
    """Adds the command to the program."""
    app.command()(diagnose)


def diagnose(
    source: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG|PRESET|RUN", help="A TOML file, a preset, or a run's directory."
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Changes a setting."),
    ] = None,
    sample: Annotated[
        int | None,
        typer.Option(metavar="N", help="Measures so many clients, drawn at random; else all."),
    ] = None,
    bounds_only: Annotated[
        bool, typer.Option("--bounds-only", help="Trains no client: quicker, but only bounds.")
    ] = False,
    keep: Annotated[
        float, typer.Option(help="Share of the benefit that clusters should keep.")
    ] = 0.8,
    memory: Annotated[
        float | None, typer.Option(metavar="MB", help="What the table of states may take.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="A figure too: a .png, .svg or .pdf file.")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder with the data files; else that of FEDVARP_DATA.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Shows no progress.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Prints the result as JSON.")] = False,
) -> None:
    """Says which error holds a training back: mini-batches, absent clients, or client drift.

    Measures at the first model of a config, or at the last checkpoint of a run, whose directory
    then holds diagnosis.json for `fedvarp report`; with --set nothing is kept.
    """
    from fedvarp.analysis.figures import refuse_undrawable
    from fedvarp.analysis.report.diagnosed import DIAGNOSIS_FILE
    from fedvarp.cli.output import shows_progress
    from fedvarp.diagnosis import procedure
    from fedvarp.diagnosis.advice import advise, refuse_wishes
    from fedvarp.diagnosis.files import as_json as plain
    from fedvarp.diagnosis.files import write_json
    from fedvarp.diagnosis.text import as_text
    from fedvarp.runs.directory import RunDirectory

    budget = None if memory is None else memory * 1e6
    refuse_wishes(keep, budget)
    if out is not None:
        refuse_undrawable(out)
    found = procedure.diagnose(
        source,
        overrides or [],
        sample=sample,
        updates=not bounds_only,
        data_dir=data_dir,
        progress=shows_progress(quiet),
    )
    told = advise(found, keep=keep, memory_budget=budget)
    # Printed first: what was measured for long is not lost where a file cannot be written.
    if as_json:
        typer.echo(json.dumps(plain(found, told), allow_nan=False))
    else:
        typer.echo(as_text(found, told), nl=False)
    if RunDirectory(source).exists and not overrides:  # what if is not what the run is
        write_json(found, told, Path(source) / DIAGNOSIS_FILE)
    if out is not None:
        from fedvarp.diagnosis.figure import draw

        with telling_new_folders(out):
            typer.echo(f"Drawn in {draw(found, out)}.", err=True)
