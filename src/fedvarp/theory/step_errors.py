"""Why the server's step is wrong: its squared error at this w, measured and split by cause.

The theorems bound these errors; their constants are loose, and proved for small rates only. Here
clients really train, twice each with other batches, and no bound is involved. With h_i the mean
update of client i over its batches, FedAvg's direction v has the error

    E‖v − ∇f‖² = ‖mean h_i − ∇f‖² + (N−M)/(M(N−1)) · mean ‖h_i − mean h‖² + ν / M
                 client drift       partial participation                    mini-batches

with ν = E‖Δ_i − h_i‖². FedVARP subtracts the state of each client, a Δ_i of an earlier round. If
nothing moved since, partial participation is gone, and the noise of the states comes in its place.
Where the states y_i of a run are at hand, nothing need be supposed: h_i − y_i stands in place of
h_i, with all that age, noise and sharing have done to the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from fedvarp.clients import local_training
from fedvarp.clients.gradients import ClientGradients, Track, untracked
from fedvarp.clients.running_spread import RunningSpread
from fedvarp.theory.estimators import SpreadWithinClusters, heterogeneity, squared_norm
from fedvarp.theory.participation import SharedRows, sampling_variance

_TWICE: Final = (1, 2)  # keys of two trainings with other batches


@dataclass(frozen=True)
class StepErrors:
    """E‖v − ∇f(w)‖² of one algorithm, by cause.

    Attributes:
        algorithm: "fedavg", "fedvarp" or "cluster_fedvarp".
        stochastic_gradient: From mini-batches.
        partial_participation: From the choice of clients.
        client_drift: From local steps that leave w. Estimated without bias, so that where there is
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
class ParameterSpread:
    """What the rows of a run leave of the updates' spread in one parameter of the model.

    Attributes:
        between_clients: mean ‖h_i − mean h‖² of its numbers.
        around_rows: The same of h_i − y_i.
    """

    between_clients: float
    around_rows: float


@dataclass(frozen=True)
class UpdateSpread:
    """What the updates of a measurement's clients show.

    Attributes:
        noise: ν.
        between_clients: mean ‖h_i − mean h‖².
        within_clusters: The same within clusters; None without clusters.
        drift: ‖mean h_i − ∇f‖².
        diverged: Clients left out because their training diverged.
        around_rows: mean ‖(h_i − y_i) − mean (h − y)‖² for the rows of a run; None without any.
        by_parameter: The same for each parameter of the model; empty without rows. A row ages
            faster in some layers than in others.
    """

    noise: float
    between_clients: float
    within_clusters: float | None
    drift: float
    diverged: int
    around_rows: float | None = None
    by_parameter: Mapping[str, ParameterSpread] = field(default_factory=dict)

    def errors(
        self,
        num_clients: int,
        clients_per_round: int,
        cluster_sizes: Sequence[int] | None = None,
    ) -> dict[str, StepErrors]:
        """Computes the errors of a step with M of N clients, for fresh states.

        A cluster's row is the mean of the few updates that a round brought, not of all its clients:
        clusters that mean nothing make the step worse than FedAvg's.

        Args:
            num_clients: N.
            clients_per_round: M.
            cluster_sizes: How many clients each cluster has; None: no clusters.

        Returns:
            {algorithm: errors}, for FedAvg, FedVARP and, with clusters, ClusterFedVARP.
        """
        M, N = clients_per_round, num_clients
        drawn = sampling_variance(N, M)
        states = self.noise * (1 / M - 1 / N)  # of the rows that are subtracted and added again
        found = {
            "fedavg": StepErrors(
                "fedavg", self.noise / M, drawn * self.between_clients, self.drift
            ),
            "fedvarp": StepErrors("fedvarp", self.noise / M + states, 0.0, self.drift),
        }
        if self.within_clusters is not None and cluster_sizes is not None:
            rows = SharedRows.of_clusters(cluster_sizes, M)
            found["cluster_fedvarp"] = StepErrors(
                "cluster_fedvarp",
                self.noise / M + drawn * rows.noise * self.noise,
                drawn * rows.heterogeneity * self.within_clusters,
                self.drift,
            )
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
        if self.around_rows is None:
            return None
        M, N = clients_per_round, num_clients
        participation = sampling_variance(N, M) * self.around_rows
        return StepErrors(algorithm, self.noise / M, participation, self.drift)


def measure_updates(
    gradients: ClientGradients,
    clients: Tensor,
    cluster_of: Tensor | None = None,
    *,
    row_of: Callable[[int], Tensor] | None = None,
    track: Track = untracked,
) -> UpdateSpread:
    """Trains each of the clients twice, with other batches, and measures how the updates spread.

    It holds a few vectors of the model's size, whatever the number of clients.

    Args:
        gradients: Where w, the data and LocalSGD are.
        clients: (n,) int64, whom to ask: drawn uniformly, or all.
        cluster_of: (N,) int64; None: no clusters.
        row_of: y_i, (d,), by the number of the client; None: there is no table.
        track: Goes through the clients, perhaps with a progress bar.

    Returns:
        The spread of the updates, from which the errors of a step follow.

    Raises:
        ValueError: If training diverged at all clients, or at all but one.
    """
    N = gradients.dataset.num_clients
    clusters = torch.zeros(N, dtype=torch.int64) if cluster_of is None else cluster_of
    num_clusters = int(clusters.max()) + 1
    dim, device = gradients.model.dim, gradients.w.device
    updates, walked_off, from_rows = (RunningSpread(dim, device) for _ in range(3))
    within = SpreadWithinClusters(clusters, dim, device)
    noises, diverged = torch.zeros_like(updates.mean), 0
    for client in track(clients[within.order(clients)].tolist(), "Measuring updates"):
        one, other = (_update(gradients, client, key) for key in _TWICE)
        if one is None or other is None:
            diverged += 1
            continue
        noises += 0.5 * (one - other).square()
        mean = (one + other) / 2
        updates.add(mean)
        within.add(client, mean)
        if row_of is not None:
            from_rows.add(mean - row_of(client))
        walked_off.add(mean - gradients.of(client).gradient)
    n = len(clients) - diverged
    if n < min(2, N):
        raise ValueError(
            f"Local training diverged at {diverged} of {len(clients)} clients: there is no update "
            f"to measure. Lower the client rate (--set client_lr=…)."
        )
    noises /= n
    noise = float(noises.sum())

    def between(squares: Tensor, noises: Tensor) -> float:
        # Means of two trainings: they spread by ν/2 more than the h_i do, and so does their mean
        # by ν/(2n) in squared length.
        total = squares.sum().cpu().reshape(1)
        among_all = heterogeneity(total, torch.tensor([n]), torch.tensor([N]))
        return max(among_all - float(noises.sum()) / 2 * (N - 1) / N, 0.0)

    def by_parameter() -> dict[str, ParameterSpread]:
        parts = (gradients.model.unflatten(v) for v in (updates.squares, from_rows.squares, noises))
        all_squares, row_squares, all_noises = parts
        return {
            name: ParameterSpread(
                between(all_squares[name], all_noises[name]),
                between(row_squares[name], all_noises[name]),
            )
            for name in all_squares
        }

    inside = within.heterogeneity - noise / 2 * (N - num_clusters) / N
    bias = squared_norm(float(walked_off.mean @ walked_off.mean), walked_off.sum_of_squares, n, N)
    return UpdateSpread(
        noise=noise,
        between_clients=between(updates.squares, noises),
        within_clusters=None if cluster_of is None else max(inside, 0.0),
        drift=bias - noise / (2 * N),
        diverged=diverged,
        around_rows=None if row_of is None else between(from_rows.squares, noises),
        by_parameter={} if row_of is None else by_parameter(),
    )


def _update(gradients: ClientGradients, client: int, key: int) -> Tensor | None:
    if gradients.buffers:
        gradients.model.load_buffers(gradients.buffers)
    result = local_training.train(
        gradients.local_sgd,
        gradients.model,
        gradients.loss,
        gradients.w,
        gradients.examples(client),
        seed=gradients.seed,
        round=-key,  # rounds that no run has: these batches are nobody else's
        client=client,
        augment=gradients.dataset.augment,
    )
    return None if result.diverged else result.delta.double() / result.num_gradients
