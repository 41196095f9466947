"""The files of a run: its settings, its metrics, its checkpoint, its model.

config.toml         the resolved settings
versions.json       what it was run with
metrics.jsonl       one line a round; the same, byte for byte, however often it is interrupted
timings.jsonl       how long each round took: not the same twice, so in a file of its own
checkpoint/         the last whole round
model.safetensors   the final model
data_folder.txt     where its data files were, if it needs any; no part of what the run is
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import filelock
import tomli_w

from fedvarp.runs.errors import RunError
from fedvarp.runs.exported_model import DamagedModelError, read_about, sha256_of, with_digest
from fedvarp.runs.identity import with_later_settings, without_none
from fedvarp.runs.journal import read_last_line, read_lines, read_sound_lines
from fedvarp.runs.versions import write_versions
from fedvarp.system.parsing import is_text, parse_toml
from fedvarp.system.whole_files import make_folder, write_whole

if TYPE_CHECKING:  # torch takes seconds to load, and who only looks at runs does without it
    from torch import Tensor


_MOST_NAMED: Final = 3  # strangers' files in a message


class RunDirectory:
    """The files of one run.

    Args:
        path: The directory; it need not exist yet.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.config_file = self.path / "config.toml"
        self.metrics_file = self.path / "metrics.jsonl"
        self.timings_file = self.path / "timings.jsonl"
        self.checkpoint_folder = self.path / "checkpoint"
        self.checkpoint_file = self.checkpoint_folder / "data.mdb"
        self.model_file = self.path / "model.safetensors"
        self.versions_file = self.path / "versions.json"
        self.data_folder_file = self.path / "data_folder.txt"
        self._lock_file = self.path / ".lock"

    @property
    def exists(self) -> bool:
        """Whether there is a run in this directory."""
        return self.config_file.exists()

    def refuse_if_taken(self) -> None:
        """Refuses a place where a run cannot begin without mixing with what is there.

        An empty directory will do, and so will one with hidden files, such as .gitkeep.

        Raises:
            RunError: There is a run already, a file in the directory's place, or a file or folder
                in it that is no run's.
        """
        if self.exists:
            raise RunError(
                f"{self.path} holds a run already. Resume it, or choose another directory."
            )
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise RunError(f"{self.path} is a file; a run needs a directory. Choose another name.")
        # A process that was killed while it began a run may have left what stands before settings.
        begun = {self.versions_file.name, *(f"{f.name}.part" for f in self._first_files)}
        there = (entry.name for entry in self.path.iterdir() if not entry.name.startswith("."))
        strangers = sorted(set(there) - begun)
        if strangers:
            named = ", ".join(strangers[:_MOST_NAMED])
            more = f" and {len(strangers) - _MOST_NAMED} more" if strangers[_MOST_NAMED:] else ""
            raise RunError(
                f"{self.path} is no run, but holds {named}{more}, which a run might overwrite. "
                f"Choose a directory that is new or empty, such as {self.path / 'run'}."
            )

    def create(self, settings: Mapping[str, Any]) -> None:
        """Begins a run here: makes the directory and writes its settings.

        Args:
            settings: Of the run, nested.

        Raises:
            RunError: The place is taken.
        """
        with self._claimed():
            self._create(settings)

    def _create(self, settings: Mapping[str, Any]) -> None:
        self.refuse_if_taken()
        write_versions(self.versions_file)
        # The settings come last and whole: a directory with settings is a run.
        self.write_settings(settings)

    @contextlib.contextmanager
    def _claimed(self) -> Iterator[None]:
        """Of two processes that begin a run here at the same time, one writes nothing."""
        self.refuse_if_taken()
        make_folder(self.path)
        lock = filelock.FileLock(self._lock_file, thread_local=False)
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            raise RunError(
                f"Another process is beginning a run in {self.path} right now. Choose another "
                f"directory, or wait for it to end."
            ) from None
        try:
            yield
        finally:
            lock.release()

    @contextlib.contextmanager
    def begun(self, settings: Mapping[str, Any]) -> Iterator[None]:
        """Begins a run here, and takes it back if the `with` block fails before a round is kept.

        Args:
            settings: Of the run, nested.

        Raises:
            RunError: The place is taken.
        """
        new_places = [place for place in (self.path, *self.path.parents) if not place.exists()]
        with self._claimed():
            self._create(settings)
            try:
                yield
            except BaseException:
                if not self._may_hold_rounds:
                    self._remove(new_places)
                raise

    @property
    def _may_hold_rounds(self) -> bool:
        """Whether rounds may be lost with this directory; some stand in a checkpoint alone."""
        try:
            are_records_gone = self.checkpoint_file.exists() and not self.metrics_file.exists()
            return are_records_gone or self.rounds_done > 0
        except RunError:  # of a damaged line
            return True

    @property
    def _first_files(self) -> tuple[Path, ...]:
        return self.versions_file, self.config_file

    def _remove(self, new_places: list[Path]) -> None:
        """Removes the files of the run, and those of the directories that it leaves empty."""
        files = (
            *self._first_files,
            self.metrics_file,
            self.timings_file,
            self.model_file,
            self.data_folder_file,
        )
        shutil.rmtree(self.checkpoint_folder, ignore_errors=True)
        for file in (*files, self._lock_file):
            file.unlink(missing_ok=True)
        self.remove_strays()
        with contextlib.suppress(OSError):  # somebody else has put something there since
            for place in new_places:
                place.rmdir()

    def remove_strays(self) -> None:
        """Removes what processes that were killed while they wrote a file have left beside it."""
        for file in (*self._first_files, self.model_file, self.metrics_file, self.data_folder_file):
            file.with_name(f"{file.name}.part").unlink(missing_ok=True)

    def write_settings(self, settings: Mapping[str, Any]) -> None:
        """Writes config.toml, whole or not at all.

        Args:
            settings: Of the run, nested; what is None is left out.
        """
        write_whole(self.config_file, tomli_w.dumps(without_none(settings)))

    def update_settings(self, settings: Mapping[str, Any]) -> None:
        """Writes config.toml unless it holds these settings already.

        Args:
            settings: Of the run, nested.
        """
        if self.settings() != without_none(settings):
            self.write_settings(settings)

    def settings(self) -> dict[str, Any]:
        """Reads config.toml.

        Returns:
            The resolved settings of the run, nested.

        Raises:
            RunError: There is no run, or the file is damaged.
        """
        if not self.exists:
            raise RunError(f"There is no run in {self.path}: it has no config.toml.")
        try:
            read = parse_toml(self.config_file.read_text(encoding="utf-8"))
        except ValueError as error:  # of TOML, or of the encoding
            raise RunError(
                f"{self.config_file} is damaged ({error}). `fedvarp resume {self.path}` writes it "
                f"anew from the run's checkpoint; without one, restore it from a copy, or leave "
                f"the run out."
            ) from error
        return with_later_settings(read)

    def remember_data_folder(self, folder: str | None) -> None:
        """Notes where the data files are, so that the run can be resumed without being told.

        Args:
            folder: An absolute path; None: nothing to note.
        """
        if folder is not None and folder != self.data_folder:
            write_whole(self.data_folder_file, f"{folder}\n")

    @property
    def data_folder(self) -> str | None:
        """Where the data files were; None if the run needs none, or they are there no longer."""
        if not is_text(self.data_folder_file):
            return None
        folder = self.data_folder_file.read_text(encoding="utf-8").removesuffix("\n")
        return folder if Path(folder).exists() else None

    def metrics(self) -> list[dict[str, Any]]:
        """Reads metrics.jsonl.

        Returns:
            One record for each round, the first for the initial model.

        Raises:
            RunError: There is no such file, or a line of it is damaged.
        """
        return read_lines(self.metrics_file)

    def timings(self) -> list[dict[str, Any]]:
        """Reads timings.jsonl, which no figure depends on.

        Returns:
            One record for each round: how many seconds it took. Those from the first damaged line
            on are left out; all are where there is no such file.
        """
        return read_sound_lines(self.timings_file, "seconds")

    @property
    def rounds_done(self) -> int:
        """The newest round in metrics.jsonl; 0 before there is one."""
        last = read_last_line(self.metrics_file)
        return 0 if last is None else int(last["round"])

    def refuse_without_checkpoint(self) -> None:
        """Refuses to go on where rounds were trained and no checkpoint holds them.

        Raises:
            RunError: There is nothing to go on from.
        """
        if self.rounds_done and not self.checkpoint_file.exists():
            raise self.without_checkpoint()

    def without_checkpoint(self) -> RunError:
        """What to raise where there is no checkpoint to go on from."""
        return RunError(
            f"{self.path} has the metrics of {self.rounds_done} rounds but no checkpoint to go on "
            f"from: it was deleted or never copied. Restore it, or choose another directory."
        )

    def export_model(self, state: Mapping[str, Tensor], after_round: int) -> None:
        """Writes model.safetensors, whole or not at all.

        Args:
            state: The model's tensors by name.
            after_round: The round they are the model of.
        """
        import safetensors.torch

        contiguous = {name: tensor.cpu().contiguous() for name, tensor in state.items()}
        written = safetensors.torch.save(contiguous)
        about = {"round": str(after_round), "metrics_sha256": sha256_of(self.metrics_file)}
        write_whole(self.model_file, with_digest(written, about))

    @property
    def has_the_newest_model(self) -> bool:
        """Whether the exported model is whole, and that of the newest round in metrics.jsonl."""
        if not (self.model_file.exists() and self.metrics_file.exists()):
            return False
        try:
            about = read_about(self.model_file)
        except DamagedModelError:  # to be exported again
            return False
        metrics = about.get("metrics_sha256")  # which earlier versions did not note
        if metrics is not None and metrics != sha256_of(self.metrics_file):
            return False
        return about.get("round") == str(self.rounds_done)
