"""From settings to a run: builds the data, the model and the rest, and calls `simulate`.

>>> from fedvarp.experiments.files import load_settings
>>> experiment = build(load_settings("digits", ["rounds=2", "algorithm=fedavg"]))
>>> experiment.dataset
FederatedDataset(100 clients, 1,600 examples, 10 classes, 45 clusters, 197 test examples)
>>> experiment.run().server.round
2
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedvarp.clients import availability, schedules
from fedvarp.clients.local_sgd import LocalSGD, Loss
from fedvarp.clients.sampling import ClientSampler, UniformSampler, WeightedSampler
from fedvarp.data import FederatedDataset, cifar10, digits, logistic, quadratics, shakespeare
from fedvarp.data.locate import DATA_VARIABLE, MissingDataError
from fedvarp.experiments.errors import SettingsError
from fedvarp.experiments.settings import Settings
from fedvarp.models import (
    CharGRU,
    LeNet5,
    LogisticRegression,
    Quadratic,
    ResNet18,
    initialised,
    quadratic_loss,
)
from fedvarp.processes import keep_freed_memory
from fedvarp.server.optimizers import ServerMomentum, ServerOptimizer, ServerSGD, Steady
from fedvarp.simulation.round_loop import Callback, SimulationResult
from fedvarp.simulation.simulate import simulate

DataFolder = str | os.PathLike[str] | None


@dataclass(frozen=True, eq=False)
class Experiment:
    """Settings, and the objects they stand for."""

    settings: Settings
    dataset: FederatedDataset
    model: nn.Module
    loss: Loss
    local_sgd: LocalSGD
    sampler: ClientSampler
    server_optimizer: ServerOptimizer
    client_weights: Tensor | None  # (N,) p_i up to a factor; None: equal

    def run(
        self,
        out: str | os.PathLike[str] | None = None,
        *,
        resume: bool = False,
        progress: bool | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> SimulationResult:
        """Trains; see `fedvarp.simulate` for the arguments. config.toml will hold the settings."""
        settings = self.settings
        return simulate(
            self.dataset,
            self.model,
            self.loss,
            local_sgd=self.local_sgd,
            rounds=settings.rounds,
            algorithm=settings.algorithm,
            seed=settings.seed,
            server_optimizer=self.server_optimizer,
            sampler=self.sampler,
            cluster_of=settings.clusters,
            recluster_every=settings.recluster_every,
            client_weights=self.client_weights,
            states=settings.states.where,
            dtype=settings.states.dtype,
            trainer=settings.trainer,
            workers=settings.workers,
            compile=settings.compile,
            exact=settings.exact,
            evaluate_every=settings.evaluate_every,
            num_train_clients=settings.num_train_clients,
            num_test_examples=settings.num_test_examples,
            target_accuracy=settings.target_accuracy,
            callbacks=callbacks,
            out=out,
            resume=resume,
            commit_every=settings.commit_every,
            settings=settings.as_toml(),
            progress=progress,
            device=settings.device,
        )


def build(settings: Settings, data_dir: DataFolder = None) -> Experiment:
    """Loads the data and makes the model and everything else that the settings describe.

    Args:
        settings: What to run.
        data_dir: Where the data files are; None: in the folder of FEDVARP_DATA.

    Raises:
        SettingsError: The settings do not fit the data, or this machine.
        DataError: The data is not there, or is damaged.
    """
    _refuse_absent_device(settings.device)
    torch.set_num_threads(settings.threads)
    keep_freed_memory()
    try:
        dataset = _dataset(settings, data_dir)
        sizes = _sizes(dataset) if settings.client_weights == "examples" else None
        return Experiment(
            settings=settings,
            dataset=dataset,
            model=initialised(lambda: _model(settings, dataset), settings.seed),
            loss=quadratic_loss if settings.model.name == "quadratic" else cross_entropy,
            local_sgd=_local_sgd(settings),
            sampler=_sampler(settings, dataset),
            server_optimizer=_server_optimizer(settings),
            client_weights=sizes,
        )
    except ValueError as error:
        raise SettingsError(str(error)) from error


def _dataset(settings: Settings, data_dir: DataFolder) -> FederatedDataset:
    data = settings.data
    options = data.model_dump(exclude={"name"})
    if data.name == "digits":
        return digits(**options)
    if data.name == "quadratics":
        return quadratics(**options)
    if data.name == "logistic":
        return logistic(**options)
    load = cifar10 if data.name == "cifar10" else shakespeare
    try:
        return load(data_dir, **options)
    except MissingDataError as error:
        folder = data_dir or os.environ.get(DATA_VARIABLE)
        where = f"{folder} does not hold them" if folder else "no folder was named"
        raise MissingDataError(
            f"{data.name} needs its files, and {where}. Say where they are by --data-dir or the "
            f"environment variable {DATA_VARIABLE}; `fedvarp data {data.name} --data-dir DIR` "
            f"downloads them."
        ) from error


def _model(settings: Settings, dataset: FederatedDataset) -> nn.Module:
    model = settings.model
    if model.name == "lenet5":
        return LeNet5()
    if model.name == "resnet18":
        return ResNet18(groups=model.groups)
    if model.name == "char_gru":
        return CharGRU(embedding=model.embedding, hidden=model.hidden)
    example = dataset.client(0)[0][0]
    if model.name == "quadratic":
        return Quadratic(len(example))
    assert dataset.num_classes is not None
    return LogisticRegression(example.numel(), dataset.num_classes)


def _local_sgd(settings: Settings) -> LocalSGD:
    given = settings.local_sgd
    kinds = {
        "constant": schedules.Constant,
        "exponential": schedules.Exponential,
        "cosine": schedules.Cosine,
    }
    schedule = kinds[given.schedule.name](**given.schedule.model_dump(exclude={"name"}))
    return LocalSGD(**given.model_dump(exclude={"schedule"}), schedule=schedule)


def _sampler(settings: Settings, dataset: FederatedDataset) -> ClientSampler:
    sampling, size, seed = settings.sampling, settings.clients_per_round, settings.seed
    online, dropout = _availability(settings), sampling.dropout
    if sampling.scheme == "uniform" and settings.client_weights == "equal":
        return UniformSampler(dataset.num_clients, size, seed, online, dropout)
    sizes = _sizes(dataset)
    return WeightedSampler(
        sizes if sampling.scheme == "examples" else torch.ones_like(sizes),
        size,
        seed,
        objective=sizes if settings.client_weights == "examples" else None,
        availability=online,
        dropout=dropout,
    )


def _availability(settings: Settings) -> availability.Availability | None:
    given = settings.sampling.availability
    if given.name == "always":
        return None
    if given.name == "trace":
        return availability.Trace.from_csv(given.file, given.after_end)
    if given.name == "bernoulli":
        return availability.Bernoulli(given.probability)
    if given.name == "markov":
        return availability.Markov(given.on_to_off, given.off_to_on)
    return availability.Cyclic(given.profile)


def _server_optimizer(settings: Settings) -> ServerOptimizer:
    chosen: ServerOptimizer = ServerSGD(settings.server_lr)
    if settings.server_momentum:
        chosen = ServerMomentum(settings.server_lr, settings.server_momentum)
    return Steady(chosen) if settings.server_step == "steady" else chosen


def _sizes(dataset: FederatedDataset) -> Tensor:  # (N,) float64
    assert dataset.num_examples is not None  # every data set that settings can name knows it
    return dataset.num_examples.double()


def _refuse_absent_device(name: str) -> None:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise SettingsError(
            f"device = {name!r} cannot be used here: {str(error).splitlines()[0]}. "
            f'device = "cpu" works everywhere.'
        ) from error
