"""What a checkpoint holds besides the server: the records of all rounds, and the run's small files.

So config.toml, versions.json and metrics.jsonl can be lost or damaged without losing the run: they
are written anew from the checkpoint, which alone has to be waited for at every round.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from fedvarp.errors import DamageWarning
from fedvarp.runs.directory import RunDirectory
from fedvarp.runs.errors import RunError
from fedvarp.runs.identity import MAY_CHANGE, ROUNDS, flattened, with_later_settings
from fedvarp.runs.journal import Journal
from fedvarp.runs.versions import can_be_read
from fedvarp.server.checkpoint import Checkpoint
from fedvarp.system.parsing import is_text, parse_toml
from fedvarp.system.whole_files import write_whole

_RECORDS: Final = "round/"
_TEXTS: Final = "file/"


def record_key(record: Mapping[str, Any]) -> str:
    """The key of a round's record among the entries of a checkpoint; in the order of rounds."""
    return f"{_RECORDS}{record['round']:010d}"


def is_record(key: str) -> bool:
    """Whether that is the key of a round's record."""
    return key.startswith(_RECORDS)


def text_key(file: Path) -> str:
    """The key of one of the `small_files` among the entries."""
    return f"{_TEXTS}{file.name}"


def committed_records(checkpoint: Checkpoint) -> Iterator[dict[str, Any]]:
    """The records of all rounds that were committed, in their order."""
    return (entry for key, entry in checkpoint.entries().items() if is_record(key))


class KeptTexts:
    """The small files of a run, as entries of its checkpoint; each again once it has changed.

    Args:
        directory: Of the run.
    """

    def __init__(self, directory: RunDirectory) -> None:
        self._files = small_files(directory)
        self._seen: dict[Path, int] = {}

    def changed(self) -> dict[str, dict[str, str]]:
        """The files that were written since the last call, by their keys."""
        found = {}
        for file in self._files:
            try:
                written = file.stat().st_mtime_ns
                if self._seen.get(file) != written:
                    found[text_key(file)] = {"text": file.read_text(encoding="utf-8")}
                    self._seen[file] = written
            except (FileNotFoundError, UnicodeDecodeError):
                continue
        return found


def mend(directory: RunDirectory) -> None:
    """Writes what is gone or damaged of a run's small files anew, from its checkpoint.

    Warns of each, and keeps settings that somebody may have meant to write, with ``.changed``
    behind the file's name. Does nothing where there is no checkpoint.

    Args:
        directory: Of the run.

    Raises:
        StoreError: The checkpoint is damaged, or in use.
    """
    if not directory.checkpoint_file.exists():
        return
    with Checkpoint(directory.checkpoint_folder) as checkpoint:
        entries = checkpoint.entries()
        for file in small_files(directory):
            kept = entries.get(text_key(file))
            if kept is not None and not is_sound(directory, file, kept["text"]):
                warn_of(file)
                if file == directory.config_file and _was_edited(file, kept["text"]):
                    file.replace(file.with_name(f"{file.name}.changed"))
                write_whole(file, kept["text"])
        records = list(committed_records(checkpoint))
        # Before the first commit there is at most the first line, of the initial model.
        metrics = directory.metrics_file
        lines = metrics.read_bytes().count(b"\n") if metrics.exists() else 2
        is_new = checkpoint.round is None and lines < 2
        if (records or is_new) and not _has_records(directory):
            warn_of(metrics)
            journal = Journal(metrics, chained=True)
            journal.become(records)  # and keeps what somebody has changed
            journal.close()


def small_files(directory: RunDirectory) -> tuple[Path, ...]:
    """The files of a run that its checkpoint keeps copies of, besides the records."""
    return directory.config_file, directory.versions_file, directory.data_folder_file


def is_sound(directory: RunDirectory, file: Path, kept: str) -> bool:
    """Whether one of the small files is neither gone nor damaged; it may be newer than its copy.

    Args:
        directory: Of the run.
        file: One of `small_files`.
        kept: Its copy in the checkpoint.
    """
    if file == directory.versions_file:
        return can_be_read(file)
    if file != directory.config_file:
        return is_text(file)
    try:
        now = flattened(directory.settings())
    except RunError:
        return False
    # What may be told anew may also come and go, but for the number of rounds.
    was = flattened(with_later_settings(parse_toml(kept))).keys()
    has_all = was - MAY_CHANGE | {ROUNDS} <= now.keys() <= was | MAY_CHANGE
    was_cut_off = file.read_text(encoding="utf-8") != kept and not _was_edited(file, kept)
    return has_all and not was_cut_off


def _was_edited(file: Path, kept: str) -> bool:
    """Whether a text differs from its copy in more than a crash can do, which cuts it off."""
    return is_text(file) and not kept.startswith(file.read_text(encoding="utf-8"))


def _has_records(directory: RunDirectory) -> bool:
    try:
        return directory.metrics_file.exists() and directory.rounds_done >= 0
    except RunError:
        return False


def warn_of(file: Path) -> None:
    """Warns that one of a run's files, gone or damaged, is written anew.

    Args:
        file: As it is found.
    """
    was = "damaged" if file.exists() else "gone"
    warnings.warn(
        f"{file} was {was}, and is written anew from the run's checkpoint.",
        DamageWarning,
        stacklevel=3,
    )
