"""From settings to a run: builds the data, the model and the rest, and trains.

>>> from fedvarp.experiments.files import load_settings
>>> experiment = build(load_settings("digits", ["rounds=2", "algorithm=fedavg"]))
>>> experiment.dataset
FederatedDataset(100 clients, 1,600 examples, 10 classes, 45 clusters, 197 test examples)
>>> experiment.run().server.round
2
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedvarp.clients.cohorts import ClientSampler
from fedvarp.clients.importance_sampling import UNIFORM_SHARE, ImportanceSampler
from fedvarp.clients.local_sgd import LocalSGD
from fedvarp.clients.local_training import Loss
from fedvarp.clients.round_robin import RoundRobinSampler
from fedvarp.clients.sampling import UniformSampler, WeightedSampler
from fedvarp.clients.stratified_sampling import StratifiedSampler
from fedvarp.clusters.names import clusters_by_name
from fedvarp.data.federated_dataset import FederatedDataset
from fedvarp.data.locate import DATA_VARIABLE, MissingDataError
from fedvarp.errors import InvalidError
from fedvarp.experiments.settings import (
    AVAILABILITIES,
    DATASETS,
    LOSSES,
    MODELS,
    Settings,
)
from fedvarp.models import initialised
from fedvarp.server.names import make_server_optimizer
from fedvarp.server.optimizers import ServerOptimizer
from fedvarp.settings.problems import SettingsError
from fedvarp.simulation.callbacks import Callback
from fedvarp.simulation.checks import refuse_too_many_threads
from fedvarp.simulation.result import SimulationResult
from fedvarp.simulation.task import Task
from fedvarp.system.processes import keep_freed_memory
from fedvarp.trainers.threads import torch_threads

DataFolder = str | os.PathLike[str] | None


@dataclass(frozen=True, eq=False)
class Experiment:
    """Settings, the objects they stand for, and the folder that their data came from, if any."""

    settings: Settings
    dataset: FederatedDataset
    model: nn.Module
    loss: Loss
    sampler: ClientSampler
    server_optimizer: ServerOptimizer
    data_folder: str | None = None

    @property
    def local_sgd(self) -> LocalSGD:
        """What a client does."""
        return self.settings.local_sgd

    def task(
        self,
        out: str | os.PathLike[str] | None = None,
        *,
        resume: bool = False,
        progress: bool | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> Task:
        """What `fedvarp.simulate` would be told.

        Args:
            out: The directory of the run; None: what the settings say.
            resume: Whether to go on with the run there.
            progress: Whether to show a bar; None: in a terminal.
            callbacks: Told of each step.

        Returns:
            The task.
        """
        settings = self.settings
        return Task(
            dataset=self.dataset,
            model=self.model,
            loss=self.loss,
            local_sgd=settings.local_sgd,
            rounds=settings.rounds,
            sampler=self.sampler,
            algorithm=settings.algorithm,
            seed=settings.seed,
            server_optimizer=self.server_optimizer,
            table=settings.table,
            trainer=settings.trainer,
            evaluation=settings.evaluation,
            recording=settings.recording.replace(
                out=settings.recording.out if out is None else os.fspath(out),
                resume=resume or settings.recording.resume,
                progress=settings.recording.progress if progress is None else progress,
            ),
            callbacks=callbacks,
        )

    def run(
        self,
        out: str | os.PathLike[str] | None = None,
        *,
        resume: bool = False,
        progress: bool | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> SimulationResult:
        """Trains; config.toml will hold the settings. See `task` for the arguments."""
        task = self.task(out, resume=resume, progress=progress, callbacks=callbacks)
        return task.run(self.settings.as_toml(), self.data_folder)


def build(settings: Settings, data_dir: DataFolder = None) -> Experiment:
    """Loads the data and makes the model and everything else that the settings describe.

    Args:
        settings: What to run.
        data_dir: Where the data files are; None: in the folder of FEDVARP_DATA.

    Returns:
        The settings with the objects they stand for.

    Raises:
        SettingsError: The settings do not fit the data, or this machine.
        DataError: The data is not there, or is damaged.
    """
    _refuse_absent_device(settings.trainer.device)
    keep_freed_memory()
    try:
        refuse_too_many_threads(settings.trainer.threads)
        with torch_threads(settings.trainer.threads):
            return _built(settings, data_dir)
    except ValueError as error:
        raise SettingsError(str(error)) from error


def _built(settings: Settings, data_dir: DataFolder) -> Experiment:
    dataset = _dataset(settings, data_dir)
    model = initialised(lambda: MODELS.make(settings.model, dataset=dataset), settings.seed)
    own_loss = getattr(model, "loss", cross_entropy)
    return Experiment(
        settings=settings,
        dataset=dataset,
        model=model,
        loss=own_loss if settings.loss is None else LOSSES.find(settings.loss),
        sampler=_sampler(settings, dataset),
        server_optimizer=make_server_optimizer(settings.server),
        data_folder=_data_folder(settings, data_dir),
    )


def _data_folder(settings: Settings, data_dir: DataFolder) -> str | None:
    """Where the data files are; None for data that comes without."""
    if "root" not in inspect.signature(DATASETS.find(settings.data.name)).parameters:
        return None
    folder = data_dir or os.environ.get(DATA_VARIABLE)
    return str(Path(folder).expanduser().resolve()) if folder else None


def _dataset(settings: Settings, data_dir: DataFolder) -> FederatedDataset:
    try:
        dataset = DATASETS.make(settings.data, root=data_dir)
    except MissingDataError as error:
        folder = data_dir or os.environ.get(DATA_VARIABLE)
        where = f"{folder} does not hold them" if folder else "no folder was named"
        raise MissingDataError(
            f"{settings.data.name} needs its files, and {where}. Say where they are by --data-dir "
            f"or the environment variable {DATA_VARIABLE}; `fedvarp data {settings.data.name} "
            f"--data-dir DIR` downloads them."
        ) from error
    if not isinstance(dataset, FederatedDataset):
        raise SettingsError(
            f"data = {settings.data.name!r} gives a {type(dataset).__name__}, not a "
            f"FederatedDataset; fedvarp.data.from_tensors and its neighbours make one."
        )
    return dataset


def _sampler(settings: Settings, dataset: FederatedDataset) -> ClientSampler:
    sampling, size, seed = settings.sampling, settings.clients_per_round, settings.seed
    online, dropout = AVAILABILITIES.make(sampling.availability), sampling.dropout
    N = dataset.num_clients
    if sampling.scheme == "uniform" and sampling.objective == "equal":
        return UniformSampler(N, size, seed, online, dropout)
    rest = (None if sampling.objective == "equal" else _sizes(dataset), online, dropout)
    if sampling.scheme == "stratified":
        return StratifiedSampler(_strata(settings, dataset), size, seed, *rest)
    if sampling.scheme == "round_robin":
        return RoundRobinSampler(N, size, seed, *rest)
    if sampling.scheme == "importance":
        return ImportanceSampler(N, size, seed, sampling.uniform_share or UNIFORM_SHARE, *rest)
    equal = torch.ones(N, dtype=torch.float64)
    sizes = _sizes(dataset) if sampling.scheme == "examples" else equal
    return WeightedSampler(sizes, size, seed, *rest)


def _strata(settings: Settings, dataset: FederatedDataset) -> Tensor:  # (N,) int64
    plan = clusters_by_name(settings.table.clusters, settings.table.recluster_every, dataset)
    if plan.num_auto is not None:
        raise InvalidError(
            f'sampling.scheme = "stratified" needs clusters that are known before the first round, '
            f'and table.clusters = "{settings.table.clusters}" are found later, in training. "own" '
            f'and "labels" are known.'
        )
    if plan.at_first is None:
        raise InvalidError(
            'sampling.scheme = "stratified" takes from each cluster its share, and this data set '
            'has no clusters of its own. table.clusters = "labels" makes some by labels.'
        )
    return plan.at_first


def _sizes(dataset: FederatedDataset) -> Tensor:  # (N,) float64
    if dataset.num_examples is None:
        raise InvalidError(
            "This data set does not know how many examples each client has (num_examples), so "
            'clients cannot be weighed by them: sampling.scheme and sampling.objective must be "'
            'uniform" and "equal".'
        )
    return dataset.num_examples.double()


def _refuse_absent_device(name: str) -> None:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise SettingsError(
            f"trainer.device = {name!r} cannot be used here: {str(error).splitlines()[0]}. "
            f'"cpu" works everywhere.'
        ) from error
