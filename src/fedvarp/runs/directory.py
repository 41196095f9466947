"""A run on disk: its settings, its metrics, its checkpoint, its model.

config.toml         the resolved settings
versions.json       what it was run with
metrics.jsonl       one line a round; the same, byte for byte, however often it is interrupted
timings.jsonl       how long each round took: not the same twice, so in a file of its own
checkpoint/         the last whole round
model.safetensors   the final model
"""

from __future__ import annotations

import json
import math
import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import tomli_w

if TYPE_CHECKING:  # torch takes seconds to load, and who only looks at runs does without it
    from torch import Tensor

MAY_CHANGE: Final = frozenset(
    {
        "rounds",
        "evaluation.target_accuracy",
        "trainer.name",
        "trainer.workers",
        "trainer.auto",
        "recording.commit_every",
        "recording.fsync",
    }
)
"""What a resumed run may be told anew: how long to go on, and who trains, if to the same bits."""

_FIRST_LOOK: Final = 4096  # bytes at the end of metrics.jsonl; a usual line has some hundreds


def lasting(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a resumed run keeps, under dotted names, as JSON gives them back."""
    kept = {n: v for n, v in flattened(_without_none(settings)).items() if n not in MAY_CHANGE}
    plain: dict[str, Any] = json.loads(json.dumps(kept))
    return plain


def changes(before: Mapping[str, Any], now: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """Each of the settings that is no longer what it was, as "lr = 0.1 (now 0.2)"."""
    return [
        f"{name} = {before.get(name, 'not set')} (now {now.get(name, 'not set')})"
        for name in sorted(names)
        if before.get(name) != now.get(name)
    ]


class RunError(Exception):
    """The run directory cannot be used this way."""


class Journal:
    """A file of JSON lines that can be cut back to where a checkpoint left it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("ab")

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._file.tell()

    @property
    def num_lines(self) -> int:
        """Lines in the file."""
        return self.path.read_bytes().count(b"\n")

    def append(self, record: Mapping[str, Any]) -> None:
        """Adds one line; numbers that are not finite become null."""
        self._file.write(json.dumps(without_nan(record), allow_nan=False).encode() + b"\n")
        self._file.flush()

    def cut_back(self, size: int) -> None:
        """Forgets all but the first `size` bytes."""
        if self.path.stat().st_size < size:
            raise RunError(
                f"{self.path} has {self.path.stat().st_size} bytes, but {size} when the checkpoint "
                f"was written: lines are missing. Restore the file from a copy, or delete the run."
            )
        self._file.truncate(size)
        self._file.seek(size)

    def cut_back_or_further(self, size: int) -> None:
        """The same for a file that may have lost its end: the whole lines before the first loss."""
        sound = 0
        for line in self.path.read_bytes()[:size].splitlines(keepends=True):
            try:
                json.loads(line)
            except ValueError:  # of JSON, or of the encoding
                break
            sound += len(line) if line.endswith(b"\n") else 0
        self.cut_back(sound)

    def sync(self) -> None:
        """Waits until the disk has it."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class RunDirectory:
    """The files of one run."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.config_file = self.path / "config.toml"
        self.metrics_file = self.path / "metrics.jsonl"
        self.timings_file = self.path / "timings.jsonl"
        self.checkpoint_folder = self.path / "checkpoint"
        self.model_file = self.path / "model.safetensors"
        self.versions_file = self.path / "versions.json"

    @property
    def exists(self) -> bool:
        """Whether there is a run in this directory."""
        return self.config_file.exists()

    def create(self, settings: Mapping[str, Any]) -> None:
        """Starts a run here; refuses to overwrite one."""
        if self.exists:
            raise RunError(
                f"{self.path} holds a run already. Resume it, or choose another directory."
            )
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"{self.path} is a file; a run needs a directory.")
        from fedvarp.runs import versions  # which needs this module

        self.path.mkdir(parents=True, exist_ok=True)
        versions.write(self.versions_file)
        # The settings come last and whole: a directory with settings is a run.
        self.write_settings(settings)

    def write_settings(self, settings: Mapping[str, Any]) -> None:
        """Writes config.toml, whole or not at all."""
        draft = self.config_file.with_suffix(".toml.part")
        draft.write_text(tomli_w.dumps(_without_none(settings)), encoding="utf-8")
        draft.replace(self.config_file)

    def update_settings(self, settings: Mapping[str, Any]) -> None:
        """Writes them unless they are there already."""
        if self.settings() != _without_none(settings):
            self.write_settings(settings)

    def settings(self) -> dict[str, Any]:
        """The resolved settings of the run."""
        if not self.exists:
            raise RunError(f"There is no run in {self.path}: it has no config.toml.")
        try:
            return tomllib.loads(self.config_file.read_text(encoding="utf-8"))
        except ValueError as error:  # of TOML, or of the encoding
            raise _damaged(self.config_file, error) from error

    def chosen_by_auto(self) -> dict[str, Any]:
        """The settings in which `trainer = "auto"` wrote its choice; empty before it has chosen."""
        recorded = self.settings().get("trainer", {})
        if "auto" not in recorded or recorded.get("name") == "auto":
            return {}
        return {name: recorded[name] for name in ("name", "workers", "auto") if name in recorded}

    def by_the_choice(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The settings with what auto has chosen here, if they leave it to auto."""
        trainer = settings.get("trainer")
        if not isinstance(trainer, Mapping) or trainer.get("name") != "auto":
            return dict(settings)
        return {**settings, "trainer": {**trainer, **self.chosen_by_auto()}}

    def refuse_other_settings(
        self, settings: Mapping[str, Any], may_change: frozenset[str]
    ) -> None:
        """Raises RunError, naming each difference, unless the run was made with these settings."""
        if differences := self.other_settings(settings, may_change):
            raise RunError(
                f"The run in {self.path} was made with {'; '.join(differences)}. Resume it with "
                f"the settings it was made with, or choose another directory."
            )

    def other_settings(self, settings: Mapping[str, Any], may_change: frozenset[str]) -> list[str]:
        """Each setting in which the run was made otherwise, as "lr = 0.1 (now 0.2)"."""
        before = flattened(self.settings())
        now = flattened(_without_none(settings))
        differences = changes(before, now, (before.keys() | now.keys()) - may_change)
        trainers = before.get("trainer.name"), now.get("trainer.name")
        goes_by_the_choice = trainers[1] == "auto" and "trainer.auto" in before
        # Several threads sum in another order than the single one of a worker.
        not_the_same_bits = "vectorised" in trainers or before.get("trainer.threads", 1) != 1
        if not_the_same_bits and len(set(trainers)) > 1 and not goes_by_the_choice:
            differences.append(f"trainer.name = {trainers[0]} (now {trainers[1]})")
        return differences

    @property
    def rounds_done(self) -> int:
        """The newest round in metrics.jsonl; 0 before there is one."""
        last = _last_line(self.metrics_file) if self.metrics_file.exists() else None
        return 0 if last is None else int(_parsed(last, self.metrics_file)["round"])

    def refuse_without_checkpoint(self) -> None:
        """Raises RunError where rounds were trained and there is nothing to go on from."""
        if self.rounds_done and not self.checkpoint_folder.exists():
            raise self.without_checkpoint()

    def without_checkpoint(self) -> RunError:
        """What to raise then."""
        return RunError(
            f"{self.path} has the metrics of {self.rounds_done} rounds but no checkpoint to go on "
            f"from: it was deleted or never copied (`fedvarp compact` leaves it out). Restore it, "
            f"or choose another directory."
        )

    def metrics(self) -> list[dict[str, Any]]:
        """One record for each round, as in metrics.jsonl."""
        return _read_lines(self.metrics_file)

    def timings(self) -> list[dict[str, Any]]:
        """How long each round took."""
        return _read_lines(self.timings_file)

    def export_model(self, state: Mapping[str, Tensor], after_round: int) -> None:
        """Writes model.safetensors, whole or not at all."""
        import safetensors.torch

        draft = self.model_file.with_suffix(".safetensors.part")
        contiguous = {name: tensor.cpu().contiguous() for name, tensor in state.items()}
        safetensors.torch.save_file(contiguous, draft, metadata={"round": str(after_round)})
        draft.replace(self.model_file)

    @property
    def has_the_newest_model(self) -> bool:
        """Whether the exported model is that of the newest round in metrics.jsonl."""
        if not (self.model_file.exists() and self.metrics_file.exists()):
            return False
        import safetensors

        try:
            with safetensors.safe_open(self.model_file, framework="numpy") as model:
                exported = (model.metadata() or {}).get("round")
        except safetensors.SafetensorError:  # damaged: to be exported again
            return False
        if exported is None:  # by an earlier version: its time must do, which copies may change
            return self.model_file.stat().st_mtime_ns >= self.metrics_file.stat().st_mtime_ns
        return int(exported) == self.rounds_done


def _read_lines(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        raise RunError(f"{file} does not exist: no round of that run was recorded.")
    # A last line without its end is a round that is being written at this moment.
    *whole, _ = file.read_bytes().split(b"\n")
    return [_parsed(line, file, number) for number, line in enumerate(whole, start=1)]


def _parsed(line: bytes, file: Path, number: int | None = None) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(line)
    except ValueError as error:  # of JSON, or of the encoding
        where = "last whole line" if number is None else f"line {number}"
        raise _damaged(file, error, f" in its {where}") from error
    return record


def _damaged(file: Path, error: Exception, where: str = "") -> RunError:
    return RunError(
        f"{file} is damaged{where} ({error}). Restore it from a copy, or leave the run out."
    )


def _last_line(file: Path) -> bytes | None:
    """The last whole one, without a look at those before: a sweep asks for it all the time."""
    with file.open("rb") as opened:
        size = opened.seek(0, os.SEEK_END)
        length = _FIRST_LOOK
        while True:
            start = opened.seek(max(0, size - length))
            *whole, _ = opened.read(size - start).split(b"\n")
            if start == 0 or len(whole) > 1:  # else its beginning may lie further back
                return whole[-1] if whole else None
            length *= 2


def _without_none(settings: Mapping[str, Any]) -> dict[str, Any]:
    """TOML knows no null: a setting that is None is left out. Tuples become lists."""
    kept: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            kept[name] = _without_none(value)
        elif isinstance(value, tuple):
            kept[name] = list(value)
        elif value is not None:
            kept[name] = value
    return kept


def reached(target: float | None, metrics: Iterable[Mapping[str, Any]]) -> bool:
    """Whether the last evaluation came to the accuracy at which the run was to stop."""
    accuracies = [r["test_accuracy"] for r in metrics if r.get("test_accuracy") is not None]
    return target is not None and bool(accuracies) and bool(accuracies[-1] >= target)


def without_nan(value: Any) -> Any:
    """None in place of numbers that are not finite, which JSON cannot hold."""
    if isinstance(value, Mapping):
        return {name: without_nan(part) for name, part in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def flattened(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings under dotted names.

    >>> flattened({"seed": 1, "data": {"name": "digits"}})
    {'seed': 1, 'data.name': 'digits'}
    """
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= flattened(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat
