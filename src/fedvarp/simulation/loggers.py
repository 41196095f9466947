"""Loggers: callbacks that pass each round's figures on, to watch a run while it goes.

>>> class Printer(Logger):
...     def log(self, round: int, figures: Mapping[str, float]) -> None:
...         print(round, figures)
>>> printer = Printer()  # simulate(…, callbacks=[printer]) calls it after each round
>>> printer.on_round_end({"round": 1, "clients": [4, 7], "refused": {}, "local_loss": 0.5}, None)
1 {'local_loss': 0.5, 'clients': 2.0, 'refused': 0.0}

TensorBoard, MLflow and Weights & Biases are here; `Recording` names them in a file.
"""

from __future__ import annotations

import importlib
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from fedvarp.runs.identity import flattened
from fedvarp.simulation.callbacks import Callback

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

    from fedvarp.server.server import Server
    from fedvarp.simulation.result import SimulationResult
    from fedvarp.simulation.settings import Recording

Record = Mapping[str, Any]

_COUNTED: Final = ("clients", "refused")  # who they are is in metrics.jsonl; how many, in a curve
_LONGEST_PARAM: Final = 500  # characters that every MLflow server takes


class Logger(Callback, ABC):
    """A callback of `simulate` that is closed when the run is over.

    A subclass says what to do with the figures of one round, and what to do at the end.
    """

    @abstractmethod
    def log(self, round: int, figures: Mapping[str, float]) -> None:
        """Takes the figures of one round: those of `metrics.jsonl` that are numbers."""

    def close(self) -> None:
        """Writes out what is still held back."""
        return  # a logger that holds nothing back has nothing to do

    def on_round_end(self, record: Record, server: Server) -> None:
        """Logs the figures of the round."""
        self.log(int(record["round"]), figures_of(record))

    def on_run_end(self, result: SimulationResult) -> None:
        """Writes out what is still held back."""
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def figures_of(record: Record) -> dict[str, float]:
    """The numbers of a record but for the round; of clients and refusals, how many.

    >>> figures_of({"round": 3, "clients": [5, 9], "refused": {}, "bytes_up": 80})
    {'bytes_up': 80.0, 'clients': 2.0, 'refused': 0.0}
    """
    figures = {
        name: float(value)
        for name, value in record.items()
        if name != "round" and isinstance(value, (int, float))
    }
    return figures | {name: float(len(record[name])) for name in _COUNTED if name in record}


class TensorBoardLogger(Logger):
    """Scalars for TensorBoard: ``tensorboard --logdir DIR`` shows them while the run goes.

    A resumed run replaces what the interrupted one had logged of the rounds that are repeated.

    Args:
        log_dir: Where the event files go; a directory for each run, such as the run's own.
    """

    def __init__(self, log_dir: str | os.PathLike[str]) -> None:
        module = _extra("torch.utils.tensorboard", "TensorBoard", "tensorboard")
        self._writer_class: type[SummaryWriter] = module.SummaryWriter
        self._log_dir = log_dir
        self._writer: SummaryWriter | None = None

    def log(self, round: int, figures: Mapping[str, float]) -> None:
        """Adds a point to each curve."""
        if self._writer is None:
            # Only now is it known where the run goes on, and so which points are out of date.
            self._writer = self._writer_class(os.fspath(self._log_dir), purge_step=round)
        for name, value in figures.items():
            self._writer.add_scalar(name, value, round)

    def close(self) -> None:
        """Writes the rest to disk."""
        if self._writer is not None:
            self._writer.close()


class MLflowLogger(Logger):
    """A run of MLflow: on a server, or in a local database or folder.

    Args:
        experiment: Its name; it is created if there is none.
        tracking_uri: Such as "sqlite:///mlflow.db" or "http://…"; None: where MLflow is set to
            look, by MLFLOW_TRACKING_URI or by default.
        run_name: What to call the run.
        run_id: A run to go on with; None starts a new one.
        settings: Recorded as its parameters, with dots in the names of nested ones.
    """

    def __init__(
        self,
        experiment: str = "fedvarp",
        *,
        tracking_uri: str | None = None,
        run_name: str | None = None,
        run_id: str | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        mlflow = _extra("mlflow", "MLflow", "mlflow")
        # A client of its own: the global state of mlflow.start_run() allows one run at a time.
        self._client = mlflow.MlflowClient(tracking_uri=tracking_uri)
        self._metric = importlib.import_module("mlflow.entities").Metric
        self.run_id: str = run_id or self._new_run(experiment, run_name)
        for name, value in flattened(settings or {}).items():
            self._client.log_param(self.run_id, name, str(value)[:_LONGEST_PARAM])

    def log(self, round: int, figures: Mapping[str, float]) -> None:
        """Adds a point to each curve, in one request."""
        now = int(time.time() * 1000)
        points = [self._metric(name, value, now, round) for name, value in figures.items()]
        self._client.log_batch(self.run_id, metrics=points)

    def close(self) -> None:
        """Marks the run as finished."""
        self._client.set_terminated(self.run_id)

    def __exit__(self, *exception: object) -> None:
        status = "FINISHED" if exception[0] is None else "FAILED"
        self._client.set_terminated(self.run_id, status=status)

    def _new_run(self, experiment: str, name: str | None) -> str:
        known = self._client.get_experiment_by_name(experiment)
        where = known.experiment_id if known else self._client.create_experiment(experiment)
        return str(self._client.create_run(where, run_name=name).info.run_id)


class WandbLogger(Logger):
    """A run of Weights & Biases; with WANDB_MODE=offline it stays in a folder of this machine.

    Args:
        project: Its name; it is created if there is none.
        run_name: What to call the run.
        group: Runs of one group are shown together, such as those of a sweep.
        folder: Where the files of a run go; None: ./wandb.
        settings: Recorded as its configuration, with dots in the names of nested ones.
    """

    def __init__(
        self,
        project: str = "fedvarp",
        *,
        run_name: str | None = None,
        group: str | None = None,
        folder: str | os.PathLike[str] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        wandb = _extra("wandb", "Weights & Biases", "wandb")
        self._run = wandb.init(
            project=project,
            name=run_name,
            group=group,
            dir=None if folder is None else os.fspath(folder),
            config=flattened(settings or {}),
            reinit="create_new",  # several runs of one process do not end each other
        )

    def log(self, round: int, figures: Mapping[str, float]) -> None:
        """Adds a point to each curve."""
        self._run.log(dict(figures), step=round)

    def close(self) -> None:
        """Marks the run as finished and waits until it is sent."""
        self._run.finish()

    def __exit__(self, *exception: object) -> None:
        self._run.finish(exit_code=0 if exception[0] is None else 1)


def loggers_of(recording: Recording, name: str, settings: Mapping[str, Any]) -> list[Logger]:
    """The loggers that settings name.

    Args:
        recording: The settings.
        name: What to call the run.
        settings: Of the run, nested.

    Returns:
        Loggers, each to be closed.

    Raises:
        ImportError: A package that one needs is not installed.
    """
    made: list[Logger] = []
    if recording.tensorboard is not None:
        made.append(TensorBoardLogger(Path(recording.tensorboard) / name))
    if recording.mlflow is not None:
        made.append(MLflowLogger(tracking_uri=recording.mlflow, run_name=name, settings=settings))
    if recording.wandb is not None:
        made.append(WandbLogger(recording.wandb, run_name=name, settings=settings))
    return made


def _extra(module: str, called: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f'{called} is not installed: pip install "fedvarp[{extra}]"') from error
