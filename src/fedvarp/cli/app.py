"""The command line. Commands parse and print; the work is done by modules that know no terminal.

Those are imported inside the commands, so that each loads only what it needs, and torch, which
takes seconds, only once the settings are known to be right.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fedvarp.cli import analysis, diagnose, flower, overview, safekeeping
from fedvarp.cli.completion import complete_config, complete_setting
from fedvarp.cli.encoding import print_whatever_the_encoding
from fedvarp.cli.errors import (
    FAILED,
    INTERRUPTED,
    LEARNED_NOTHING,
    SentencesNotTracebacks,
    show_tracebacks,
)
from fedvarp.cli.live_view import live_view, logged
from fedvarp.system.processes import interrupt_on_sigterm
from fedvarp.version import __version__

if TYPE_CHECKING:
    from fedvarp.experiments.settings import Settings

Config = Annotated[
    str,
    typer.Argument(
        metavar="CONFIG|PRESET",
        help="A TOML file, or the name of a preset.",
        autocompletion=complete_config,
    ),
]
RunDir = Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Changes a setting, as in --set local_sgd.epochs=1.",
        autocompletion=complete_setting,
    ),
]
Prolonged = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Changes rounds, evaluation.target_accuracy, trainer or recording, as in "
        "--set rounds=2000.",
        autocompletion=complete_setting,
    ),
]
DataDir = Annotated[
    Path | None, typer.Option(help="Folder with the data files; else that of FEDVARP_DATA.")
]
DataDirOfRun = Annotated[
    Path | None,
    typer.Option(help="Folder with the data files; else where the run had them."),
]
TensorBoard = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Logs there while it runs, for `tensorboard --logdir DIR`."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Prints nothing but errors.")]
Json = Annotated[bool, typer.Option("--json", help="Prints the result as JSON.")]

app = typer.Typer(
    cls=SentencesNotTracebacks,
    help="Federated learning with few clients a round: run, sweep, compare, look, resume.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def options(
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Shows where an error came from.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Prints the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """What holds for all commands."""
    if traceback:
        show_tracebacks()


@app.command()
def run(
    config: Config,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Directory of the run.")] = None,
    data_dir: DataDir = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Says what it would do and cost; writes nothing.")
    ] = False,
    tensorboard: TensorBoard = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Trains by a config file or a preset; `fedvarp resume` goes on if it was interrupted.

    Ends with code 3 if nothing was learned: no reply could be used, or the loss only grew.
    """
    from fedvarp.cli.output import print_dry_run, report, say
    from fedvarp.experiments.files import load_settings
    from fedvarp.experiments.resuming import safe_rounds

    if out is not None and not dry_run and not overrides:
        _refuse_to_overwrite(out)  # before torch is loaded
    settings = load_settings(config, overrides or [])
    directory = out or Path(settings.recording.out or Path("runs") / settings.run_name)
    if dry_run:
        print_dry_run(settings, directory, data_dir, as_json)
        return
    if not settings.recording.resume:
        _refuse_to_overwrite(directory)
    from fedvarp.experiments.build import build  # not before all the above is right: it loads torch

    experiment = build(settings, data_dir)
    say(f"{settings.run_name}: {settings.rounds} rounds, to be kept in {directory}", quiet)
    with safe_rounds(directory), live_view(tensorboard) as callbacks:
        result = experiment.run(directory, progress=not quiet, callbacks=callbacks)
    learned = report(directory, result, quiet, as_json)
    _end(directory, result.stopped, learned, quiet)


@app.command()
def resume(
    run: RunDir,
    overrides: Prolonged = None,
    data_dir: DataDirOfRun = None,
    tensorboard: TensorBoard = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Goes on with a run as if it had never stopped; --set rounds=… to train longer."""
    from fedvarp.cli.output import report, say
    from fedvarp.experiments import resuming
    from fedvarp.runs.directory import RunDirectory
    from fedvarp.runs.finished import is_finished

    settings = resuming.resumed_settings(run, overrides or [])
    if is_finished(RunDirectory(run), settings.as_toml()):
        say(_why_finished(run, settings, overrides or []), quiet)
        _end(run, None, report(run, None, quiet, as_json), quiet)
        return
    with live_view(tensorboard) as callbacks:
        result = resuming.resume(
            run,
            overrides or [],
            data_dir=data_dir,
            progress=not quiet,
            callbacks=callbacks,
        )
    learned = report(run, result, quiet, as_json)
    _end(run, result.stopped, learned, quiet)


@app.command()
def presets(
    name: Annotated[
        str | None,
        typer.Argument(help="Prints the page of this one.", autocompletion=complete_config),
    ] = None,
) -> None:
    """Lists the presets, or prints one: a page to copy and change."""
    from fedvarp.experiments.files import preset_names, preset_summary, preset_text

    if name is not None:
        typer.echo(preset_text(name), nl=False)
        return
    width = max(map(len, preset_names()))
    for preset in preset_names():
        typer.echo(f"{preset:{width}}  {preset_summary(preset)}")


@app.command()
def data(
    name: Annotated[Literal["cifar10", "shakespeare"], typer.Argument(help="Which data set.")],
    data_dir: DataDir = None,
    quiet: Quiet = False,
) -> None:
    """Says whether a data set is there and sound; downloads it if it is not."""
    from fedvarp.cli.data import fetch_and_verify
    from fedvarp.cli.output import say, shows_progress

    for line in fetch_and_verify(name, data_dir, shows_progress(quiet)):
        say(line, quiet)


@app.command()
def sweep(
    config: Config,
    algorithms: Annotated[
        str | None, typer.Option(help="Separated by commas; the paper's five unless given.")
    ] = None,
    client_lrs: Annotated[
        str | None, typer.Option(help="Such as 0.1,10^-1.5; the paper's grid unless given.")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Separated by commas; 0 unless given.")] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUES",
            help="Tries values of any setting, as in --grid local_sgd.epochs=1,5; repeatable.",
            autocompletion=complete_setting,
        ),
    ] = None,
    select_on: Annotated[
        str | None,
        typer.Option(
            metavar="FIGURE",
            help="What rates are chosen by: validation (sets test examples aside), test, train, or "
            "a figure such as test_auc.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Directory of all its runs.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at once; else one a core.")] = None,
    overrides: Overrides = None,
    data_dir: DataDir = None,
    engine: Annotated[
        Literal["local", "ray"], typer.Option(help="Processes of this machine, or tasks of Ray.")
    ] = "local",
    address: Annotated[
        str | None, typer.Option(help="Of a Ray cluster; else RAY_ADDRESS; else one here.")
    ] = None,
    tensorboard: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Each run logs below it while it goes on."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Lists the runs and their cost; writes nothing.")
    ] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Tries algorithms x client rates x seeds x any setting; names the best rate of each algorithm.

    Give the same command again to go on after an interruption: finished runs are not repeated. Ends
    with code 3 if no run learned anything.
    """
    from fedvarp.cli.output import print_sweep_dry_run, say
    from fedvarp.cli.sweep_bar import sweep_bar
    from fedvarp.experiments.sweep import Sweep
    from fedvarp.experiments.sweep_engines import make_engine
    from fedvarp.experiments.sweep_grid import Grid

    whole_grid = Grid.parse(algorithms, client_lrs, seeds, grid or [])
    told = [*(overrides or []), *logged(tensorboard)]
    runs_here = engine != "ray"  # a cluster's machines have the data and the devices
    whole = Sweep.prepare(
        config,
        told,
        whole_grid,
        out,
        data_dir,
        runs_here,
        write=not dry_run,
        select_on=select_on,
    )
    if dry_run:
        print_sweep_dry_run(whole, jobs, data_dir, as_json)
        return
    with sweep_bar(whole, show=not quiet) as on_progress:
        result = whole.run(make_engine(engine, jobs, address, data_dir), on_progress)
    if as_json:
        typer.echo(json.dumps(result.as_json()))
    elif not quiet:
        typer.echo(f"{result.text()}\nEvery run's figure: {result.directory / 'sweep.json'}")
    for failure in result.failures:
        typer.echo(f"fedvarp: {failure}", err=True)
    if result.interrupted:
        say("Interrupted; nothing is lost. The same command again goes on.", quiet)
        raise typer.Exit(INTERRUPTED)
    if result.failures:
        raise typer.Exit(FAILED)
    if len(result.learned_nothing) == len(result.runs):
        raise typer.Exit(LEARNED_NOTHING)


analysis.register(app)
overview.register(app)
diagnose.register(app)
safekeeping.register(app)
app.add_typer(flower.app, name="flower")


def main() -> None:
    """The program `fedvarp`."""
    print_whatever_the_encoding()
    interrupt_on_sigterm()
    app()


def _refuse_to_overwrite(directory: Path) -> None:
    from fedvarp.runs.directory import RunDirectory
    from fedvarp.runs.errors import RunError

    run = RunDirectory(directory)
    if run.exists:
        raise RunError(
            f"{directory} holds a run already. `fedvarp resume {directory}` goes on with it; "
            f"--out chooses another directory."
        )
    run.refuse_if_taken()


def _why_finished(run: Path, settings: Settings, overrides: list[str]) -> str:
    from fedvarp.runs.directory import RunDirectory
    from fedvarp.runs.finished import ending

    metrics, again = RunDirectory(run).metrics(), f"fedvarp resume {run}"
    if ending(settings.as_toml(), metrics) == "rounds":
        return f"{run} is finished. To train longer: {again} --set rounds=…"
    asked = "".join(f" --set {override}" for override in overrides)
    return (
        f"{run} is finished: in round {metrics[-1]['round']} it reached evaluation.target_accuracy="
        f"{settings.evaluation.target_accuracy}, so nothing was done. To train longer, without a "
        f"target or up to a higher one: {again}{asked} --set evaluation.target_accuracy=none"
    )


def _end(directory: Path, stopped: str | None, learned: bool, quiet: bool) -> None:
    if stopped == "interrupted":
        if not quiet:
            again = f"fedvarp resume {shlex.quote(str(directory))}"
            typer.echo(f"Interrupted; nothing is lost. Go on: {again}", err=True)
        raise typer.Exit(INTERRUPTED)
    if not learned:
        raise typer.Exit(LEARNED_NOTHING)
