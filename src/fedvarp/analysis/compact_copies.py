"""Small copies of runs, to keep beside a paper or in a repository.

Of metrics.jsonl the evaluated rounds and the last remain, each with the bytes, steps and seconds of
the rounds since the one before: comparisons and figures come out the same. Who took part in which
round, the checkpoint and the model stay behind, so a copy cannot be resumed.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from fedvarp.analysis.runs import METRICS, AnyPath, Record, Run, runs_at
from fedvarp.runs.directory import RunDirectory
from fedvarp.runs.errors import RunError
from fedvarp.runs.identity import differences
from fedvarp.runs.whole_files import write_whole

_SUMMED: Final = ("num_steps", "bytes_down", "bytes_up")


def compact(paths: Iterable[AnyPath], out: AnyPath) -> list[Path]:
    """Writes a small copy of each run.

    Args:
        paths: Run directories, or directories that hold some. A run that is named twice, as itself
            and in its parent, is copied once.
        out: The directory of the copies, each under the last part of its path, like `cp -r`; an
            older copy of the same run that is already there is replaced.

    Returns:
        The directories of the copies.

    Raises:
        RunError: A run cannot be read, or its copy would take the place of something else. Nothing
            has been written then.
    """
    copies: dict[Path, Run] = {}
    seen: set[Path] = set()
    for path in map(Path, paths):
        _refuse_within(path, Path(out))
        for source in runs_at(path):
            if source.resolve() in seen:
                continue
            seen.add(source.resolve())
            run = Run.read(source)
            target = Path(out) / _name(path) / source.relative_to(path)
            if target in copies:
                raise RunError(
                    f"{copies[target].path} and {source} would both be copied to {target}. Copy "
                    f"them in two calls, to different directories."
                )
            _refuse_to_overwrite(run, RunDirectory(target))
            copies[target] = run
    for target, run in copies.items():
        _write(run, RunDirectory(target))
    return list(copies)


def _name(path: Path) -> str:
    """The last part of a path as it was given, so that a link lends its copy its own name."""
    return path.resolve().name if path.name in {"", ".."} else path.name


def _refuse_within(path: Path, out: Path) -> None:
    if out.resolve().is_relative_to(path.resolve()):
        raise RunError(
            f"{out} lies within {path}, where the copies would be taken for more runs. Choose a "
            f"directory outside of it."
        )


def _refuse_to_overwrite(run: Run, target: RunDirectory) -> None:
    there = next(path for path in (target.path, *target.path.parents) if path.exists())
    if not there.is_dir():
        raise RunError(f"{there} is a file; copies need a directory. Choose another one.")
    if not target.exists:
        return
    if target.path.resolve() == run.path.resolve():
        raise RunError(f"{run.path} would be copied onto itself. Choose another directory.")
    if not _is_copy(target):
        raise RunError(f"{target.path} holds a run, not a copy of one. Choose another directory.")
    if found := differences(target.settings(), RunDirectory(run.path).settings()):
        raise RunError(
            f"{target.path} is the copy of another run than {run.path}, made with "
            f"{'; '.join(found)}. Choose another directory."
        )
    if target.rounds_done > run.last_round:
        raise RunError(
            f"{target.path} has {target.rounds_done} rounds, more than the {run.last_round} of "
            f"{run.path}, which would be lost. Delete that copy first, or choose another directory."
        )


def _is_copy(target: RunDirectory) -> bool:
    """Whether it has nothing that a copy leaves behind."""
    if target.checkpoint_folder.exists() or target.model_file.exists():
        return False
    return target.metrics_file.exists() and not any(
        "clients" in record for record in Run.read(target.path).metrics
    )


def _write(run: Run, target: RunDirectory) -> None:
    source = RunDirectory(run.path)
    target.path.mkdir(parents=True, exist_ok=True)
    blocks = _stretches(run)
    _write_lines(target.metrics_file, [_record(run, stretch) for stretch in blocks])
    target.timings_file.unlink(missing_ok=True)
    if run.seconds is not None:
        timings = [
            {
                "round": run.metrics[stretch.stop - 1]["round"],
                "seconds": round(float(run.seconds[stretch].sum()), 6),
            }
            for stretch in blocks
        ]
        _write_lines(target.timings_file, timings)
    if source.versions_file.exists():
        write_whole(target.versions_file, source.versions_file.read_bytes())
    target.write_settings(source.settings())


def _stretches(run: Run) -> list[slice]:
    """The rounds up to each evaluation since the one before; those after the last as well."""
    ends = [at + 1 for at in run.evaluated]
    if ends[-1] < len(run.metrics):
        ends.append(len(run.metrics))
    return [slice(start, end) for start, end in itertools.pairwise([0, *ends])]


def _record(run: Run, rounds: slice) -> Record:
    stretch = run.metrics[rounds]
    own = stretch[-1]
    kept: dict[str, Any] = {"round": own["round"]}
    if "num_clients" in own:
        kept["num_clients"] = own["num_clients"]
    for name in _SUMMED:
        if any(name in record for record in stretch):
            kept[name] = sum(record.get(name, 0) for record in stretch)
    if held := [record["server_bytes"] for record in stretch if "server_bytes" in record]:
        kept["server_bytes"] = max(held)
    return kept | {name: own[name] for name in METRICS if name in own}


def _write_lines(file: Path, records: Iterable[Record]) -> None:
    write_whole(file, "".join(json.dumps(record) + "\n" for record in records))
