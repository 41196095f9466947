"""How far off the figures of `UpdateSpread` may be, from sketches of what they were made from.

Three things are drawn at random: which clients are measured, their batches, and the batches of the
walks on the pooled data. Any number that is computed from an `UpdateSpread` is computed again with
each client left out, with the batches of each client changed, with each walk left out; how it
differs makes its standard error:

- *Clients*: the jackknife, with the factor 1 − n/N of draws without replacement.
- *Batches*: a client trains twice, to a and b, and all but the noise ν is made of products ⟨a, b⟩.
  If the noise is Gaussian, Var ⟨a, b⟩ is the mean of (‖a‖² − ‖b‖²)²/4: half of what it makes to put
  a, or b, in the place of both, squared. For ν itself, and what it does to the products, the
  jackknife over clients, which overstates by what they truly differ. Both times n/N: the first
  jackknife has the rest. Of a single client there is one ‖a − b‖², which may all lie in one
  direction: its variance is taken to be that of the square of a Gaussian, 2 ν².
- *Walks*: the jackknife.

Clients that were not drawn may lie farther apart, or have more noise, than any that were: so every
figure is computed once more with larger spreads, and once with more noise (`unseen_error`), and its
interval reaches farther on the side to which it moves.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from fedvarp.theory.estimators import heterogeneity
from fedvarp.theory.intervals import VARIATION, Estimate, Unseen, effective_draws, unseen_error
from fedvarp.theory.step_errors import RowSpread, UpdateSpread

Figure = Callable[[UpdateSpread], float]
Kind = Callable[[float, float, float, Unseen], Estimate]
_GROUPS: Final = 100  # of clients that are left out together, at most


@dataclass(frozen=True, eq=False)
class UpdateSketches:
    """Sketches of the updates of n clients of N, all in units of the objective's gradient.

    Attributes:
        clients: (n,) int64.
        num_clients: N.
        one: (n, s) the update of the first training.
        other: (n, s) that of the second.
        noises: (n,) ‖one − other‖²/2 of the whole vectors.
        gradients: (n, s) ∇f̃_i(w).
        walks: (R, s) walks on the pooled data.
        walks_at_w: (R, s) what the same batches add up to with gradients at w.
        less_gradients: Whether drift is told from Δ_i − ∇f̃_i and walks less the same at w, which
            vary less than Δ_i and the walks themselves where rates are small.
        rows: (n, s) y_i; None: there is no table.
        cluster_of: (N,) int64; None: no clusters.
        found: {K: (N,) int64}, other clusters to be judged.
        variation: What squared lengths of all clients vary by, over their mean (`unseen_error`).
    """

    clients: Tensor
    num_clients: int
    one: Tensor
    other: Tensor
    noises: Tensor
    gradients: Tensor
    walks: Tensor
    walks_at_w: Tensor
    less_gradients: bool = True
    rows: Tensor | None = None
    cluster_of: Tensor | None = None
    found: Mapping[int, Tensor] = field(default_factory=dict)
    variation: float = VARIATION

    def spread(self) -> UpdateSpread:
        """Computes what the sketches show, all without bias."""
        own, from_rows = self.cluster_of, None
        drift, progress = self.drift_and_progress()
        if self.rows is not None:
            y = self.rows
            mean_update = (self.one + self.other) / 2
            from_rows = RowSpread(
                around_rows=self._product(self.one - y, self.other - y),
                rows=self._product(y, y),
                product=self._product(mean_update, y),
            )
        return UpdateSpread(
            noise=float(self.noises.mean()),
            between_clients=self._product(self.one, self.other),
            drift=drift,
            progress=progress,
            within_clusters=None if own is None else self._product(self.one, self.other, own),
            within_found={
                K: self._product(self.one, self.other, of) for K, of in self.found.items()
            },
            from_rows=from_rows,
        )

    def at(self, positions: Tensor) -> UpdateSketches:
        """Takes some of the clients only.

        Args:
            positions: (k,) int64, from 0 to n − 1.

        Returns:
            Their sketches.
        """
        return dataclasses.replace(
            self,
            clients=self.clients[positions],
            one=self.one[positions],
            other=self.other[positions],
            noises=self.noises[positions],
            gradients=self.gradients[positions],
            rows=None if self.rows is None else self.rows[positions],
        )

    def of(self, clients: Tensor) -> UpdateSketches:
        """Takes some of the clients only, by their numbers.

        Args:
            clients: (k,) int64.

        Returns:
            Their sketches.
        """
        return self.at(torch.isin(self.clients, clients).nonzero().flatten())

    def drift_and_progress(self) -> tuple[float, float]:
        """Computes ‖mean h_i − h_pooled‖² and ‖h_pooled − ∇f‖²."""
        n, N = len(self.clients), self.num_clients
        one, other, walks, off = self.one, self.other, self.walks, self.walks - self.walks_at_w
        if self.less_gradients:
            one, other, walks = one - self.gradients, other - self.gradients, off
        end = walks.mean(0)
        drift = float((one.mean(0) - end) @ (other.mean(0) - end)) - _noise_of_mean(walks)
        if n < N:  # the mean of few strays from the mean of all
            among = self._product(one, other) * N / (N - 1)
            drift -= (1 / n - 1 / N) * among
        if N == 1:
            drift = 0.0  # the pooled data is the client's own: any difference is noise
        return drift, float(off.mean(0) @ off.mean(0)) - _noise_of_mean(off)

    def _product(self, a: Tensor, b: Tensor, cluster_of: Tensor | None = None) -> float:
        """Estimates the mean over all clients of ⟨a_i − mean a, b_i − mean b⟩, within clusters."""
        if cluster_of is None:
            total = ((a - a.mean(0)) * (b - b.mean(0))).sum().reshape(1)
            return heterogeneity(total, torch.tensor([len(a)]), torch.tensor([self.num_clients]))
        own, sizes = cluster_of[self.clients], torch.bincount(cluster_of)
        counts = torch.bincount(own, minlength=len(sizes))

        def sums(v: Tensor) -> Tensor:
            return torch.zeros(len(sizes), v.shape[1], dtype=v.dtype).index_add_(0, own, v)

        products = (a * b).sum(1)
        whole = torch.zeros(len(sizes), dtype=products.dtype).index_add_(0, own, products)
        within = whole - (sums(a) * sums(b)).sum(1) / counts.clamp(min=1)
        return heterogeneity(within, counts, sizes)


def _noise_of_mean(vectors: Tensor) -> float:
    """By how much the squared length of their mean exceeds that of its expectation."""
    count = len(vectors)
    return float((vectors - vectors.mean(0)).square().sum()) / (count - 1) / count


class Uncertainty:
    """Standard errors and intervals of numbers that are computed from an `UpdateSpread`.

    Args:
        sketches: What the spread was made from.
    """

    def __init__(self, sketches: UpdateSketches) -> None:
        self.spread = sketches.spread()
        updates = (sketches.one + sketches.other) / 2
        self.draws = effective_draws((updates - updates.mean(0)).square().sum(1))
        self._changes = list(_changes(sketches, self.spread))
        n, N = len(sketches.clients), sketches.num_clients
        unseen = unseen_error(1.0, n, N, sketches.variation)
        self._grown = _grown(self.spread, unseen)

    def standard_error(self, figure: Figure) -> float:
        """Estimates the standard error of a figure.

        Args:
            figure: Computes it from any spread.

        Returns:
            The standard error; 0 if nothing was drawn at random.
        """
        return math.hypot(*self._deviations(figure))

    def estimate(self, kind: Kind, value: float, figure: Figure) -> Estimate:
        """Gives a figure its interval.

        Args:
            kind: What sort of figure it is: `Estimate.of_squares`, or another of its kind.
            value: The figure, as computed from whole vectors.
            figure: Computes it from any spread.

        Returns:
            The estimate.
        """
        return kind(value, self.standard_error(figure), self.draws, self.unseen(figure))

    def change_since(self, before: Uncertainty, figure: Figure, figure_before: Figure) -> Estimate:
        """Estimates how much a figure has changed, where the same clients were trained anew.

        What is left out or changed is left out or changed in both, so that what the clients have in
        common cancels.

        Args:
            before: Of the same clients, and as many walks.
            figure: Computes it from a spread of now.
            figure_before: Computes it from a spread of before.

        Returns:
            The change.
        """

        def less(now: list[float], was: list[float]) -> list[float]:
            return [one - other for one, other in zip(now, was, strict=True)]

        value = figure(self.spread) - figure_before(before.spread)
        deviations = less(self._deviations(figure), before._deviations(figure_before))
        growths = less(self._growths(figure), before._growths(figure_before))
        return Estimate.of_mean(value, math.hypot(*deviations), self.draws, _apart(growths))

    def unseen(self, figure: Figure) -> Unseen:
        """Says how much clients that were not drawn may take away from a figure, and add to it.

        Args:
            figure: Computes it from any spread.

        Returns:
            Standard errors, as of `unseen_error`.
        """
        return _apart(self._growths(figure))

    def _deviations(self, figure: Figure) -> list[float]:
        """How a figure differs with each change; their squares add up to its variance."""
        return [
            math.sqrt(weight) * (figure(here) - figure(there))
            for weight, here, there in self._changes
        ]

    def _growths(self, figure: Figure) -> list[float]:
        """How a figure differs if clients that were not drawn are apart, or noisy, beyond those."""
        return [figure(grown) - figure(self.spread) for grown in self._grown]


def _apart(growths: Sequence[float]) -> Unseen:
    """What they take away, and what they add: added up, as a client may be far out and noisy."""
    below, above = (sum(max(sign * growth, 0.0) for growth in growths) for sign in (-1, 1))
    return below, above


def _grown(spread: UpdateSpread, share: float) -> tuple[UpdateSpread, UpdateSpread]:
    """The spread with clients that are farther apart by this share, and with more noise."""
    more, within, rows = 1 + share, spread.within_clusters, spread.from_rows
    apart = dataclasses.replace(
        spread,
        between_clients=more * spread.between_clients,
        within_clusters=None if within is None else more * within,
        within_found={K: more * value for K, value in spread.within_found.items()},
        from_rows=rows
        and RowSpread(more * rows.around_rows, more * rows.rows, more * rows.product),
    )
    return apart, dataclasses.replace(spread, noise=more * spread.noise)


def _changes(
    sketches: UpdateSketches, spread: UpdateSpread
) -> Iterator[tuple[float, UpdateSpread, UpdateSpread]]:
    """(weight, a spread, another): the variance is the sum of the weighted squared differences."""
    n, N, R = len(sketches.clients), sketches.num_clients, len(sketches.walks)
    groups = _groups(n)
    jackknife = (len(groups) - 1) / len(groups)
    if 2 < n < N:
        for group in groups:
            fewer = sketches.at(_rest(n, group))
            yield jackknife * (1 - n / N), fewer.spread(), spread
    for group in groups:
        one, other = sketches.one.clone(), sketches.other.clone()
        one[group], other[group] = sketches.other[group], sketches.one[group]
        ones = dataclasses.replace(sketches, other=other).spread()
        others = dataclasses.replace(sketches, one=one).spread()
        yield n / N / 4, ones, others
        if n > 1:
            noise = float(sketches.noises[_rest(n, group)].mean())
            yield jackknife * n / N, _with_noise(spread, noise, sketches), spread
        else:
            yield 2.0, _with_noise(spread, 0.0, sketches), spread
    for walk in range(R):
        rest = _rest(R, torch.tensor([walk]))
        other_walks = dataclasses.replace(
            sketches, walks=sketches.walks[rest], walks_at_w=sketches.walks_at_w[rest]
        )
        drift, progress = other_walks.drift_and_progress()
        yield (R - 1) / R, dataclasses.replace(spread, drift=drift, progress=progress), spread


def _with_noise(spread: UpdateSpread, noise: float, sketches: UpdateSketches) -> UpdateSpread:
    """The spread with another ν: a·b = ‖(a + b)/2‖² − ‖a − b‖²/4, so where ν errs so do spreads."""
    N, own = sketches.num_clients, sketches.cluster_of

    def shifted(value: float, clusters: int = 1) -> float:
        return value - (noise - spread.noise) / 2 * (N - clusters) / N

    within, rows = spread.within_clusters, spread.from_rows
    return dataclasses.replace(
        spread,
        noise=noise,
        between_clients=shifted(spread.between_clients),
        within_clusters=None
        if within is None or own is None
        else shifted(within, int(own.max()) + 1),
        within_found={K: shifted(value, K) for K, value in spread.within_found.items()},
        from_rows=rows and dataclasses.replace(rows, around_rows=shifted(rows.around_rows)),
    )


def _groups(n: int) -> Sequence[Tensor]:
    """Positions 0 … n−1 in at most so many groups, every so-many-th in one."""
    count = min(n, _GROUPS)
    return [torch.arange(first, n, count) for first in range(count)]


def _rest(n: int, group: Tensor) -> Tensor:
    kept = torch.ones(n, dtype=torch.bool)
    kept[group] = False
    return kept.nonzero().flatten()
