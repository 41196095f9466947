"""Looks whether a run is whole, and copies one, while it runs or not."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import filelock

from fedvarp.runs.directory import RunDirectory
from fedvarp.runs.errors import RunError
from fedvarp.runs.exported_model import DamagedModelError, read_about
from fedvarp.runs.identity import changes, lasting
from fedvarp.runs.journal import is_chained, lines_of
from fedvarp.runs.versions import can_be_read
from fedvarp.server.checkpoint import ENTRIES
from fedvarp.simulation.mending import is_record, is_sound, small_files, text_key
from fedvarp.system.parsing import is_text
from fedvarp.system.whole_files import make_folder, sync_folder, write_whole
from fedvarp.tables.copying import copy_store, undisturbed
from fedvarp.tables.data_file import DATA, inspect, values_of
from fedvarp.tables.pages import Snapshot
from fedvarp.tables.store import StoreError

_PART: Final = ".part"
_CLAIM: Final = ".backup"  # tells a draft of a backup, and whether somebody is at it


@dataclass(frozen=True)
class Finding:
    """What was found out about one file.

    Attributes:
        file: Its name in the run's directory.
        is_sound: Whether it is what the run wrote.
        said: In words.
    """

    file: str
    is_sound: bool
    said: str


def verify(run: str | os.PathLike[str]) -> list[Finding]:
    """Checks every byte of a run that can be checked, and changes nothing.

    It may be asked of a run that is being trained: what it looks at is held still meanwhile.

    Args:
        run: The run's directory, or the folder of a checkpoint alone, such as Flower's.

    Returns:
        What was found of each file.

    Raises:
        RunError: There is neither a run nor a checkpoint.
    """
    directory = RunDirectory(run)
    alone = (directory.path / DATA).exists()
    folder = directory.path if alone else directory.checkpoint_folder
    has_checkpoint = (folder / DATA).exists()
    if not has_checkpoint and not directory.exists:
        raise RunError(f"{directory.path} holds neither a run nor a checkpoint: nothing to verify.")
    if not has_checkpoint:
        said = "is not there: the run can be looked at, not gone on with"
        return [Finding("checkpoint", True, said), *_files(directory, _Held())]
    name = DATA if alone else f"checkpoint/{DATA}"
    try:
        with undisturbed(folder):
            found = inspect(folder / DATA, with_values=True)
            held = _Held.of(folder / DATA, found.snapshot)
    except StoreError as error:
        return [Finding(name, False, str(error)), *([] if alone else _files(directory, _Held()))]
    if found.wrong is not None:
        back = found.transactions_back
        which = "the one" if back < 2 else f"the {back}th"
        said = f"is damaged in its newest transaction ({found.wrong}); {which} before it is whole"
    elif found.seal is None:
        said = "is whole; an earlier version wrote it, without a seal"
    else:
        said = f"is whole: {found.seal.count:,} values, digest {found.seal.digest:032x}"
    return [Finding(name, found.wrong is None, said), *([] if alone else _files(directory, held))]


@dataclass(frozen=True)
class _Held:
    """What a checkpoint holds of the files beside it.

    Attributes:
        settings: Those that last.
        records: Those of metrics.jsonl.
        texts: The small files, by their keys.
    """

    settings: Mapping[str, object] = field(default_factory=dict)
    records: Sequence[Mapping[str, object]] = ()
    texts: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(file: Path, snapshot: Snapshot | None) -> _Held:
        about = json.loads(values_of(file, snapshot, "state").get("about", b"{}"))
        entries = values_of(file, snapshot, ENTRIES)
        records = [json.loads(record) for key, record in entries.items() if is_record(key)]
        texts = {key: json.loads(e)["text"] for key, e in entries.items() if not is_record(key)}
        return _Held(about.get("notes", {}).get("settings", {}), records, texts)


def _files(directory: RunDirectory, held: _Held) -> Iterator[Finding]:
    yield _config(directory, held)
    yield _metrics(directory, held.records)
    yield _model(directory)
    if not can_be_read(directory.versions_file):
        was = "is damaged" if directory.versions_file.exists() else "is gone"
        yield Finding(directory.versions_file.name, False, f"{was}; resuming writes it anew")
    if directory.data_folder_file.exists() and not is_text(directory.data_folder_file):
        said = "is damaged; resuming writes it anew"
        yield Finding(directory.data_folder_file.name, False, said)


def _config(directory: RunDirectory, held: _Held) -> Finding:
    name, committed = directory.config_file.name, held.settings
    try:
        now = lasting(directory.settings())
    except (RunError, OSError) as error:
        return Finding(name, False, str(error))
    edited = changes(committed, now, committed.keys() & now.keys())
    if edited:
        return Finding(name, False, f"differs from the checkpoint's: {'; '.join(edited)}")
    kept = held.texts.get(text_key(directory.config_file))
    if kept is not None and not is_sound(directory, directory.config_file, kept):
        return Finding(name, False, "has lost or gained settings; resuming writes it anew")
    return Finding(name, True, "is whole")


def _metrics(directory: RunDirectory, records: Sequence[Mapping[str, object]]) -> Finding:
    file = directory.metrics_file
    try:
        lines = len(directory.metrics())
        due = lines_of(records, chained=is_chained(file))
        is_as_committed = file.read_bytes().startswith(due)
    except (RunError, OSError) as error:
        return Finding(file.name, False, str(error))
    if not is_as_committed:
        return Finding(file.name, False, "differs from the checkpoint's records; resuming mends it")
    whose = "is that of the checkpoint" if records else "can be read"
    return Finding(file.name, True, f"{whose}, {lines:,} lines")


def _model(directory: RunDirectory) -> Finding:
    name = directory.model_file.name
    if not directory.model_file.exists():
        return Finding(name, True, "is not there yet: it is written when the run ends")
    try:
        about = read_about(directory.model_file)
    except (DamagedModelError, OSError) as error:
        return Finding(name, False, f"is damaged: {error}; resuming writes it anew")
    if "sha256" not in about:
        return Finding(name, True, "has no digest: an earlier version wrote it")
    whole = f"is whole: the model after round {about.get('round')}"
    if directory.has_the_newest_model:
        return Finding(name, True, whole)
    try:
        is_older = str(directory.rounds_done) != about.get("round")
    except RunError:
        is_older = False
    if is_older:
        return Finding(name, True, f"{whole}, which is not the newest")
    return Finding(name, False, f"{whole}, and metrics.jsonl was changed since")


def backup(run: str | os.PathLike[str], to: str | os.PathLike[str]) -> list[Finding]:
    """Copies a run as of its last commit, while it is being trained or not, and verifies the copy.

    Args:
        run: The run's directory.
        to: A directory that is not there yet; it appears when all of the copy is whole.

    Returns:
        What was found of each file of the copy.

    Raises:
        RunError: There is no run, or the place of the copy is taken.
        StoreError: The run's checkpoint is damaged, or the copy could not be written.
    """
    source, target = RunDirectory(run), Path(to)
    if not (source.checkpoint_folder / DATA).exists():
        raise RunError(f"{source.path} is no run with a checkpoint: there is nothing to back up.")
    if target.exists():
        raise RunError(f"{target} is there already. Choose a new directory for the copy.")
    with _drafted(target) as draft:
        copy_store(source.checkpoint_folder, draft.checkpoint_folder)
        copied = inspect(draft.checkpoint_folder / DATA, with_values=False)
        held = _Held.of(draft.checkpoint_folder / DATA, copied.snapshot)
        for file in small_files(source):
            kept = held.texts.get(text_key(file))
            if kept is not None and not is_sound(source, file, kept):
                write_whole(draft.path / file.name, kept)
            elif file.exists():
                write_whole(draft.path / file.name, file.read_bytes())
        if source.timings_file.exists():
            write_whole(draft.timings_file, source.timings_file.read_bytes())
        metrics = source.metrics_file
        if held.records:
            chained = not metrics.exists() or is_chained(metrics)
            write_whole(draft.metrics_file, lines_of(held.records, chained=chained))
        elif metrics.exists():
            write_whole(draft.metrics_file, metrics.read_bytes())
        if source.has_the_newest_model:
            write_whole(draft.model_file, source.model_file.read_bytes())
        findings = verify(draft.path)
        if wrong := [f"{found.file} {found.said}" for found in findings if not found.is_sound]:
            raise RunError(f"The copy of {source.path} is not whole: {'; '.join(wrong)}.")
    return findings


@contextlib.contextmanager
def _drafted(target: Path) -> Iterator[RunDirectory]:
    """A directory beside the target, which takes its name if the `with` block succeeds.

    One that is there already may be somebody's: only what a killed backup has left is removed.
    """
    draft = target.with_name(f"{target.name}{_PART}")
    claim = draft / _CLAIM
    is_ours = claim.is_file() or not draft.exists() or (draft.is_dir() and not any(draft.iterdir()))
    if draft.is_symlink() or not is_ours:
        raise RunError(
            f"{draft} is there already, where the copy would be made before it gets its name. It "
            f"is left as it is; choose another name for the copy."
        )
    make_folder(draft)
    lock = filelock.FileLock(claim, thread_local=False)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise RunError(
            f"Another process is making a copy in {draft} right now. Wait for it to end, or choose "
            f"another name for the copy."
        ) from None
    try:
        for left in draft.iterdir():
            if left.is_dir():
                shutil.rmtree(left)
            elif left != claim:
                left.unlink()
        yield RunDirectory(draft)
    except BaseException:
        lock.release()
        shutil.rmtree(draft, ignore_errors=True)
        raise
    lock.release()
    claim.unlink(missing_ok=True)
    draft.replace(target)
    sync_folder(target.parent)
