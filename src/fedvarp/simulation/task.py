"""A simulation as it was asked for: checked, described, put together and run."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedvarp.algorithms.aggregator import Aggregator
from fedvarp.algorithms.names import but_defaults
from fedvarp.algorithms.registry import TableSettings, make_algorithm
from fedvarp.clients.cohorts import ClientSampler, LearningSampler
from fedvarp.clients.evaluation import Evaluator
from fedvarp.clients.local_sgd import LocalSGD
from fedvarp.clients.local_training import Loss, mean_steps
from fedvarp.clients.metrics import metric_functions
from fedvarp.clusters.names import ClusterPlan, clusters_by_name
from fedvarp.clusters.reclustering import reclustering
from fedvarp.data.federated_dataset import FederatedDataset
from fedvarp.runs.directory import RunDirectory
from fedvarp.runs.identity import with_choice_of_auto
from fedvarp.runs.mendable import is_to_be_mended
from fedvarp.server.flat_model import FlatModel, slots_of
from fedvarp.server.optimizers import ServerOptimizer
from fedvarp.server.server import Server
from fedvarp.simulation.callbacks import Callback
from fedvarp.simulation.checks import refuse_another_run, refuse_impossible
from fedvarp.simulation.description import aggregator_name, behind_names, description
from fedvarp.simulation.loggers import loggers_of
from fedvarp.simulation.mending import mend
from fedvarp.simulation.objective import objective
from fedvarp.simulation.recording import RecordedRun
from fedvarp.simulation.result import SimulationResult
from fedvarp.simulation.round_loop import Simulation
from fedvarp.simulation.settings import Evaluation, Recording
from fedvarp.tables.settings import Table, clip_multiple
from fedvarp.trainers.base import ClientTrainer
from fedvarp.trainers.makers import TrainerParts, make_trainer
from fedvarp.trainers.settings import Trainer
from fedvarp.trainers.threads import torch_threads

AlgorithmMaker = Callable[[TableSettings], Aggregator]


@dataclass(frozen=True, eq=False)
class Task:
    """All that `fedvarp.simulate` was told; see there for what each part means."""

    dataset: FederatedDataset
    model: nn.Module
    loss: Loss
    local_sgd: LocalSGD
    rounds: int
    sampler: ClientSampler
    algorithm: str | AlgorithmMaker | type[Aggregator] | Aggregator
    seed: int
    server_optimizer: ServerOptimizer
    table: Table
    trainer: Trainer | ClientTrainer
    evaluation: Evaluation
    recording: Recording
    callbacks: Sequence[Callback]

    def run(
        self, settings: Mapping[str, Any] | None = None, data_folder: str | None = None
    ) -> SimulationResult:
        """Refuses what cannot be, or trains.

        Args:
            settings: What config.toml records and a resumed run must agree with; described from
                the task itself unless given.
            data_folder: Where the data files are, for the run's directory to remember.

        Returns:
            What the run leaves behind.
        """
        refuse_impossible(self)
        with self._threads(), torch.enable_grad():  # whatever the caller computes without
            return self._run(settings, data_folder)

    def _threads(self) -> contextlib.AbstractContextManager[None]:
        """Who makes a trainer of their own has torch as they want it."""
        if isinstance(self.trainer, ClientTrainer):
            return contextlib.nullcontext()
        return torch_threads(self.trainer.threads)

    def _run(self, settings: Mapping[str, Any] | None, data_folder: str | None) -> SimulationResult:
        directory = None if self.recording.out is None else RunDirectory(self.recording.out)
        kept: dict[str, Any] = {}
        given: dict[str, Any] = {}
        if directory is not None:
            kept = description(self) if settings is None else dict(settings)
            given = {} if settings is None else behind_names(self)
            if self.recording.resume and is_to_be_mended(directory):
                mend(directory)
            refuse_another_run(directory, kept, self.recording.resume)
            if directory.exists:
                kept = with_choice_of_auto(kept, directory.settings())
        flat = FlatModel(self.model.to(self.device))
        clusters, table = self.clusters_and_table(directory)
        choice = _Choice(directory, kept)
        evaluator = Evaluator(
            self.dataset,
            flat,
            self.loss,
            self.client_weights,
            self.evaluation.num_train_clients,
            self.evaluation.num_test_examples,
            self.evaluation.validation_share,
            self.seed,
            metrics=metric_functions(self.evaluation.metrics),
            per_client=self.evaluation.per_client,
            cluster_of=self.dataset.cluster_of,
        )
        with contextlib.ExitStack() as opened:
            trainer = self._trainer(flat, evaluator, choice, opened)
            if directory is not None:
                if not directory.exists:  # nothing is written before all the above has worked
                    opened.enter_context(directory.begun(kept))
                directory.remember_data_folder(data_folder)
            told = kept or self._plain_settings
            name = self.algorithm_name if directory is None else directory.path.resolve().name
            loggers = [
                opened.enter_context(logger) for logger in loggers_of(self.recording, name, told)
            ]
            aggregator = make_algorithm(self.algorithm, table)
            for rows in () if aggregator.table is None else aggregator.table.tables():
                opened.callback(rows.close)
            simulation = Simulation(
                server=Server(flat.vector(), aggregator, self.server_optimizer),
                sampler=_fresh(self.sampler),
                trainer=trainer,
                evaluator=evaluator,
                model=flat,
                evaluation=self.evaluation,
                callbacks=[*self.callbacks, *loggers],
                buffers=flat.buffers(),
                title=self.algorithm_name,
                objective=self.objective,
                mean_steps=mean_steps(self.local_sgd, self.dataset),
                reclustering=reclustering(
                    clusters, aggregator, self.dataset, flat, self.loss, self.local_sgd, self.seed
                ),
            )
            if directory is None:
                result = simulation.run(self.rounds, self.recording.progress)
            else:
                with RecordedRun(
                    directory, simulation, kept, given, self.recording, choice.to_write
                ) as recorded:
                    result = recorded.run(self.rounds, announce=settings is None)
        result = dataclasses.replace(result, settings=told)
        for callback in self.callbacks:
            callback.on_run_end(result)
        return result

    @property
    def _plain_settings(self) -> dict[str, Any]:
        """What a run that is not recorded is told apart by: all that need not be described."""
        sections = {"local_sgd": self.local_sgd, "table": self.table, "evaluation": self.evaluation}
        return {
            "algorithm": self.algorithm_name,
            "rounds": self.rounds,
            "seed": self.seed,
            "num_clients": self.dataset.num_clients,
            "clients_per_round": getattr(self.sampler, "clients_per_round", None),
            "server_optimizer": dict(self.server_optimizer.describe()),
            **{name: section.as_toml() for name, section in sections.items()},
        }

    @functools.cached_property
    def table_in_memory(self) -> TableSettings:
        """What the algorithm would need for a table in memory, which nothing is written for."""
        return dataclasses.replace(self.clusters_and_table(None)[1], device="cpu")

    @functools.cached_property
    def fresh_aggregator(self) -> Aggregator:
        """The aggregator over a table in memory, to see what it is before the run begins."""
        return make_algorithm(self.algorithm, self.table_in_memory)

    @property
    def algorithm_name(self) -> str:
        """What the algorithm is called in tables and bars."""
        made = self.fresh_aggregator  # first: it says in a sentence what is wrong
        if isinstance(self.algorithm, str):
            return but_defaults(self.algorithm)
        return aggregator_name(made)

    @property
    def objective(self) -> str:
        """What the run minimises, in words."""
        weights = self.client_weights
        weighted = weights is not None and bool((weights != weights[0]).any())
        counts = self.fresh_aggregator.counts_steps
        return objective(self.local_sgd, self.dataset, counts_steps=counts, weighted=weighted)

    @property
    def client_weights(self) -> Tensor | None:
        """(N,) p_i of the objective Σ p_i f_i, up to a factor; None for 1/N each.

        They are the sampler's: cohorts and the table must weigh clients alike, or the algorithms of
        one comparison would have different optima.
        """
        objective = getattr(self.sampler, "objective", None)
        return None if objective is None else torch.as_tensor(objective).double()

    @property
    def device(self) -> str:
        """Where to train."""
        return self.trainer.device if isinstance(self.trainer, Trainer) else "cpu"

    def clusters_and_table(
        self, directory: RunDirectory | None
    ) -> tuple[ClusterPlan, TableSettings]:
        """Who shares a row, and what the algorithm needs to make its table.

        Args:
            directory: Of the run, for rows on disk.

        Returns:
            The clusters by name, and the settings of the table.
        """
        clusters, slots = self._clusters, slots_of(self.model)
        on_disk = directory is not None and self.table.where == "disk"
        return clusters, TableSettings(
            num_clients=self.dataset.num_clients,
            dim=slots[-1].stop,
            codec=self.table.codec,
            folder=str(directory.checkpoint_folder) if directory and on_disk else None,
            cluster_of=clusters.at_first,
            clustering=clusters.changing,
            client_weights=self.client_weights,
            device=self.device,
            fsync=self.recording.fsync,
            max_rows=self.table.max_rows,
            parameters={slot.name: slice(slot.start, slot.stop) for slot in slots},
            kept=self.table.parameters_kept,
            clip_updates=clip_multiple(self.table.clip_updates),
        )

    @functools.cached_property
    def _clusters(self) -> ClusterPlan:
        """Once: to find clients with the same labels, all of them are loaded."""
        return clusters_by_name(self.table.clusters, self.table.recluster_every, self.dataset)

    def _trainer(
        self, flat: FlatModel, evaluator: Evaluator, choice: _Choice, opened: contextlib.ExitStack
    ) -> ClientTrainer:
        if isinstance(self.trainer, ClientTrainer):
            return self.trainer  # whoever made it closes it
        settings = choice.of(self.trainer)
        parts = TrainerParts(
            self.dataset,
            flat,
            self.loss,
            self.local_sgd,
            self.seed,
            evaluator,
            settings.workers,
            compile=settings.compile,
            exact=settings.exact,
            on_choice=choice.remember,
        )
        trainer = make_trainer(settings.name, parts)
        opened.callback(trainer.close)
        return trainer


def _fresh(sampler: ClientSampler) -> ClientSampler:
    """A copy of a sampler that learns, lest two runs share what it knows; others as they are."""
    if not isinstance(sampler, LearningSampler):
        return sampler
    sampler = copy.deepcopy(sampler)
    sampler.load_state_dict({})
    return sampler


class _Choice:
    """What `trainer = "auto"` has chosen, once a checkpoint holds the rounds it tried.

    Not before: after a crash, rounds that are trained again must be trained as they were.
    """

    def __init__(self, directory: RunDirectory | None, kept: Mapping[str, Any]) -> None:
        self._directory = directory
        self._kept = kept
        self._chosen: dict[str, str] = {}

    def of(self, trainer: Trainer) -> Trainer:
        """The trainer's settings, by the choice of an earlier part of the run if there was one."""
        recorded = self._kept.get("trainer", {})
        if trainer.name != "auto" or not isinstance(recorded, Mapping) or "auto" not in recorded:
            return trainer
        return trainer.replace(name=recorded["name"], workers=recorded.get("workers"))

    def remember(self, name: str, why: str) -> None:
        """Takes the choice."""
        self._chosen = {"name": name, "auto": why}

    def to_write(self) -> Callable[[], None]:
        """What is chosen by now: a function that writes it into config.toml, once."""
        chosen, self._chosen = self._chosen, {}
        return functools.partial(self._write, chosen)

    def _write(self, chosen: Mapping[str, str]) -> None:
        if self._directory is not None and chosen:
            trainer = {**self._kept["trainer"], **chosen}
            self._directory.write_settings({**self._kept, "trainer": trainer})
