"""What a diagnosis has found: the constants measured, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from fedvarp.errors import InvalidError
from fedvarp.experiments.settings import Settings
from fedvarp.tables.codecs import codec_named
from fedvarp.theory.bounds import ErrorTerms, error_terms
from fedvarp.theory.intervals import Estimate
from fedvarp.theory.learning_rates import Condition, conditions
from fedvarp.theory.measurements import CurvePoint, Measurements
from fedvarp.theory.measuring_updates import MeasuredUpdates
from fedvarp.theory.row_trust import RowTrust
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
        trained_anew: By what was changed in local training, the updates of some clients with it.
        trust_of_run: How far the run trusts its rows, where it measures that itself.
    """

    settings: Settings
    round: int
    client_lr: float
    measured: Measurements
    updates: MeasuredUpdates | None
    curve: Sequence[CurvePoint]
    trained_anew: Mapping[str, MeasuredUpdates] = field(default_factory=dict)
    trust_of_run: RowTrust | None = None

    @property
    def algorithms(self) -> list[str]:
        """Those with a theorem; ClusterFedVARP where there are clusters."""
        has_clusters = self.measured.cluster_of is not None
        return ["fedavg", *(["cluster_fedvarp"] if has_clusters else []), "fedvarp"]

    @property
    def trust(self) -> dict[str, Any] | None:
        """How far rows are to be trusted, in plain numbers; None if no rows were measured."""
        if self.updates is None or self.updates.trust is None:
            return None
        run = self.trust_of_run
        return {"measured": asdict(self.updates.trust), "run": None if run is None else asdict(run)}

    @property
    def everybody_takes_part(self) -> bool:
        """Whether all clients are in every round."""
        return self.settings.clients_per_round == self.measured.num_clients

    @property
    def step_errors(self) -> dict[str, StepErrors]:
        """The error of a step at this model, by algorithm; empty if no client was trained."""
        if self.updates is None:
            return {}
        return {name: self._errors(self.updates.spread, name) for name in self.algorithms}

    @property
    def step_errors_with_rows(self) -> StepErrors | None:
        """The same for the rows that a run of FedVARP or ClusterFedVARP has, whatever their age."""
        if self.updates is None:
            return None
        return self.updates.spread.errors_with_rows(
            self.settings.algorithm, self.measured.num_clients, self.settings.clients_per_round
        )

    def interval(self, cause: str, algorithm: str = "fedavg") -> Estimate:
        """Estimates a part of the error of a step, with its 95 % interval.

        Args:
            cause: "stochastic_gradient", "partial_participation", "client_drift" or "total".
            algorithm: One with a theorem.

        Returns:
            The part of the error.

        Raises:
            ValueError: If no client was trained.
        """
        return self._trained.step_error(cause, lambda spread: self._errors(spread, algorithm))

    def excess(self, cause: str, other: str, algorithm: str = "fedavg") -> Estimate:
        """Estimates by how much one part of the error of a step exceeds another.

        Args:
            cause: The one.
            other: The other.
            algorithm: One with a theorem.

        Returns:
            The difference.

        Raises:
            ValueError: If no client was trained.
        """

        def difference(spread: UpdateSpread) -> float:
            errors = self._errors(spread, algorithm)
            return float(getattr(errors, cause)) - float(getattr(errors, other))

        updates = self._trained
        return updates.uncertainty.estimate(
            Estimate.of_mean, difference(updates.spread), difference
        )

    @property
    def _trained(self) -> MeasuredUpdates:
        if self.updates is None:
            raise InvalidError("No client was trained: there is no error of a step to speak of.")
        return self.updates

    def _errors(self, spread: UpdateSpread, algorithm: str) -> StepErrors:
        M, sizes = self.settings.clients_per_round, self.measured.cluster_sizes
        return spread.errors(self.measured.num_clients, M, sizes)[algorithm]

    @property
    def server_lr(self) -> float:
        """η_s of the theorems; 1 for other optimisers than SGD, whose rates are no factors."""
        server = self.settings.server
        return server.lr if server.name == "sgd" and server.lr is not None else 1.0

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
                server_lr=self.server_lr,
            )
            for name in self.algorithms
        }

    @property
    def conditions(self) -> dict[str, list[Condition]]:
        """By algorithm, what its theorem asks of the learning rates, at those of the training."""
        problem = self.measured.problem(self.settings.clients_per_round)
        rates = {"client_lr": self.client_lr, "server_lr": self.server_lr}
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
