"""A simulation that is kept on disk, round by round, and goes on where the last one ended."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Final

from rich.console import Console

from fedvarp.clients.cohorts import LearningSampler
from fedvarp.errors import DamageWarning
from fedvarp.runs.directory import RunDirectory
from fedvarp.runs.figures import FIGURES
from fedvarp.runs.identity import lasting, refuse_edited_settings
from fedvarp.runs.journal import Journal
from fedvarp.runs.versions import DRAWS, note_change, refuse_other_draws
from fedvarp.server.checkpoint import Checkpoint
from fedvarp.simulation.callbacks import Record
from fedvarp.simulation.mending import KeptTexts, committed_records, record_key, warn_of
from fedvarp.simulation.result import SimulationResult
from fedvarp.simulation.round_loop import Simulation
from fedvarp.simulation.settings import Recording

_SLOW: Final = 0.005  # seconds of a commit, from which on a thread for the next one is worth it


class RecordedRun:
    """A simulation that leaves a run directory behind and goes on where the last one ended.

    Args:
        directory: Where.
        simulation: What to run.
        settings: Of the run; a resumed run must have those its checkpoint was made with. What it
            may be told anew is written once everything else agrees.
        given: The content of what the settings only name; a resumed run must have the same.
        recording: How often it is committed, and whether that waits for the disk.
        to_write: Called before each commit; what it gives is called once that is written.
    """

    def __init__(
        self,
        directory: RunDirectory,
        simulation: Simulation,
        settings: Mapping[str, Any],
        given: Mapping[str, Any],
        recording: Recording,
        to_write: Callable[[], Callable[[], None]],
    ) -> None:
        self._directory = directory
        self._simulation = simulation
        self._settings = settings
        self._lasting = lasting({**settings, **given})
        self._recording = recording
        self._to_write = to_write
        self._committing = threading.Lock()
        self._is_slow = False  # the last commit was
        self._texts = KeptTexts(directory)
        self._uncommitted: dict[str, Mapping[str, Any]] = {}
        with contextlib.ExitStack() as opened:  # what was opened is closed if the rest cannot be
            self._checkpoint = Checkpoint(
                directory.checkpoint_folder, fsync=recording.fsync, keep=recording.keep_checkpoints
            )
            opened.callback(self._checkpoint.close)
            directory.remove_strays()  # which would be another's before the checkpoint is ours
            self._metrics = Journal(directory.metrics_file, chained=True)
            opened.callback(self._metrics.close)
            self._timings = Journal(directory.timings_file)
            opened.callback(self._timings.close)
            self._opened = opened.pop_all()

    def __enter__(self) -> RecordedRun:
        return self

    def __exit__(self, *exception: object) -> None:
        with self._committing:  # which may go on after the second Ctrl-C
            self._opened.close()

    def run(self, rounds: int, announce: bool = True) -> SimulationResult:
        """Goes on from the last checkpoint to round `rounds`.

        Args:
            rounds: T.
            announce: Whether to say how to go on after Ctrl-C.
        """
        self._go_back_to_the_checkpoint(rounds)
        self._directory.update_settings(self._settings)
        if 0 < self._simulation.server.round < rounds:
            self._note_versions(aloud=self._recording.progress is not False)
        last = None
        for record in self._directory.metrics():
            last = record if _is_evaluated(record) else last
        result = self._simulation.run(rounds, self._recording.progress, keep=self._keep, last=last)
        if self._checkpoint.round != self._simulation.server.round:
            self._commit(self._to_write())
        self._metrics.sync()
        if not self._metrics.path.exists():  # somebody has taken it away meanwhile
            warn_of(self._metrics.path)
            self._metrics.become(committed_records(self._checkpoint))
        if result.stopped == "interrupted" and announce and self._recording.progress is not False:
            Console(stderr=True).print(
                f"Stopped after round {result.server.round} of {rounds}; nothing is lost. To go "
                f"on, call again with recording=Recording(out={str(self._directory.path)!r}, "
                f"resume=True).",
                highlight=False,
                soft_wrap=True,
            )
        final = self._simulation.model.state_dict(result.server.w)
        self._directory.export_model(final, after_round=result.server.round)
        return dataclasses.replace(result, metrics=self._directory.metrics())

    def _note_versions(self, aloud: bool) -> None:
        done = self._simulation.server.round
        different = note_change(self._directory.versions_file, done)
        if different and aloud:
            Console(stderr=True).print(
                f"{self._directory.path} was made with {'; '.join(different)}: from round "
                f"{done + 1} on its figures may be rounded otherwise than if it had never stopped. "
                f"{self._directory.versions_file.name} notes it.",
                highlight=False,
                soft_wrap=True,
            )

    def _go_back_to_the_checkpoint(self, rounds: int) -> None:
        # The initial model is committed with the first line; more lines had a checkpoint once.
        if self._checkpoint.round is None and self._metrics.num_lines > 1:
            raise self._directory.without_checkpoint()
        if 0 < (self._checkpoint.round or 0) < rounds:
            refuse_other_draws(self._directory.path, self._checkpoint.notes.get("draws", 1))
        committed = self._checkpoint.notes.get("settings", {})
        refuse_edited_settings(self._directory, committed, self._lasting)
        if self._checkpoint.restore(self._simulation.server):
            self._simulation.buffers = self._checkpoint.tensors()
            if isinstance(self._simulation.sampler, LearningSampler):
                self._simulation.sampler.load_state_dict(self._checkpoint.sampler())
        notes = self._checkpoint.notes
        if "metrics_bytes" in notes:  # written by a version that kept records only in the file
            self._metrics.cut_back(notes["metrics_bytes"])
            self._uncommitted = {record_key(r): r for r in self._directory.metrics()}
        elif self._metrics.become(committed_records(self._checkpoint)):
            warnings.warn(
                f"{self._metrics.path} was not as the run had left it, and was written anew from "
                f"its checkpoint; what was there has .changed behind its name.",
                DamageWarning,
                stacklevel=2,
            )
        # No commit waits until the disk has these: a power failure may have cost some.
        self._timings.cut_back_or_further(notes.get("timings_bytes", 0))

    def _keep(self, record: Record, seconds: float) -> Callable[[], None] | None:
        self._metrics.append(record)
        self._uncommitted[record_key(record)] = record
        self._timings.append({"round": record["round"], "seconds": seconds})
        if record["round"] % self._recording.commit_every:
            return None
        written = self._to_write()
        # The next cohort is drawn before it is trained, and a sampler may learn from that.
        if self._is_slow and not isinstance(self._simulation.sampler, LearningSampler):
            return functools.partial(self._commit, written)
        self._commit(written)
        return None

    def _commit(self, written: Callable[[], None]) -> None:
        start = time.perf_counter()
        with self._committing:
            self._commit_now()
            written()
        self._is_slow = time.perf_counter() - start > _SLOW

    def _commit_now(self) -> None:
        sampler = self._simulation.sampler
        self._checkpoint.commit(
            self._simulation.server,
            tensors=self._simulation.buffers,
            sampler=sampler.state_dict() if isinstance(sampler, LearningSampler) else None,
            notes={
                "timings_bytes": self._timings.size,
                "settings": self._lasting,
                "draws": DRAWS,
            },
            entries={**self._uncommitted, **self._texts.changed()},
        )
        self._uncommitted = {}


def _is_evaluated(record: Record) -> bool:
    return record["round"] == 0 or not record.keys().isdisjoint(FIGURES)
