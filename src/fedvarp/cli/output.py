"""What the commands print: results on standard output, everything else on standard error."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w
import typer

from fedvarp.errors import plain
from fedvarp.experiments.files import settings_of_run
from fedvarp.experiments.settings import Settings
from fedvarp.runs.directory import RunDirectory
from fedvarp.runs.divergence import Verdict, judged
from fedvarp.runs.figures import FIGURES
from fedvarp.runs.finished import ending
from fedvarp.system.processes import usable_cores

if TYPE_CHECKING:
    from fedvarp.experiments.sweep import Sweep
    from fedvarp.simulation.result import SimulationResult


def say(line: str, quiet: bool) -> None:
    """A message for whoever watches."""
    if not quiet:
        typer.echo(line, err=True)


def shows_progress(quiet: bool) -> bool:
    """Whether somebody watches a terminal, where bars can be drawn."""
    return sys.stderr.isatty() and not quiet


def report(directory: Path, result: SimulationResult | None, quiet: bool, as_json: bool) -> bool:
    """Prints how a run ended; that nothing was learned is told even to those who want it quiet.

    Args:
        directory: Of the run.
        result: What it left behind; None for one that was found finished.
        quiet: Whether to print nothing.
        as_json: Whether to print an object for scripts.

    Returns:
        Whether anything was learned, as far as can be told.
    """
    records = RunDirectory(directory).metrics()
    verdict = judged(records)
    figures = summary(directory, result, records, verdict)
    if as_json:
        typer.echo(json.dumps(figures))
    elif not quiet:
        found = [f"{name} {figures['final'][name]:.4g}" for name in figures["final"]]
        typer.echo(f"{directory}: " + ", ".join([f"{figures['rounds']} rounds", *found]))
        if figures["objective"]:
            typer.echo(plain(f"It optimised {figures['objective']}."))
        if verdict.refusals and not verdict.nothing_learned:
            typer.echo(verdict.refusals)
    if verdict.nothing_learned:
        typer.echo(f"fedvarp: {verdict.warning} All of it is kept in {directory}.", err=True)
    return verdict.nothing_learned is None


def summary(
    directory: Path,
    result: SimulationResult | None,
    records: Sequence[Mapping[str, Any]],
    verdict: Verdict,
) -> dict[str, Any]:
    """The run in one object, for scripts; figures that are not finite are left out."""
    run = RunDirectory(directory)
    settings = settings_of_run(run.settings(), str(run.config_file), [])
    series = {
        name: [record[name] for record in records if record.get(name) is not None]
        for name in FIGURES
    }
    rounds = records[-1]["round"]
    stopped = ending(settings.as_toml(), records) if result is None else result.stopped
    return {
        "run": str(directory),
        "name": settings.name,
        "algorithm": settings.algorithm,
        "client_lr": settings.local_sgd.lr,
        "seed": settings.seed,
        "objective": records[0].get("objective"),
        "rounds": rounds,
        "stopped": stopped,
        "final": {name: values[-1] for name, values in series.items() if values},
        **dataclasses.asdict(verdict),
        "best_test_accuracy": max(series["test_accuracy"], default=None),
        "bytes_down": sum(record.get("bytes_down", 0) for record in records),
        "bytes_up": sum(record.get("bytes_up", 0) for record in records),
        "server_bytes": records[-1].get("server_bytes"),
        "seconds": sum(timing["seconds"] for timing in run.timings()),
    }


def print_dry_run(
    settings: Settings, directory: Path, data_dir: Path | None, as_json: bool
) -> None:
    """Prints what a run would do and cost.

    Args:
        settings: Of the run.
        directory: Where it would be kept.
        data_dir: Where the data files are.
        as_json: Whether to print an object for scripts.
    """
    from fedvarp.experiments.build import build
    from fedvarp.experiments.cost import estimate
    from fedvarp.simulation.checks import refuse_impossible

    experiment = build(settings, data_dir)
    refuse_impossible(experiment.task(directory))
    figures = estimate(experiment)
    if as_json:
        typer.echo(
            json.dumps({"run": str(directory), "settings": settings.as_toml()} | figures.as_json())
        )
        return
    typer.echo(tomli_w.dumps(settings.as_toml()))
    typer.echo("\n".join(figures.lines(experiment)))
    typer.echo(f"Out       {directory} (not written: this is a dry run)")


def print_sweep_dry_run(
    sweep: Sweep, jobs: int | None, data_dir: Path | None, as_json: bool
) -> None:
    """Prints the runs of a sweep and what they would cost.

    Args:
        sweep: What would be run.
        jobs: Runs at once; None: one for each core.
        data_dir: Where the data files are.
        as_json: Whether to print an object for scripts.
    """
    from fedvarp.experiments.sweep_cost import estimate_sweep

    figures = estimate_sweep(sweep, jobs or usable_cores(), data_dir)
    typer.echo(json.dumps(figures.as_json()) if as_json else figures.text())
