"""Runs in one small text file, to keep beside a paper or in a repository.

A line is a run, as JSON:

run        its name: its path from the last part of what was named, such as `sweep/fedavg-seed0`
settings   under dotted names, as in config.toml
versions   what it was run with
metrics    a list for each name, over the evaluated rounds and the last; bytes and steps are sums
           over the rounds since the one before, as are `num_replies` and `num_refused`;
           `server_bytes` is their maximum
seconds    the same sums of the rounds' times

Comparisons and figures come out the same. Who took part in which round, the checkpoint and the
model stay behind, so a compacted run cannot be resumed.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from fedvarp.analysis.runs import AnyPath, Paths, Run, file_of, listed, read_at, runs_at
from fedvarp.runs.divergence import counted
from fedvarp.runs.errors import RunError
from fedvarp.runs.identity import lasting
from fedvarp.settings.checked import checked
from fedvarp.system.whole_files import write_whole

_SUMMED: Final = ("num_steps", "bytes_down", "bytes_up")
_OF_EACH: Final = ("by_cluster", "by_client")


@checked
def compact(paths: Paths, out: AnyPath) -> Path:
    """Writes all runs into one file, which `read_runs` takes in place of them.

    Args:
        paths: Run directories, directories that hold some, or files of compacted runs. A run that
            is named twice, as itself and in its parent, is written once.
        out: The file. One that is there already is replaced if it holds the same runs, none of
            them longer.

    Returns:
        The file.

    Raises:
        RunError: A run cannot be read, two of them have the same name, or the file holds something
            that would be lost. Nothing has been written then.
    """
    file = Path(out)
    runs = _named(paths)
    if not runs:
        raise RunError("No run was named. Name run directories, or a directory that holds some.")
    _refuse_to_lose(file, runs)
    text = "".join(json.dumps(_line(name, run)) + "\n" for name, run in runs.items())
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, text)
    return file


def _named(paths: Paths) -> dict[str, Run]:
    """Each run once, under its name."""
    named: dict[str, Run] = {}
    seen: set[Path] = set()
    for path in listed(paths):
        for run in (run for place in runs_at(path) for run in read_at(place)):
            if run.path.resolve() in seen:
                continue
            seen.add(run.path.resolve())
            name = _name(run, path)
            if name in named:
                raise RunError(
                    f"{named[name].path} and {run.path} would both be called {name}. Compact them "
                    f"into two files, or name a directory that holds both."
                )
            named[name] = run
    return named


def _name(run: Run, path: Path) -> str:
    """As below `path` and with its last part, like `cp -r`; in a file of runs, as it is there."""
    if file := file_of(path):
        return run.path.relative_to(file).as_posix()
    # The path as it was given, so that a link lends its own name.
    last = path.resolve().name if path.name in {"", ".."} else path.name
    return (Path(last) / run.path.relative_to(path)).as_posix()


def _refuse_to_lose(file: Path, runs: Mapping[str, Run]) -> None:
    if not file.exists():
        return
    if not file.is_file():
        raise RunError(f"{file} is a directory; compacted runs go into a file. Name one in it.")
    there = read_at(file)
    for before in there:
        name = before.path.relative_to(file).as_posix()
        now = runs.get(name)
        if (
            now is None
            or lasting(now.settings) != lasting(before.settings)
            or now.last_round < before.last_round
        ):
            raise RunError(
                f"{file} holds round {before.last_round} of {name}, which would be lost: the runs "
                f"named now have it shorter, with other settings, or not at all. Name that file "
                f"too, choose another one, or delete it first."
            )


def _line(name: str, run: Run) -> dict[str, Any]:
    rounds = _rounds_up_to_each_evaluation(run)
    seconds = run.seconds
    return {
        "run": name,
        "settings": run.settings,
        "versions": run.versions,
        "metrics": _columns(run, rounds),
        "seconds": None
        if seconds is None
        else [round(float(seconds[some].sum()), 6) for some in rounds],
    }


def _rounds_up_to_each_evaluation(run: Run) -> list[slice]:
    """Positions in `metrics` since the evaluation before; those after the last one as well."""
    ends = [at + 1 for at in run.evaluated]
    if ends[-1] < len(run.metrics):
        ends.append(len(run.metrics))
    return [slice(start, end) for start, end in itertools.pairwise([0, *ends])]


def _columns(run: Run, rounds: list[slice]) -> dict[str, list[Any]]:
    last = [run.metrics[some.stop - 1] for some in rounds]
    columns = {"round": [record["round"] for record in last]}
    for name in ("num_clients", "objective"):  # of the initial model's record alone
        if name in last[0]:
            columns[name] = [last[0][name]]
    for name in (*_SUMMED, "server_bytes"):
        found = [[r[name] for r in run.metrics[some] if name in r] for some in rounds]
        combine: Callable[[list[int]], int] = sum if name in _SUMMED else max
        if any(found):
            columns[name] = [combine(values) if values else None for values in found]
    columns |= _replies(run, rounds)
    evaluated = last[: len(run.evaluated)]
    for name in (*run.figures, *_OF_EACH):
        if run.records(name):
            columns[name] = [record.get(name) for record in evaluated]
    return columns


def _replies(run: Run, rounds: list[slice]) -> dict[str, list[Any]]:
    """How many came and were refused; the commonest reason alone stands for all that were given."""
    if not run.verdict.replies:
        return {}
    counts = [[counted(record) for record in run.metrics[some]] for some in rounds]
    columns: dict[str, list[Any]] = {
        "num_replies": [sum(replies for replies, _ in some) for some in counts],
        "num_refused": [sum(refused for _, refused in some) for some in counts],
    }
    if run.verdict.refused_because is not None:
        columns["refused_because"] = [run.verdict.refused_because]
    return columns
