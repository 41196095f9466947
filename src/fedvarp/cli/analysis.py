"""The commands that look at runs: compare, plot, report, compact."""

from __future__ import annotations

import signal
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from fedvarp.cli.folders import telling_new_folders
from fedvarp.errors import plain

if TYPE_CHECKING:
    from fedvarp.analysis.report.watching import Watcher

_LOOK_EVERY: Final = 0.5  # seconds

Runs = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUNS...",
        help="Run directories, directories that hold some, or files of compacted runs.",
    ),
]
Target = Annotated[
    float | None,
    typer.Option(help="Test accuracy to count rounds to, such as 0.5; else one that all reach."),
]
TargetLoss = Annotated[
    float | None, typer.Option(help="Loss to count rounds to, for tasks without an accuracy.")
]
Smooth = Annotated[
    int, typer.Option(min=1, help="Evaluations in the running mean that has to reach the target.")
]
AllowDifferent = Annotated[
    bool, typer.Option("--allow-different", help="Takes runs of different tasks too.")
]
Ignore = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SETTING",
        help="Takes runs that differ in it for the same; repeatable.",
    ),
]


def register(app: typer.Typer) -> None:
    """Adds the commands to the program."""
    for command in (compare, plot, report, compact):
        app.command()(command)


def compare(
    runs: Runs,
    target: Target = None,
    target_loss: TargetLoss = None,
    smooth: Smooth = 5,
    format: Annotated[
        Literal["text", "markdown", "csv", "json", "html"], typer.Option(help="How to print it.")
    ] = "text",
    beside: Annotated[
        str | None,
        typer.Option(
            metavar="ALGORITHM",
            help="Adds a table of differences from it, seed by seed, with 95 % intervals.",
        ),
    ] = None,
    brief: Annotated[
        bool, typer.Option("--brief", help="Who got there first, and differences, if asked for.")
    ] = False,
    allow_different: AllowDifferent = False,
    ignore: Ignore = None,
) -> None:
    """Prints who got where, how soon and at what cost, as means over seeds."""
    from fedvarp import analysis

    compared = analysis.compare(
        runs,
        target=target,
        target_loss=target_loss,
        smooth=smooth,
        beside=beside,
        allow_different=allow_different,
        ignore=ignore or (),
    )
    typer.echo(analysis.formatted(compared, format, brief=brief), nl=False)


def plot(
    runs: Runs,
    out: Annotated[Path, typer.Option(help="The figure: a .png, .svg or .pdf file.")],
    x: Annotated[
        Literal["rounds", "bytes", "time"], typer.Option(help="What to draw against.")
    ] = "rounds",
    smooth: Annotated[
        int, typer.Option(min=1, help="Draws the running mean over as many evaluations.")
    ] = 1,
    log_loss: Annotated[
        bool, typer.Option("--log-loss", help="Draws losses on a logarithmic axis.")
    ] = False,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="SETTING",
            help="Draws how runs ended against a setting, such as local_sgd.epochs.",
        ),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(metavar="FIGURE", help="Draws this, such as test_auc; repeatable."),
    ] = None,
    rates: Annotated[
        Literal["best", "all"] | None,
        typer.Option(help="Each algorithm at its best client rate (of sweeps) or at all."),
    ] = None,
    title: Annotated[str | None, typer.Option(help="Above the figure.")] = None,
    allow_different: AllowDifferent = False,
    ignore: Ignore = None,
) -> None:
    """Draws training loss and test accuracy: the mean over seeds, and a band from low to high."""
    from fedvarp import analysis

    if against is not None and x != "rounds":
        raise typer.BadParameter("either --x or --against: a figure has one horizontal axis")
    if against is not None and rates is not None:
        raise typer.BadParameter("--rates is for curves; --against draws every rate")
    how: dict[str, Any] = {
        "smooth": smooth,
        "log_loss": log_loss,
        "metrics": metric,
        "title": title,
        "allow_different": allow_different,
        "ignore": ignore or (),
        "on_note": _remark,
    }
    with telling_new_folders(out):
        if against is not None:
            typer.echo(analysis.plot_against(runs, against, out, **how))
        else:
            typer.echo(analysis.plot(runs, out, x=x, rates=rates, **how))


def _remark(note: str) -> None:
    typer.echo(plain(note), err=True)


def report(
    runs: Runs,
    out: Annotated[Path | None, typer.Option(help="The page: an .html file.")] = None,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", help="Serves the page on 127.0.0.1 and renews it while runs go on."
        ),
    ] = False,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="With --watch; 0 takes a free one.")
    ] = 0,
    title: Annotated[str, typer.Option(help="Its headline.")] = "Federated learning runs",
    target: Target = None,
    target_loss: TargetLoss = None,
    smooth: Smooth = 5,
    allow_different: AllowDifferent = False,
    ignore: Ignore = None,
) -> None:
    """Writes one HTML page, complete in itself: curves to play with, tables, clients, settings.

    With --watch it is served to this machine's browsers instead, until Ctrl-C.
    """
    from fedvarp import analysis
    from fedvarp.analysis.headline import headline
    from fedvarp.analysis.report.page import write_page
    from fedvarp.analysis.report.watching import Watcher

    if watch == (out is not None):
        raise typer.BadParameter("give one of --out FILE, for a page to keep, and --watch")

    compared = partial(
        analysis.compare,
        runs,
        target=target,
        target_loss=target_loss,
        smooth=smooth,
        allow_different=allow_different,
        ignore=ignore or (),
    )
    if out is None:
        _serve(Watcher(runs, compared, title), port)
        return
    comparison = compared()
    with telling_new_folders(out):
        typer.echo(write_page(comparison, out, title))
    if said := headline(comparison):
        _remark(said)


def _serve(watcher: Watcher, port: int) -> None:
    from fedvarp.analysis.report.watching import LOOPBACK, serving

    ended = threading.Event()
    before = signal.signal(signal.SIGINT, lambda *_: ended.set())  # a second one changes nothing
    try:
        with serving(watcher, port) as server:
            typer.echo(f"http://{LOOPBACK}:{server.server_address[1]}/")
            typer.echo("Renewed while runs go on. Ctrl-C ends it.", err=True)
            while not ended.wait(_LOOK_EVERY):  # a signal just before it waits does not wake it
                pass
    finally:
        signal.signal(signal.SIGINT, before)
    typer.echo("Ended; the runs go on.", err=True)


def compact(
    runs: Runs,
    out: Annotated[Path, typer.Option(help="The file, such as runs.jsonl.")],
) -> None:
    """Writes runs into one small file without their models and cohorts: enough to compare."""
    from fedvarp import analysis

    with telling_new_folders(out):
        typer.echo(analysis.compact(runs, out))
