"""Why the server's step is wrong: its squared error at this w, split by cause.

The theorems bound these errors; their constants are loose, and proved for small rates only. Here
clients really train (`measure_updates`), and no bound is involved. With h_i the mean update of
client i over its batches, as a gradient of the objective, and h_pooled the same of a walk on the
pooled data of all clients, FedAvg's direction v has the error

    E‖v − h_pooled‖² = ‖mean h_i − h_pooled‖² + (N−M)/(M(N−1)) · mean ‖h_i − mean h‖² + ν / M
                       client drift             partial participation                   mini-batches

with ν = E‖Δ_i − h_i‖². ‖h_pooled − ∇f‖² is the way that local steps make, with one client as with
many: progress, and no error. FedVARP subtracts the state of each client, a Δ_i of an earlier round.
If nothing moved since, partial participation is gone, and the noise of the states comes in its
place. Where the states y_i of a run are at hand, nothing need be supposed: h_i − y_i stands in
place of h_i, with all that age, noise and sharing have done to the rows.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from fedvarp.theory.participation import SharedRows, sampling_variance

_sampling_variance = functools.lru_cache(maxsize=64)(sampling_variance)  # asked for very often
CAUSES: Final = ("stochastic_gradient", "partial_participation", "client_drift")
"""The parts of an error."""


@dataclass(frozen=True)
class StepErrors:
    """E‖v − h_pooled‖² of one algorithm, by cause.

    Attributes:
        algorithm: "fedavg", "fedvarp", "cluster_fedvarp" or "fedstale".
        stochastic_gradient: From mini-batches.
        partial_participation: From the choice of clients.
        client_drift: From clients that walk apart. Estimated without bias, so that where there is
            next to none it may come out slightly below zero.
    """

    algorithm: str
    stochastic_gradient: float
    partial_participation: float
    client_drift: float

    @property
    def total(self) -> float:
        """The whole error."""
        return self.stochastic_gradient + self.partial_participation + self.client_drift


@dataclass(frozen=True)
class RowSpread:
    """How the rows y_i of a run lie to the updates h_i.

    Attributes:
        around_rows: mean ‖(h_i − y_i) − mean (h − y)‖².
        rows: mean ‖y_i − mean y‖².
        product: mean ⟨h_i − mean h, y_i − mean y⟩.
    """

    around_rows: float
    rows: float
    product: float


@dataclass(frozen=True)
class UpdateSpread:
    """What the updates of clients show, in squared units of the objective's gradient.

    Attributes:
        noise: ν.
        between_clients: mean ‖h_i − mean h‖².
        drift: ‖mean h_i − h_pooled‖².
        progress: ‖h_pooled − ∇f‖², blamed for nothing.
        within_clusters: mean ‖h_i − mean h of its cluster‖²; None without clusters.
        within_found: {K: the same for K clusters found by k-means}.
        from_rows: Where a run has rows, how they lie; else None.
    """

    noise: float
    between_clients: float
    drift: float
    progress: float = 0.0
    within_clusters: float | None = None
    within_found: Mapping[int, float] = field(default_factory=dict)
    from_rows: RowSpread | None = None

    def fedavg(self, num_clients: int, clients_per_round: int) -> StepErrors:
        """Computes the errors of a step of FedAvg.

        Args:
            num_clients: N.
            clients_per_round: M.

        Returns:
            The errors by cause.
        """
        return self._with_rows("fedavg", num_clients, clients_per_round, self.between_clients, 0.0)

    def fedvarp(self, num_clients: int, clients_per_round: int, beta: float = 1.0) -> StepErrors:
        """Computes the errors of a step of FedVARP with fresh states, or of FedStale.

        v = β ȳ + mean over S of (Δ_i − β y_i): rows that are h_i and noise leave (1 − β) h_i of
        the clients' differences, and bring in β² of their own noise.

        Args:
            num_clients: N.
            clients_per_round: M.
            beta: How much of a row is subtracted: 1 is FedVARP, 0 FedAvg.

        Returns:
            The errors by cause.
        """
        N = num_clients
        noise = beta**2 * self.noise * (N - 1) / N
        left = (1 - beta) ** 2 * self.between_clients
        name = "fedvarp" if beta == 1 else "fedstale"
        return self._with_rows(name, N, clients_per_round, left, noise)

    def best_beta(self, num_clients: int) -> float:
        """Computes the β that makes a step with fresh states err least.

        Args:
            num_clients: N.

        Returns:
            B/(B + ν (N−1)/N), from 0 to 1, with B the spread between clients.
        """
        noise = self.noise * (num_clients - 1) / num_clients
        between = max(self.between_clients, 0.0)
        return between / (between + noise) if between + noise > 0 else 1.0

    def cluster_fedvarp(
        self, within: float, cluster_sizes: Sequence[int], clients_per_round: int
    ) -> StepErrors:
        """Computes the errors of a step of ClusterFedVARP with fresh states.

        A cluster's row is the mean of the few updates that a round brought, not of all its clients:
        clusters that mean nothing make the step worse than FedAvg's.

        Args:
            within: mean ‖h_i − mean h of its cluster‖².
            cluster_sizes: How many clients each cluster has.
            clients_per_round: M.

        Returns:
            The errors by cause.
        """
        rows = SharedRows.of_clusters(tuple(cluster_sizes), clients_per_round)
        return self._with_rows(
            "cluster_fedvarp",
            sum(cluster_sizes),
            clients_per_round,
            rows.heterogeneity * within,
            rows.noise * self.noise,
        )

    def errors(
        self,
        num_clients: int,
        clients_per_round: int,
        cluster_sizes: Sequence[int] | None = None,
    ) -> dict[str, StepErrors]:
        """Computes the errors of a step of every algorithm that has a theorem, for fresh states.

        Args:
            num_clients: N.
            clients_per_round: M.
            cluster_sizes: How many clients each cluster has; None: no clusters.

        Returns:
            {algorithm: errors}, for FedAvg, FedVARP and, with clusters, ClusterFedVARP.
        """
        N, M = num_clients, clients_per_round
        found = {"fedavg": self.fedavg(N, M), "fedvarp": self.fedvarp(N, M)}
        if self.within_clusters is not None and cluster_sizes is not None:
            found["cluster_fedvarp"] = self.cluster_fedvarp(self.within_clusters, cluster_sizes, M)
        return found

    def errors_with_rows(
        self, algorithm: str, num_clients: int, clients_per_round: int
    ) -> StepErrors | None:
        """Computes the errors of a step with M of N clients, for the rows that were measured.

        Args:
            algorithm: "fedvarp" or "cluster_fedvarp", whose rows they are.
            num_clients: N.
            clients_per_round: M.

        Returns:
            The errors; None if no rows were measured.
        """
        if self.from_rows is None:
            return None
        left = self.from_rows.around_rows
        return self._with_rows(algorithm, num_clients, clients_per_round, left, 0.0)

    def best_beta_with_rows(self) -> float:
        """Computes the β that makes a step with the rows that were measured err least.

        Returns:
            ⟨h − h̄, y − ȳ⟩/‖y − ȳ‖², from 0 to 1; 0 without rows.
        """
        rows = self.from_rows
        if rows is None or rows.rows <= 0:
            return 0.0
        return min(max(rows.product / rows.rows, 0.0), 1.0)

    def errors_with_part_of_rows(
        self, beta: float, num_clients: int, clients_per_round: int
    ) -> StepErrors:
        """Computes the errors of a step that subtracts a part of the rows that were measured.

        Args:
            beta: The part.
            num_clients: N.
            clients_per_round: M.

        Returns:
            The errors by cause; those of FedAvg without rows.
        """
        rows = self.from_rows or RowSpread(0.0, 0.0, 0.0)
        left = self.between_clients - 2 * beta * rows.product + beta**2 * rows.rows
        return self._with_rows("fedstale", num_clients, clients_per_round, left, 0.0)

    def _with_rows(
        self, algorithm: str, N: int, M: int, spread_left: float, noise_of_rows: float
    ) -> StepErrors:
        """Errors where so much of the spread is left, and so much noise is added to it."""
        drawn = _sampling_variance(N, M)
        return StepErrors(
            algorithm, self.noise / M + drawn * noise_of_rows, drawn * spread_left, self.drift
        )
