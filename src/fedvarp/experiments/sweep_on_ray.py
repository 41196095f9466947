"""A sweep over the machines of a Ray cluster: each run is a task with one CPU.

The sweep's directory, and the data, must be seen by all machines under the same path.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fedvarp.data.locate import DATA_VARIABLE
from fedvarp.experiments.sweep_engines import Outcome
from fedvarp.experiments.sweep_worker import train_to_the_end
from fedvarp.runs.directory import RunDirectory
from fedvarp.system.processes import CORES_VARIABLE
from fedvarp.trainers.ray_cluster import connect

_HEARTBEAT: Final = 0.5  # seconds


@dataclass(frozen=True)
class RayEngine:
    """Runs as tasks of Ray.

    Attributes:
        address: Of a cluster that is up ("auto": the one of this machine); None: that of
            RAY_ADDRESS, or one that is started here.
        jobs: CPUs of the cluster that is started here.
        data_dir: Where the data files are, on all machines; None: in the folder of FEDVARP_DATA.
    """

    address: str | None
    jobs: int
    data_dir: Path | None = None

    def run(
        self, directories: Sequence[Path], stop: Callable[[], bool]
    ) -> Iterator[Outcome | None]:
        """See `fedvarp.experiments.sweep_engines.Engine.run`."""
        instead = "--engine local uses the cores of this machine."
        ray = connect(self.address, self.jobs, instead)
        try:
            # A task lost with its machine is begun again elsewhere, and resumes the run.
            task = ray.remote(num_cpus=1, max_retries=3)(_train)
            folder = self.data_dir or os.environ.get(DATA_VARIABLE)
            data = None if folder is None else str(Path(folder).expanduser().resolve())
            pending = {task.remote(str(path.resolve()), data): path for path in directories}
            stopping = False
            while pending:
                if stop() and not stopping:
                    stopping = True
                    for reference in pending:
                        ray.cancel(reference)  # in the task this is Ctrl-C: it finishes its round
                ended, _ = ray.wait(list(pending), timeout=_HEARTBEAT)
                for reference in ended:
                    error = _error(ray, reference)
                    path = pending.pop(reference)
                    yield Outcome(path, None if stopping or stop() else error)
                if not ended:
                    yield None
        finally:
            ray.shutdown()


def _train(run: str, data_dir: str | None) -> str | None:
    """The task: an error as a sentence, or None."""
    if not RunDirectory(run).exists:
        return (
            f"this machine does not see {run}. Put the sweep on a file system that all machines of "
            f"the cluster share, under the same path."
        )
    os.environ[CORES_VARIABLE] = "1"  # what the task was given
    return train_to_the_end(run, data_dir)


def _error(ray: Any, reference: Any) -> str | None:
    try:
        said: str | None = ray.get(reference)
    except ray.exceptions.RayError as error:
        said = str(error).strip().splitlines()[-1]
    return said
