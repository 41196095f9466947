"""A simulation that is kept on disk, round by round, and goes on where the last one ended."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from rich.console import Console

from fedvarp.checkpoint import Checkpoint
from fedvarp.run_directory import Journal, RunDirectory

if TYPE_CHECKING:
    from fedvarp.simulation import Record, Simulation, SimulationResult


class RecordedRun:
    """A simulation that leaves a run directory behind and goes on where the last one ended."""

    def __init__(
        self, directory: RunDirectory, simulation: Simulation, commit_every: int, fsync: bool
    ) -> None:
        self._directory = directory
        self._simulation = simulation
        self._commit_every = commit_every
        self._fsync = fsync
        self._checkpoint = Checkpoint(directory.checkpoint_folder, fsync=fsync)
        self._metrics = Journal(directory.metrics_file)
        self._timings = Journal(directory.timings_file)

    def __enter__(self) -> RecordedRun:
        return self

    def __exit__(self, *exception: object) -> None:
        self._metrics.close()
        self._timings.close()
        self._checkpoint.close()

    def run(self, rounds: int, progress: bool | None) -> SimulationResult:
        """Goes on from the last checkpoint to round `rounds`."""
        restored = self._checkpoint.restore(self._simulation.server)
        if restored:
            self._simulation.buffers = self._checkpoint.tensors()
        self._metrics.cut_back(self._checkpoint.notes.get("metrics_bytes", 0))
        self._timings.cut_back(self._checkpoint.notes.get("timings_bytes", 0))
        before = self._directory.metrics()
        evaluated = [record for record in before if _is_evaluated(record)]
        result = self._simulation.run(
            rounds, progress, keep=self._keep, last=evaluated[-1] if evaluated else None
        )
        if self._checkpoint.round != self._simulation.server.round:
            self._commit()
        # A caller who decides about progress speaks to the user and can read `stopped`.
        if result.stopped == "interrupted" and progress is None:
            Console(stderr=True).print(
                f"Stopped after round {result.server.round} of {rounds}; nothing is lost. To go "
                f"on, call again with out={str(self._directory.path)!r} and resume=True.",
                highlight=False,
                soft_wrap=True,
            )
        self._directory.export_model(self._simulation.model.state_dict(result.server.w))
        return dataclasses.replace(result, metrics=before + result.metrics)

    def _keep(self, record: Record, seconds: float) -> None:
        self._metrics.append(record)
        self._timings.append({"round": record["round"], "seconds": seconds})
        if record["round"] % self._commit_every == 0:
            self._commit()

    def _commit(self) -> None:
        if self._fsync:
            self._metrics.sync()
        self._checkpoint.commit(
            self._simulation.server,
            tensors=self._simulation.buffers,
            notes={"metrics_bytes": self._metrics.size, "timings_bytes": self._timings.size},
        )


def _is_evaluated(record: Record) -> bool:
    return "test_loss" in record or "train_loss" in record or record["round"] == 0
