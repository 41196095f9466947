"""What would help: the error of a step that each remedy would leave, and what it costs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from fedvarp.analysis.styles import LOOKS, look_of, with_rows
from fedvarp.diagnosis.result import Diagnosis
from fedvarp.theory.intervals import Estimate
from fedvarp.theory.measuring_updates import Errors, MeasuredUpdates
from fedvarp.theory.step_errors import CAUSES, StepErrors, UpdateSpread
from fedvarp.theory.update_sketches import Uncertainty

FROM_UPDATES: Final = "the updates measured, with fresh rows"
FROM_ROWS: Final = "the updates measured, with the run's rows"
HALF_RATE: Final = "half the rate"
TWICE_THE_ROUNDS: Final = "2 × the rounds"
TWICE_THE_BATCH: Final = "twice the batch"


@dataclass(frozen=True)
class Remedy:
    """What one change would do to the error of a step.

    Attributes:
        name: What it is.
        setting: How it is had, to be pasted after --set; empty for the training as it is, and for
            its algorithm with rows that are fresh, which no setting makes them.
        errors: What would be left, by cause.
        total: What would be left in all; an estimate below zero counts as none.
        change: How much that is more than what remedies are compared with.
        table_bytes: What the server's table would take.
        round_bytes: What a round would send, both ways.
        price: What else it costs.
        known_from: What the figures come from.
        is_baseline: Whether it is what the others are compared with: the training as it is, or a
            step of FedAvg where the run's own is not measured (`unmeasured_algorithm`).
    """

    name: str
    setting: str
    errors: StepErrors
    total: Estimate
    change: Estimate
    table_bytes: int
    round_bytes: int
    price: str
    known_from: str
    is_baseline: bool = False

    @property
    def helps(self) -> bool:
        """Whether the interval supports that it leaves less than the baseline."""
        return self.change.high < 0

    def as_json(self) -> dict[str, Any]:
        """Returns all of it as plain numbers and names."""
        return {
            "name": self.name,
            "setting": self.setting,
            "algorithm": self.errors.algorithm,
            **{cause: getattr(self.errors, cause) for cause in CAUSES},
            "total": self.total.as_json(),
            "change": self.change.as_json(),
            "table_bytes": self.table_bytes,
            "round_bytes": self.round_bytes,
            "price": self.price,
            "known_from": self.known_from,
        }


def rank_remedies(found: Diagnosis) -> list[Remedy]:
    """Ranks what would help by the error of a step that it would leave.

    Args:
        found: The diagnosis.

    Returns:
        What remedies are compared with and each remedy, the smallest error first; none if no
        client was trained.
    """
    updates = found.updates
    if updates is None:
        return []
    return sorted(_all(found, updates), key=lambda one: (one.total.value, one.total.high))


def unmeasured_algorithm(found: Diagnosis) -> str | None:
    """Names the algorithm of a training whose step is not measured.

    SCAFFOLD and MIFA take steps that no spread of updates tells of, and without two clients of one
    cluster nothing is known of ClusterFedVARP. Remedies are then compared with a step of FedAvg.

    Args:
        found: The diagnosis.

    Returns:
        Its name in print; None if its step is measured.
    """
    own = found.settings.algorithm
    return None if own in found.algorithms else look_of(own).label


@dataclass(frozen=True)
class _AsItIs:
    """What remedies are compared with: the training as it is, or a step of FedAvg."""

    algorithm: str
    setting: str  # what makes the training this; empty if it is
    name: str
    rows: int
    known_from: str
    errors: Callable[[UpdateSpread, int], StepErrors]  # by M


def _as_it_is(found: Diagnosis) -> _AsItIs:
    """The run's algorithm, with its rows if at hand; FedAvg for others than the paper's."""
    N, sizes = found.measured.num_clients, found.measured.cluster_sizes
    own = found.settings.algorithm
    is_measured = unmeasured_algorithm(found) is None
    algorithm = own if is_measured else "fedavg"
    setting = "" if is_measured else "algorithm=fedavg"
    rows = {"fedavg": 0, "fedvarp": N, "cluster_fedvarp": len(sizes or [])}[algorithm]
    name = LOOKS[algorithm].label

    def with_own_rows(spread: UpdateSpread, M: int) -> StepErrors:
        errors = spread.errors_with_rows(algorithm, N, M)
        assert errors is not None
        return errors

    def with_fresh_rows(spread: UpdateSpread, M: int) -> StepErrors:
        return spread.errors(N, M, sizes)[algorithm]

    if found.step_errors_with_rows is not None:
        return _AsItIs(algorithm, setting, with_rows(name), rows, FROM_ROWS, with_own_rows)
    return _AsItIs(algorithm, setting, name, rows, FROM_UPDATES, with_fresh_rows)


def _all(found: Diagnosis, updates: MeasuredUpdates) -> Iterator[Remedy]:
    N, M = found.measured.num_clients, found.settings.clients_per_round
    spread, now = updates.spread, _as_it_is(found)

    def remedy(
        name: str,
        setting: str,
        rows: int,
        errors: Errors,
        known_from: str = FROM_UPDATES,
        **changes: Any,
    ) -> Remedy:
        left, before = errors(spread), now.errors(spread, M).total
        return Remedy(
            name=name,
            setting=setting,
            errors=left,
            total=updates.step_error("total", errors).at_least_zero(),
            change=updates.uncertainty.estimate(
                Estimate.of_mean,
                left.total - before,
                lambda s: errors(s).total - now.errors(s, M).total,
            ),
            known_from=known_from,
            **(_cost(found, rows, M) | changes),
        )

    as_now = remedy(
        now.name if now.setting else f"{now.name} (now)",
        now.setting,
        now.rows,
        lambda s: now.errors(s, M),
        now.known_from,
        is_baseline=True,
    )
    yield as_now
    if found.measured.num_steps == 1 and as_now.errors.total > as_now.errors.client_drift:
        # The same gradient, so that nobody is trained anew; but two rounds of chance.
        yield remedy(
            f"{now.name}, {HALF_RATE}",
            pasteable(now.setting, _half_rate(found)),
            now.rows,
            lambda s: _of_two_rounds(now.errors(s, M)),
            now.known_from,
            price=TWICE_THE_ROUNDS,
        )
    if M == N:
        yield from _trained_anew(found, updates, now, as_now)
        return  # all clients take part: rows and larger rounds change nothing
    if now.algorithm != "fedavg":
        yield remedy("FedAvg", "algorithm=fedavg", 0, lambda s: s.fedavg(N, M))
    if now.algorithm != "fedvarp" or now.known_from == FROM_ROWS:
        yield remedy(*_another("fedvarp", "FedVARP", now), N, lambda s: s.fedvarp(N, M))
    beta = spread.best_beta(N)
    has_rows = now.known_from == FROM_ROWS and now.algorithm == "fedvarp"
    if not has_rows and _is_worth_it(spread.fedvarp(N, M, beta), spread.fedvarp(N, M)):
        yield remedy(
            f"FedVARP with β = {beta:.2f}",
            _part_of_rows(beta),
            N,
            lambda s: s.fedvarp(N, M, s.best_beta(N)),
        )
    beta = spread.best_beta_with_rows()
    if has_rows and _is_worth_it(spread.errors_with_part_of_rows(beta, N, M), as_now.errors):
        yield remedy(
            f"{now.name}, β = {beta:.2f}",
            _part_of_rows(beta),
            now.rows,
            lambda s: s.errors_with_part_of_rows(s.best_beta_with_rows(), N, M),
            FROM_ROWS,
        )
    sizes = found.measured.cluster_sizes
    if sizes is not None and (now.algorithm != "cluster_fedvarp" or now.known_from == FROM_ROWS):
        yield remedy(
            *_another("cluster_fedvarp", f"ClusterFedVARP, the {len(sizes)} measured", now),
            len(sizes),
            lambda s: s.errors(N, M, sizes)["cluster_fedvarp"],
        )
    for point in found.curve:
        if 1 < point.num_clusters < N:
            yield remedy(
                f"ClusterFedVARP, {point.num_clusters} by k-means",
                pasteable("algorithm=cluster_fedvarp", f"table.clusters=auto:{point.num_clusters}"),
                point.num_clusters,
                partial(_of_found_clusters, K=point.num_clusters, sizes=point.sizes, M=M),
            )
    more = min(2 * M, N)
    yield remedy(
        f"{now.name}, {more} clients a round",
        pasteable(now.setting, f"clients_per_round={more}"),
        now.rows,
        lambda s: now.errors(s, more),
        now.known_from,
        round_bytes=_cost(found, 0, more)["round_bytes"],
        price=f"{more / M:.2g} × the clients",
    )
    yield from _trained_anew(found, updates, now, as_now)


def pasteable(*settings: str) -> str:
    """Joins settings so that they may be pasted after one --set.

    >>> pasteable("", "algorithm=cluster_fedvarp", "table.clusters=auto:5")
    'algorithm=cluster_fedvarp --set table.clusters=auto:5'

    Args:
        settings: Such as "client_lr=0.1"; empty ones are left out.

    Returns:
        All of them.
    """
    return " --set ".join(setting for setting in settings if setting)


def _another(algorithm: str, name: str, now: _AsItIs) -> tuple[str, str]:
    """The name and the setting of an algorithm with fresh rows; the run's own has no setting."""
    own = algorithm == now.algorithm
    return (f"{name}, fresh rows", "") if own else (name, f"algorithm={algorithm}")


def _is_worth_it(errors: StepErrors, simpler: StepErrors) -> bool:
    """Whether the best β leaves less by a twentieth: it never leaves more, so would always win."""
    return errors.total < 0.95 * simpler.total


def _part_of_rows(beta: float) -> str:
    return pasteable("algorithm=fedstale", f"algorithm.beta={beta:.2f}")


def _of_found_clusters(spread: UpdateSpread, K: int, sizes: list[int], M: int) -> StepErrors:
    return spread.cluster_fedvarp(spread.within_found[K], sizes, M)


def _trained_anew(
    found: Diagnosis, updates: MeasuredUpdates, now: _AsItIs, as_now: Remedy
) -> Iterator[Remedy]:
    """Changes to local training: some clients are trained with them, and compared with before."""
    M = found.settings.clients_per_round
    told = {
        HALF_RATE: (_half_rate(found), TWICE_THE_ROUNDS),
        TWICE_THE_BATCH: (_twice_the_batch(found), "2 × the examples"),
    }

    for name, anew in found.trained_anew.items():
        setting, price = told[name]
        same = updates.sketches.of(anew.sketches.clients)
        before = Uncertainty(dataclasses.replace(same, less_gradients=anew.sketches.less_gradients))

        def after(spread: UpdateSpread, name: str = name) -> StepErrors:
            errors = now.errors(spread, M)
            return _of_two_rounds(errors) if name == HALF_RATE else errors

        change = anew.uncertainty.change_since(
            before, lambda s: after(s).total, lambda s: now.errors(s, M).total
        )
        error = math.hypot(change.standard_error, as_now.total.standard_error)
        unseen = anew.uncertainty.unseen(lambda s: after(s).total)
        yield Remedy(
            name=f"{now.name}, {name}",
            setting=pasteable(now.setting, setting),
            errors=_moved(
                as_now.errors, now.errors(before.spread, M), after(anew.uncertainty.spread)
            ),
            total=Estimate.of_squares(
                as_now.errors.total + change.value, error, anew.uncertainty.draws, unseen
            ).at_least_zero(),
            change=change,
            known_from=f"{len(anew.sketches.clients)} clients trained anew",
            **(_cost(found, now.rows, M) | {"price": price}),
        )


def _half_rate(found: Diagnosis) -> str:
    """Half of the base rate: the schedule goes on from it as it does from the whole."""
    return f"client_lr={found.settings.local_sgd.lr / 2:.6g}"


def _twice_the_batch(found: Diagnosis) -> str:
    """Batches of twice the size, for as many steps: an epoch of them alone would have half."""
    local, measured = found.settings.local_sgd, found.measured
    batch = f"local_sgd.batch_size={2 * local.batch_size}"
    if local.epochs is None:
        return batch
    if measured.equal_steps:
        return pasteable(batch, f"local_sgd.steps={measured.num_steps:.0f}")
    # No one number of steps suits all: twice the epochs come closest to each client's own.
    return pasteable(batch, f"local_sgd.epochs={2 * local.epochs}")


def _of_two_rounds(errors: StepErrors) -> StepErrors:
    """What two rounds leave that go the way of one: chance averages out, drift does not."""
    return StepErrors(
        errors.algorithm,
        errors.stochastic_gradient / 2,
        errors.partial_participation / 2,
        errors.client_drift,
    )


def _moved(errors: StepErrors, old: StepErrors, new: StepErrors) -> StepErrors:
    return StepErrors(
        errors.algorithm,
        errors.stochastic_gradient + new.stochastic_gradient - old.stochastic_gradient,
        errors.partial_participation + new.partial_participation - old.partial_participation,
        errors.client_drift + new.client_drift - old.client_drift,
    )


def _cost(found: Diagnosis, rows: int, clients_per_round: int) -> dict[str, Any]:
    codec = found.settings.table.codec
    return {
        "table_bytes": found.table_bytes(rows, codec) if rows else 0,
        "round_bytes": 2 * 4 * clients_per_round * found.measured.dim,
        "price": "",
    }
