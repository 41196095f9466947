"""What a diagnosis has found: the constants measured, and what follows from them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedvarp.experiments.settings import Settings
from fedvarp.runs.whole_files import write_whole
from fedvarp.tables.codecs import codec_named
from fedvarp.tables.settings import CODEC_NAMES
from fedvarp.theory.bounds import ErrorTerms, error_terms
from fedvarp.theory.learning_rates import Condition, conditions
from fedvarp.theory.measurements import CurvePoint, Measurements
from fedvarp.theory.step_errors import StepErrors, UpdateSpread


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What was measured at one model of a training, and what follows for each algorithm.

    Attributes:
        settings: Of the training.
        round: After how many rounds the model was measured.
        client_lr: η_c in that round.
        measured: The constants.
        updates: How the clients' updates spread; None if no client was trained.
        curve: σ_K² against K; empty if only some clients were measured.
    """

    settings: Settings
    round: int
    client_lr: float
    measured: Measurements
    updates: UpdateSpread | None
    curve: Sequence[CurvePoint]

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
        """Computes the bounds of the theorems for as many rounds as the settings say, from here on.

        Args:
            client_lr: η_c.

        Returns:
            {algorithm: bound}.
        """
        problem = self.measured.problem(self.settings.clients_per_round)
        return {
            name: error_terms(
                name,
                problem,
                rounds=self.settings.rounds,
                client_lr=client_lr,
                server_lr=self.settings.server.lr,
            )
            for name in self.algorithms
        }

    @property
    def conditions(self) -> dict[str, list[Condition]]:
        """By algorithm, what its theorem asks of the learning rates, at those of the training."""
        problem = self.measured.problem(self.settings.clients_per_round)
        rates = {"client_lr": self.client_lr, "server_lr": self.settings.server.lr}
        return {name: conditions(name, problem, **rates) for name in self.algorithms}

    @property
    def allowed_lr(self) -> dict[str, float]:
        """By algorithm, the largest η_c for which its theorem is proved."""
        return {
            name: min(condition.largest_client_lr for condition in asked)
            for name, asked in self.conditions.items()
        }

    @property
    def smallest_allowed_lr(self) -> float:
        """The largest η_c at which all the theorems hold."""
        return min(self.allowed_lr.values())

    def table_bytes(self, rows: int, codec: str) -> int:
        """Counts the bytes of a table: its rows and their running sum.

        Args:
            rows: How many.
            codec: How they are stored.

        Returns:
            Bytes.
        """
        return rows * codec_named(codec).row_bytes(self.measured.dim) + 8 * self.measured.dim

    def as_json(self) -> dict[str, Any]:
        """Returns all of it as plain numbers and names, for files and programs."""
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
            "allowed_client_lr": self.allowed_lr,
            "terms_at_allowed_lr": _plain(self.terms(self.smallest_allowed_lr)),
            "conditions": {
                name: [dataclasses.asdict(one) | {"met": one.met} for one in asked]
                for name, asked in self.conditions.items()
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


def write_json(diagnosis: Diagnosis, advice: Sequence[str], file: Path) -> None:
    """Writes a diagnosis and its advice into a file, whole or not at all.

    Args:
        diagnosis: What was found.
        advice: What `advise` says about it.
        file: Where; replaced if it exists.
    """
    kept = diagnosis.as_json() | {"advice": list(advice)}
    write_whole(file, json.dumps(kept, indent=2, allow_nan=False) + "\n")


def _plain(terms: Mapping[str, StepErrors] | Mapping[str, ErrorTerms]) -> dict[str, Any]:
    return {name: _plain_one(one) for name, one in terms.items()}


def _plain_one(one: StepErrors | ErrorTerms) -> dict[str, Any]:
    floor = {"floor": one.floor} if isinstance(one, ErrorTerms) else {}
    return dataclasses.asdict(one) | {"total": one.total} | floor
