"""How a diagnosis is made: settings, a snapshot of the model, constants, updates, clusters."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Sequence
from typing import Final

from torch import Tensor

from fedvarp.clients.draws import random_subset
from fedvarp.clients.gradients import ClientGradients, Track
from fedvarp.clients.local_sgd import LocalSGD
from fedvarp.clients.schedules import Constant
from fedvarp.clusters.names import ClusterPlan, clusters_by_name
from fedvarp.data.federated_dataset import FederatedDataset
from fedvarp.diagnosis.remedies import HALF_RATE, TWICE_THE_BATCH
from fedvarp.diagnosis.result import Diagnosis
from fedvarp.diagnosis.snapshot import Snapshot, of_first_model, of_last_checkpoint, row_of
from fedvarp.errors import InvalidError
from fedvarp.experiments.build import DataFolder, Experiment, build
from fedvarp.experiments.files import load_settings, settings_of_run
from fedvarp.experiments.settings import Settings
from fedvarp.randomness import stream
from fedvarp.runs.directory import RunDirectory
from fedvarp.server.flat_model import FlatModel
from fedvarp.settings.bounds import Count
from fedvarp.settings.checked import checked
from fedvarp.settings.problems import SettingsError
from fedvarp.simulation.checks import refuse_impossible
from fedvarp.simulation.progress import counted
from fedvarp.theory.measurements import Measurements, cluster_curve
from fedvarp.theory.measuring import measure
from fedvarp.theory.measuring_updates import MeasuredUpdates, RowOf, measure_updates
from fedvarp.trainers.threads import torch_threads

_TRAINED_ANEW: Final = 24  # clients, at most, for each change to local training


@checked
def diagnose(
    source: str | os.PathLike[str],
    overrides: Sequence[str] = (),
    *,
    sample: Count | None = None,
    updates: bool = True,
    data_dir: DataFolder = None,
    progress: bool | None = None,
) -> Diagnosis:
    """Measures at the first model of a config or preset, or at the last checkpoint of a run.

    Args:
        source: A TOML file, the name of a preset, or the directory of a run.
        overrides: Changes to the settings, such as ``"clients_per_round=10"``.
        sample: How many clients to measure, drawn uniformly; None: all.
        updates: Whether to train the clients, for errors that no bound is involved in. It costs as
            much as training 2 N / M rounds, and some 200 clients more for what would help.
        data_dir: Where the data files are; None: in the folder of FEDVARP_DATA.
        progress: Whether to show bars; None: in a terminal.

    Returns:
        What was measured, and what follows from it.

    Raises:
        SettingsError: If the settings are wrong, or their objective is not that of the theorems.
        RunError: If the run has no checkpoint.
        ValueError: If something cannot be measured: too small a sample, a model that has diverged,
            a loss without curvature.
    """
    directory = RunDirectory(source)
    is_run = directory.path.is_dir() and directory.exists
    if is_run:
        settings = settings_of_run(directory.settings(), str(directory.config_file), overrides)
    else:
        settings = load_settings(source, overrides)
    _refuse_other_objectives(settings)
    experiment = build(settings, data_dir or directory.data_folder)
    refuse_impossible(experiment.task(settings.run_name))
    flat = FlatModel(experiment.model.to(settings.trainer.device))
    track: Track = functools.partial(counted, show=progress)
    with torch_threads(settings.trainer.threads):
        if not is_run:
            return _at(of_first_model(flat), experiment, sample, updates, track)
        with_rows = updates and not overrides
        with of_last_checkpoint(directory, experiment, flat, with_rows=with_rows) as snapshot:
            return _at(snapshot, experiment, sample, updates, track)


def _at(
    snapshot: Snapshot, experiment: Experiment, sample: int | None, updates: bool, track: Track
) -> Diagnosis:
    settings, dataset = experiment.settings, experiment.dataset
    local = experiment.local_sgd
    client_lr = local.rate(snapshot.round)
    local = local.replace(lr=client_lr, schedule=Constant())
    clusters = clusters_by_name(settings.table.clusters, None, dataset)
    measured = measure(
        dataset,
        experiment.model,
        experiment.loss,
        local_sgd=local,
        w=snapshot.w,
        buffers=snapshot.buffers,
        cluster_of=_clusters_now(clusters, snapshot, dataset),
        sample=sample,
        seed=settings.seed,
        track=track,
    )
    if measured.smoothness.value == 0:
        raise InvalidError(
            "The gradient is the same at every w near this one: L = 0, and the theorems have "
            "nothing to say."
        )
    asked_for = [] if clusters.num_auto is None else [clusters.num_auto]
    curve = cluster_curve(measured, extra=asked_for) if measured.of_all_clients else []
    trained, trained_anew = None, {}
    if updates:
        gradients = ClientGradients(
            dataset,
            FlatModel(experiment.model),
            experiment.loss,
            local,
            snapshot.w,
            snapshot.buffers,
            settings.seed,
        )
        rows = None if snapshot.table is None else functools.partial(row_of, snapshot.table)
        trained = measure_updates(
            gradients,
            measured.clients,
            measured.cluster_of,
            found_clusters={point.num_clusters: point.cluster_of for point in curve},
            row_of=rows,
            guesses={n: functools.partial(row_of, table) for n, table in snapshot.guesses.items()},
            track=track,
        )
        trained_anew = _trained_anew(gradients, trained, measured, rows, track)
    return Diagnosis(
        settings=settings,
        round=snapshot.round,
        client_lr=client_lr,
        measured=measured,
        updates=trained,
        curve=curve,
        trained_anew=trained_anew,
        trust_of_run=snapshot.trust,
    )


def _trained_anew(
    gradients: ClientGradients,
    updates: MeasuredUpdates,
    measured: Measurements,
    rows: RowOf | None,
    track: Track,
) -> dict[str, MeasuredUpdates]:
    """Trains some clients at half the rate, and some with larger batches if theirs have noise."""
    trained = updates.sketches.clients
    some = random_subset(
        len(trained), min(_TRAINED_ANEW, len(trained)), stream(gradients.seed, "trained anew")
    )

    def with_changes(local: LocalSGD, batch_factor: int) -> MeasuredUpdates:
        return measure_updates(
            dataclasses.replace(gradients, local_sgd=local),
            trained[some].sort().values,
            measured.cluster_of,
            row_of=rows,
            batch_factor=batch_factor,
            num_walks=updates.num_walks,
            track=track,
        )

    local = gradients.local_sgd
    found = {}
    if measured.num_steps > 1:  # a single step is the same gradient at any rate
        found[HALF_RATE] = with_changes(local.replace(lr=local.lr / 2), 1)
    if updates.spread.noise > 0:
        found[TWICE_THE_BATCH] = with_changes(local, 2)
    return found


def _clusters_now(
    clusters: ClusterPlan, snapshot: Snapshot, dataset: FederatedDataset
) -> Tensor | None:
    """Those of the settings; for "auto:K" those that the run has found, else the data set's own."""
    if clusters.num_auto is None:
        return clusters.at_first
    found = snapshot.cluster_of
    if found is not None and int(found.max()) + 1 == clusters.num_auto:
        return found
    return dataset.cluster_of  # what a run is still to find is found by the curve


def _refuse_other_objectives(settings: Settings) -> None:
    if settings.sampling.objective != "equal":
        raise SettingsError(
            'sampling.objective = "examples" is another objective than that of the theorems, which '
            "count every client once. --set sampling.objective=equal diagnoses theirs."
        )
