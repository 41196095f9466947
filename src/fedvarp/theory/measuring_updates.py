"""Trains clients twice, with other batches, and measures how their updates spread."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import torch
from torch import Tensor

from fedvarp.clients import local_training
from fedvarp.clients.gradients import ClientGradients, Track, untracked
from fedvarp.clients.running_spread import RunningSpread
from fedvarp.clients.schedules import Constant
from fedvarp.clusters.sketch import DEFAULT_SIZE, Sketch
from fedvarp.errors import InvalidError
from fedvarp.theory.estimators import SpreadWithinClusters, heterogeneity, squared_norm
from fedvarp.theory.intervals import Estimate
from fedvarp.theory.pooled_walk import number_of_walks, pooled_walks
from fedvarp.theory.row_trust import RowTrust, TrustFit
from fedvarp.theory.step_errors import CAUSES, RowSpread, StepErrors, UpdateSpread
from fedvarp.theory.step_weights import StepWeights
from fedvarp.theory.update_sketches import Uncertainty, UpdateSketches

Errors = Callable[[UpdateSpread], StepErrors]
RowOf = Callable[[int], Tensor]
"""y_i, (d,), by the number of the client."""
_TWICE: Final = (1, 2)  # keys of two trainings with other batches


@dataclass(frozen=True)
class ParameterSpread:
    """What the rows of a run leave of the updates' spread in one parameter of the model.

    Attributes:
        between_clients: mean ‖h_i − mean h‖² of its numbers.
        around_rows: The same of h_i − y_i.
    """

    between_clients: float
    around_rows: float


@dataclass(frozen=True, eq=False)
class MeasuredUpdates:
    """The updates of n clients, as far as they are kept.

    Attributes:
        spread: What they show.
        sketches: What its errors are estimated from.
        num_walks: How many walks on the pooled data it was compared with.
        diverged: Clients left out because their training diverged.
        by_parameter: What rows leave of the spread of each parameter of the model; empty without
            rows. A row ages faster in some layers than in others.
        trust: How far rows are to be trusted; None without any.
    """

    spread: UpdateSpread
    sketches: UpdateSketches
    num_walks: int
    diverged: int
    by_parameter: Mapping[str, ParameterSpread]
    trust: RowTrust | None = None

    @cached_property
    def uncertainty(self) -> Uncertainty:
        """How far off figures of the spread may be."""
        return Uncertainty(self.sketches)

    def step_error(self, cause: str, errors: Errors) -> Estimate:
        """Estimates a part of the error of a step, or all of it.

        Of a sum, standard errors are at most the sum of those of its parts, but the logarithm that
        intervals of squares are made on stretches them where the parts are few or of either sign.
        What lies beyond the ends of all parts together is cut off.

        Args:
            cause: "stochastic_gradient", "partial_participation", "client_drift" or "total".
            errors: Computes the error from any spread.

        Returns:
            The part of the error.
        """

        def part(spread: UpdateSpread) -> float:
            return float(getattr(errors(spread), cause))

        # Drift is one squared length, the others are means of many.
        kind = Estimate.of_square if cause == "client_drift" else Estimate.of_squares
        found = self.uncertainty.estimate(kind, part(self.spread), part)
        if cause != "total":
            return found
        parts = [self.step_error(one, errors) for one in CAUSES]
        low, high = sum(one.low for one in parts), sum(one.high for one in parts)
        return dataclasses.replace(found, low=max(found.low, low), high=min(found.high, high))


def measure_updates(
    gradients: ClientGradients,
    clients: Tensor,
    cluster_of: Tensor | None = None,
    *,
    found_clusters: Mapping[int, Tensor] | None = None,
    row_of: RowOf | None = None,
    guesses: Mapping[str, RowOf] | None = None,
    batch_factor: int = 1,
    num_walks: int | None = None,
    track: Track = untracked,
) -> MeasuredUpdates:
    """Trains each of the clients twice, with other batches, and walks on their pooled data.

    It holds a few vectors of the model's size, whatever the number of clients, and for each client
    some sketches. Updates are measured as gradients of the objective that the training descends
    (`StepWeights`).

    Args:
        gradients: Where w, the data and LocalSGD are; its rate is that of round 0.
        clients: (n,) int64, whom to ask: drawn uniformly, or all.
        cluster_of: (N,) int64; None: no clusters.
        found_clusters: {K: (N,) int64}, clusters to be judged as well, found without these updates.
        row_of: y_i, (d,) in the unit of updates, by the number of the client; None: no table.
        guesses: What else is to be held against the updates, by what rows these are: see
            `RowTrust`.
        batch_factor: What batch sizes are multiplied by, for as many steps as before.
        num_walks: On the pooled data; None: as many as cost no more than the clients.
        track: Goes through the clients, perhaps with a progress bar.

    Returns:
        The spread of the updates, from which the errors of a step follow.

    Raises:
        ValueError: If training diverged at all clients, or at all but one, or on the pooled data.
    """
    at_this_rate = gradients.local_sgd.replace(lr=gradients.local_sgd.rate(0), schedule=Constant())
    gradients = dataclasses.replace(gradients, local_sgd=at_this_rate)
    weights = StepWeights.of_clients(gradients.dataset, at_this_rate, clients)
    seen = _Seen(gradients, cluster_of, with_rows=row_of is not None)
    fit = TrustFit(gradients.model, list(guesses)) if guesses else None
    diverged: list[int] = []
    for client in track(clients[seen.within.order(clients)].tolist(), "Measuring updates"):
        one, other = (_update(gradients, client, key, batch_factor) for key in _TWICE)
        if one is None or other is None:
            diverged.append(client)
            continue
        if fit is not None and guesses:
            fit.add((one + other) / 2, [row(client) for row in guesses.values()])
        here = gradients.of(client)
        seen.add(
            client,
            one / weights.unit,
            other / weights.unit,
            here.gradient * weights.factor(here.num_steps),
            None if row_of is None else row_of(client).to(one.device).double() / weights.unit,
        )
    if len(seen.clients) < min(2, gradients.dataset.num_clients):
        raise InvalidError(
            f"Local training diverged at {len(diverged)} of {len(clients)} clients: there is no "
            f"update to measure. Lower the client rate (--set client_lr=…)."
        )
    variation, weights = weights.variation, weights.except_for(diverged)
    if num_walks is None:
        num_walks = number_of_walks(weights, len(seen.clients))
    for walk, at_w in pooled_walks(
        gradients, weights, num_walks, batch_factor=batch_factor, track=track
    ):
        seen.add_walk(walk, at_w)
    sketches = seen.as_sketches(found_clusters or {}, variation)
    return MeasuredUpdates(
        spread=seen.spread(sketches.spread()),
        sketches=sketches,
        num_walks=num_walks,
        diverged=len(diverged),
        by_parameter={} if row_of is None else seen.by_parameter(),
        trust=None if fit is None else fit.found(),
    )


class _Seen:
    """What has been seen of updates: running sums of whole vectors, and sketches of each.

    Args:
        gradients: Where the model and the data are.
        cluster_of: (N,) int64; None: no clusters.
        with_rows: Whether there are rows.
    """

    def __init__(
        self, gradients: ClientGradients, cluster_of: Tensor | None, *, with_rows: bool
    ) -> None:
        self._model, self._cluster_of = gradients.model, cluster_of
        self._num_clients = N = gradients.dataset.num_clients
        dim, device = gradients.model.dim, gradients.w.device
        one_cluster = torch.zeros(N, dtype=torch.int64)
        self.within = SpreadWithinClusters(
            one_cluster if cluster_of is None else cluster_of, dim, device
        )
        self.clients: list[int] = []
        self._updates, self._updates_off, self._around_rows, self._rows = (
            RunningSpread(dim, device) for _ in range(4)
        )
        self._walks, self._walks_off = RunningSpread(dim, device), RunningSpread(dim, device)
        self._noises = torch.zeros(dim, dtype=torch.float64, device=device)
        self._sketch = Sketch(dim, DEFAULT_SIZE, 2 * gradients.seed + 1, device)
        names = ["one", "other", "gradients", "walks", "walks_at_w", *(["rows"] * with_rows)]
        self._sketches: dict[str, list[Tensor]] = {name: [] for name in names}
        self._noise_of: list[float] = []

    def add(
        self, client: int, one: Tensor, other: Tensor, gradient: Tensor, row: Tensor | None
    ) -> None:
        """Takes in what a client's two trainings have led to."""
        squares, mean = 0.5 * (one - other).square(), (one + other) / 2
        self._noises += squares
        self._updates.add(mean)
        self._updates_off.add(mean - gradient)
        self.within.add(client, mean)
        self.clients.append(client)
        self._noise_of.append(float(squares.sum()))
        kept = {"one": one, "other": other, "gradients": gradient}
        if row is not None:
            self._around_rows.add(mean - row)
            self._rows.add(row)
            kept["rows"] = row
        for name, vector in kept.items():
            self._sketches[name].append(self._sketch(vector))

    def add_walk(self, walk: Tensor, at_w: Tensor) -> None:
        """Takes in a walk on the pooled data, and the same with gradients at w."""
        self._walks.add(walk)
        self._walks_off.add(walk - at_w)
        self._sketches["walks"].append(self._sketch(walk))
        self._sketches["walks_at_w"].append(self._sketch(at_w))

    @property
    def _less_gradients(self) -> bool:
        """Whether updates and walks vary less, together, if gradients at w are taken off both."""
        plain, less = (
            self._few(updates) + _noise_of_mean(walks)
            for updates, walks in (
                (self._updates, self._walks),
                (self._updates_off, self._walks_off),
            )
        )
        return less < plain

    def _few(self, spread: RunningSpread) -> float:
        """By how much the squared length of a mean of n of N exceeds that of all, on average."""
        return -squared_norm(0.0, spread.sum_of_squares, len(self.clients), self._num_clients)

    def as_sketches(self, found: Mapping[int, Tensor], variation: float) -> UpdateSketches:
        """Puts the sketches together; `found` are clusters to be judged by them."""
        return UpdateSketches(
            clients=torch.tensor(self.clients),
            num_clients=self._num_clients,
            noises=torch.tensor(self._noise_of, dtype=torch.float64),
            cluster_of=self._cluster_of,
            found=found,
            variation=variation,
            less_gradients=self._less_gradients,
            **{name: torch.stack(vectors) for name, vectors in self._sketches.items()},
        )

    def spread(self, sketched: UpdateSpread) -> UpdateSpread:
        """Computes what whole vectors show; of clusters to be judged, the share in the sketches."""
        n, N = len(self.clients), self._num_clients
        noise = float(self._noises.sum()) / n
        between = self._between(self._updates.squares, self._noises)
        updates, walks = self._updates, self._walks
        if self._less_gradients:
            updates, walks = self._updates_off, self._walks_off
        apart, off = updates.mean - walks.mean, self._walks_off.mean
        drift = float(apart @ apart) - self._few(updates) - noise / (2 * N) - _noise_of_mean(walks)
        if N == 1:
            drift = 0.0  # the pooled data is the client's own: any difference is noise
        within = None
        if self._cluster_of is not None:
            clusters = int(self._cluster_of.max()) + 1
            within = max(self.within.heterogeneity - noise / 2 * (N - clusters) / N, 0.0)
        scale = between / sketched.between_clients if sketched.between_clients > 0 else 0.0
        return UpdateSpread(
            noise=noise,
            between_clients=between,
            drift=drift,
            progress=float(off @ off) - _noise_of_mean(self._walks_off),
            within_clusters=within,
            within_found={K: scale * found for K, found in sketched.within_found.items()},
            from_rows=self._from_rows(between) if "rows" in self._sketches else None,
        )

    def _from_rows(self, between: float) -> RowSpread:
        around = self._between(self._around_rows.squares, self._noises)
        rows = self._between(self._rows.squares, torch.zeros(()))
        # ‖h − y‖² = ‖h‖² + ‖y‖² − 2 ⟨h, y⟩
        return RowSpread(around, rows, (between + rows - around) / 2)

    def by_parameter(self) -> dict[str, ParameterSpread]:
        """Splits what rows leave by the parameters of the model."""
        whole = (self._updates.squares, self._around_rows.squares, self._noises)
        all_squares, row_squares, noises = (self._model.unflatten(vector) for vector in whole)
        return {
            name: ParameterSpread(
                self._between(all_squares[name], noises[name]),
                self._between(row_squares[name], noises[name]),
            )
            for name in all_squares
        }

    def _between(self, squares: Tensor, noises: Tensor) -> float:
        """The spread over all clients, from the sums of squares of means of two trainings.

        They spread by ν/2 more than the h_i do.
        """
        n, N = len(self.clients), self._num_clients
        among_all = heterogeneity(
            squares.sum().cpu().reshape(1), torch.tensor([n]), torch.tensor([N])
        )
        return max(among_all - float(noises.sum()) / n / 2 * (N - 1) / N, 0.0)


def _noise_of_mean(spread: RunningSpread) -> float:
    """By how much the squared length of a mean exceeds that of its expectation."""
    return spread.sum_of_squares / (spread.weight - 1) / spread.weight


def _update(gradients: ClientGradients, client: int, key: int, batch_factor: int) -> Tensor | None:
    """(d,) float64, what a client sends after a training of its own; None if it diverges."""
    if gradients.buffers:
        gradients.model.load_buffers(gradients.buffers)
    examples = gradients.examples(client)
    local_sgd = gradients.local_sgd
    if batch_factor > 1:
        steps = len(local_sgd.batch_sizes(len(examples[0])))
        size = batch_factor * local_sgd.batch_size
        local_sgd = local_sgd.replace(batch_size=size, steps=steps, epochs=None)
    result = local_training.train(
        local_sgd,
        gradients.model,
        gradients.loss,
        gradients.w,
        examples,
        seed=gradients.seed,
        round=-key,  # rounds that no run has: these batches are nobody else's
        client=client,
        augment=gradients.dataset.augment,
    )
    return None if result.diverged else result.delta.double()
