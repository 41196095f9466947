"""`fedvarp diagnose`: what holds a training back, at its first model or at a checkpoint."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedvarp.clients.gradients import ClientGradients
from fedvarp.clients.schedules import Constant
from fedvarp.clusters.named import clusters_by_name
from fedvarp.diagnosis.snapshot import Snapshot, at_checkpoint, at_first
from fedvarp.experiments.build import DataFolder, Experiment, build
from fedvarp.experiments.files import load_settings, settings_of_run
from fedvarp.experiments.settings import Settings
from fedvarp.runs.directory import RunDirectory
from fedvarp.runs.whole_files import write_whole
from fedvarp.server.flat_model import FlatModel
from fedvarp.settings.problems import SettingsError
from fedvarp.tables.codecs import codec_named
from fedvarp.tables.settings import CODEC_NAMES
from fedvarp.theory import conditions, error_terms, measure
from fedvarp.theory.cluster_curve import CurvePoint, curve
from fedvarp.theory.conditions import Condition
from fedvarp.theory.error_terms import ErrorTerms
from fedvarp.theory.measurements import Measurements
from fedvarp.theory.step_errors import StepErrors, UpdateSpread, measure_updates


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What was found.

    Attributes:
        settings: Of the training.
        round: After how many rounds the model was measured.
        client_lr: η_c in that round.
        measured: The constants.
        updates: How the clients' updates spread; None if no client was trained.
        curve: σ_K² against K; empty if only some clients were measured.
        allowed_lr: By algorithm, the largest η_c for which its theorem is proved.
    """

    settings: Settings
    round: int
    client_lr: float
    measured: Measurements
    updates: UpdateSpread | None
    curve: Sequence[CurvePoint]
    allowed_lr: Mapping[str, float]

    @property
    def algorithms(self) -> list[str]:
        """Those with a theorem; ClusterFedVARP where there are clusters."""
        has_clusters = self.measured.cluster_of is not None
        return ["fedavg", *(["cluster_fedvarp"] if has_clusters else []), "fedvarp"]

    @property
    def step_errors(self) -> dict[str, StepErrors]:
        """E‖v − ∇f‖² at this model, by algorithm; empty if no client was trained."""
        if self.updates is None:
            return {}
        measured = self.measured
        found = self.updates.errors(
            measured.num_clients, self.settings.clients_per_round, measured.cluster_sizes
        )
        return {name: found[name] for name in self.algorithms}

    @property
    def step_errors_with_rows(self) -> StepErrors | None:
        """The same for the rows that a run of FedVARP or ClusterFedVARP has, whatever their age."""
        if self.updates is None:
            return None
        return self.updates.errors_with_rows(
            self.settings.algorithm, self.measured.num_clients, self.settings.clients_per_round
        )

    def terms(self, client_lr: float) -> dict[str, ErrorTerms]:
        """The bounds of the theorems for as many rounds as the settings say, from here on."""
        return {name: _terms(name, self.settings, self.measured, client_lr) for name in self.algorithms}  # fmt: skip # noqa: E501

    @property
    def smallest_allowed_lr(self) -> float:
        """The largest η_c at which all the theorems hold."""
        return min(self.allowed_lr[name] for name in self.algorithms)

    def table_bytes(self, rows: int, codec: str) -> int:
        """What a table with so many rows takes, and its running sum."""
        return rows * codec_named(codec).row_bytes(self.measured.dim) + 8 * self.measured.dim

    def as_json(self) -> dict[str, Any]:
        """For files and programs."""
        settings, with_rows = self.settings, self.step_errors_with_rows
        return {
            "name": settings.name,
            "algorithm": settings.algorithm,
            "round": self.round,
            "num_clients": self.measured.num_clients,
            "clients_per_round": settings.clients_per_round,
            "rounds": settings.rounds,
            "client_lr": self.client_lr,
            "server_lr": settings.server.lr,
            "measured": self.measured.as_json(),
            "updates": None if self.updates is None else dataclasses.asdict(self.updates),
            "step_errors": _plain(self.step_errors),
            "step_errors_with_rows": None if with_rows is None else _plain_one(with_rows),
            "terms": _plain(self.terms(self.client_lr)),
            "allowed_client_lr": dict(self.allowed_lr),
            "terms_at_allowed_lr": _plain(self.terms(self.smallest_allowed_lr)),
            "conditions": {
                name: [
                    dataclasses.asdict(condition) | {"met": condition.met}
                    for condition in _conditions(name, settings, self.measured, self.client_lr)
                ]
                for name in self.algorithms
            },
            "curve": [dataclasses.asdict(point) for point in self.curve],
            "table_bytes": {
                str(rows): {codec: self.table_bytes(rows, codec) for codec in CODEC_NAMES}
                for rows in sorted({point.num_clusters for point in self.curve} | self._own_rows)
            },
        }

    @property
    def _own_rows(self) -> set[int]:
        sizes = self.measured.cluster_sizes
        return {self.measured.num_clients} | (set() if sizes is None else {len(sizes)})


def diagnose(
    source: str | os.PathLike[str],
    overrides: Sequence[str] = (),
    *,
    sample: int | None = None,
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
            much as training 2 N / M rounds.
        data_dir: Where the data files are; None: in the folder of FEDVARP_DATA.
        progress: Whether to show bars; None: in a terminal.
    """
    directory = RunDirectory(source)
    is_run = directory.path.is_dir() and directory.exists
    if is_run:
        settings = settings_of_run(directory.settings(), str(directory.config_file), overrides)
    else:
        settings = load_settings(source, overrides)
    _refuse_other_objectives(settings)
    experiment = build(settings, data_dir)
    flat = FlatModel(experiment.model.to(settings.trainer.device))
    if not is_run:
        return _diagnose(experiment, at_first(flat), sample, updates, progress)
    with at_checkpoint(
        directory, experiment, flat, with_rows=updates and not overrides
    ) as standpoint:
        return _diagnose(experiment, standpoint, sample, updates, progress)


def _diagnose(
    experiment: Experiment,
    standpoint: Snapshot,
    sample: int | None,
    updates: bool,
    progress: bool | None,
) -> Diagnosis:
    settings, dataset = experiment.settings, experiment.dataset
    local = experiment.local_sgd
    client_lr = local.lr * local.schedule(standpoint.round)
    local = local.replace(lr=client_lr, schedule=Constant())
    clusters = clusters_by_name(settings.table.clusters, None, dataset)
    cluster_of = clusters.at_first
    if clusters.num_auto is not None:
        # Those of the checkpoint. What a run is still to find is found by the curve.
        found = standpoint.clusters
        there = found is not None and int(found.max()) + 1 == clusters.num_auto
        cluster_of = found if there else dataset.cluster_of
    measured = measure(
        dataset,
        experiment.model,
        experiment.loss,
        local_sgd=local,
        w=standpoint.w,
        buffers=standpoint.buffers,
        cluster_of=cluster_of,
        sample=sample,
        seed=settings.seed,
        progress=progress,
    )
    if measured.smoothness.value == 0:
        raise ValueError(
            "The gradient is the same at every w near this one: L = 0, and the theorems have "
            "nothing to say."
        )
    spread = None
    if updates:
        flat = FlatModel(experiment.model)
        gradients = ClientGradients(
            dataset,
            flat,
            experiment.loss,
            local,
            standpoint.w,
            standpoint.buffers,
            settings.seed,
        )
        spread = measure_updates(
            gradients,
            measured.clients,
            measured.cluster_of,
            progress,
            None if standpoint.rows is None else standpoint.row_of,
        )
    extra = [] if clusters.num_auto is None else [clusters.num_auto]
    allowed = {
        name: min(c.largest_client_lr for c in _conditions(name, settings, measured, client_lr))
        for name in ("fedavg", "cluster_fedvarp", "fedvarp")
        if name != "cluster_fedvarp" or measured.cluster_of is not None
    }
    return Diagnosis(
        settings=settings,
        round=standpoint.round,
        client_lr=client_lr,
        measured=measured,
        updates=spread,
        curve=curve(measured, extra=extra) if measured.of_all_clients else [],
        allowed_lr=allowed,
    )


def write_json(diagnosis: Diagnosis, advice: Sequence[str], file: Path) -> None:
    """Keeps the diagnosis, whole or not at all."""
    kept = diagnosis.as_json() | {"advice": list(advice)}
    write_whole(file, json.dumps(kept, indent=2, allow_nan=False) + "\n")


def _refuse_other_objectives(settings: Settings) -> None:
    if settings.sampling.objective != "equal":
        raise SettingsError(
            'sampling.objective = "examples" is another objective than that of the theorems, which '
            "count every client once. --set sampling.objective=equal diagnoses theirs."
        )


def _conditions(
    name: str, settings: Settings, measured: Measurements, client_lr: float
) -> list[Condition]:
    return conditions(
        algorithm=name,
        num_clients=measured.num_clients,
        clients_per_round=settings.clients_per_round,
        num_steps=measured.num_steps,
        client_lr=client_lr,
        server_lr=settings.server.lr,
        smoothness=measured.smoothness.value,
        cluster_sizes=measured.cluster_sizes,
    )


def _terms(name: str, settings: Settings, measured: Measurements, client_lr: float) -> ErrorTerms:
    return error_terms(
        algorithm=name,
        num_clients=measured.num_clients,
        clients_per_round=settings.clients_per_round,
        rounds=settings.rounds,
        num_steps=measured.num_steps,
        client_lr=client_lr,
        server_lr=settings.server.lr,
        smoothness=measured.smoothness.value,
        sigma2=measured.sigma2.value,
        sigma_g2=max(measured.sigma_g2.value, 0.0),
        sigma_K2=None if measured.sigma_K2 is None else measured.sigma_K2.value,
        initial_gap=measured.loss.value - measured.loss_lower_bound,
        cluster_sizes=measured.cluster_sizes,
        initial_gradient_norm2=max(measured.gradient_norm2.value, 0.0),
    )


def _plain(terms: Mapping[str, StepErrors] | Mapping[str, ErrorTerms]) -> dict[str, Any]:
    return {name: _plain_one(one) for name, one in terms.items()}


def _plain_one(one: StepErrors | ErrorTerms) -> dict[str, Any]:
    floor = {"floor": one.floor} if isinstance(one, ErrorTerms) else {}
    return dataclasses.asdict(one) | {"total": one.total} | floor
