"""Small copies of runs, to keep beside a paper or in a repository.

Of metrics.jsonl the evaluated rounds remain, each with the bytes, steps and seconds of the rounds
since the one before: comparisons and figures come out the same. Who took part in which round, the
checkpoint and the model stay behind, so a copy cannot be resumed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from fedvarp.comparison.runs import METRICS, AnyPath, Record, Run, runs_at
from fedvarp.run_directory import MAY_CHANGE, RunDirectory, RunError, without_nan

_SUMMED: Final = ("num_steps", "bytes_down", "bytes_up")


def compact(paths: Iterable[AnyPath], out: AnyPath) -> list[Path]:
    """Writes a small copy of each run, and returns where.

    Args:
        paths: Run directories, or directories that hold some.
        out: The directory of the copies, each under the last part of its path, like `cp -r`; a copy
            of the same run that is already there is replaced.

    Raises:
        RunError: A run cannot be read, or its copy would take the place of something else. Nothing
            has been written then.
    """
    copies: dict[Path, Run] = {}
    for path in paths:
        for source in runs_at(Path(path)):
            run = Run.read(source)
            target = Path(out) / source.resolve().relative_to(Path(path).resolve().parent)
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


def _refuse_to_overwrite(run: Run, target: RunDirectory) -> None:
    if target.checkpoint_folder.exists() or target.model_file.exists():
        raise RunError(f"{target.path} holds a run, not a copy of one. Choose another directory.")
    if target.exists:
        target.refuse_other_settings(RunDirectory(run.path).settings(), MAY_CHANGE)


def _write(run: Run, target: RunDirectory) -> None:
    source = RunDirectory(run.path)
    target.path.mkdir(parents=True, exist_ok=True)
    records = [_record(run, before, at) for before, at in _stretches(run.evaluated)]
    _write_lines(target.metrics_file, records)
    target.timings_file.unlink(missing_ok=True)
    if run.elapsed is not None:
        each = np.diff(run.elapsed, prepend=0.0)
        timed = zip(run.rounds.tolist(), each.tolist(), strict=True)
        _write_lines(target.timings_file, [{"round": t, "seconds": round(s, 3)} for t, s in timed])
    if (versions := source.path / "versions.json").exists():
        shutil.copyfile(versions, target.path / "versions.json")
    target.write_settings(source.settings())


def _stretches(evaluated: Sequence[int]) -> list[tuple[int, int]]:
    """For each evaluated position: the one before it (−1 for the first), and itself."""
    return list(zip([-1, *evaluated], evaluated, strict=False))


def _record(run: Run, before: int, at: int) -> Record:
    own, stretch = run.metrics[at], run.metrics[before + 1 : at + 1]
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
    draft = file.with_suffix(".jsonl.part")
    draft.write_text("".join(json.dumps(without_nan(record)) + "\n" for record in records))
    draft.replace(file)
