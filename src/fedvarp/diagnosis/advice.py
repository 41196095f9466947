"""What a diagnosis means for somebody who has a training to run, in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from fedvarp.analysis.units import in_bytes
from fedvarp.diagnosis.remedies import Remedy, rank_remedies
from fedvarp.diagnosis.result import Diagnosis
from fedvarp.tables.settings import CODEC_NAMES
from fedvarp.theory.bounds import ErrorTerms
from fedvarp.theory.estimators import Estimate
from fedvarp.theory.measurements import CurvePoint
from fedvarp.theory.step_errors import StepErrors

KEEP: Final = 0.8
"""The share of FedVARP's benefit that clusters should keep, unless another is asked for."""

WORDS: Final = {
    "stochastic_gradient": "mini-batches",
    "partial_participation": "the choice of clients (partial participation)",
    "client_drift": "clients that walk apart (client drift)",
}
"""The causes of an error, as sentences name them."""

_AGAINST: Final = {
    "stochastic_gradient": "Larger batches, more clients a round, or more and smaller local steps "
    "average it out; rows add to it.",
    "partial_participation": "Rows (FedVARP, ClusterFedVARP) remove it, more clients a round "
    "lessen it.",
    "client_drift": "A lower client rate or fewer local steps lessen it, rows and more clients do "
    "not.",
}
_STEEP: Final = 5.0  # times the median curvature: a client that is worth a sentence


def advise(
    found: Diagnosis, *, keep: float = KEEP, memory_budget: float | None = None
) -> list[str]:
    """Says what dominates, what to do next, and what that rests on.

    Args:
        found: The diagnosis.
        keep: The share of the variance between clients that clusters should remove.
        memory_budget: Bytes that the table may take; None: any.

    Returns:
        Sentences, one or several to a line.

    Raises:
        ValueError: For a share that cannot be kept, or for no memory.
    """
    refuse_wishes(keep, memory_budget)
    lines = []
    if found.step_errors:
        lines += [_of_the_step(found), _of_progress(found), *_what_would_help(found)]
    lines.append(_of_the_steepest(found))
    lines.append(_of_the_bound(found))
    lines.append(_memory(found))
    lines.append(_clusters(found, keep, memory_budget))
    if not found.step_errors:
        lines.append(_next_move_by_bounds(found))
    return [line for line in lines if line] + assumptions(found)


def refuse_wishes(keep: float, memory_budget: float | None) -> None:
    """Refuses wishes that no clusters can meet.

    Args:
        keep: The share of the variance between clients that clusters should remove.
        memory_budget: Bytes that the table may take; None: any.

    Raises:
        ValueError: For a share that cannot be kept, or for no memory.
    """
    if not 0 < keep <= 1:
        raise ValueError(f"keep={keep} must be above 0 and at most 1, as in 0.8.")
    if memory_budget is not None and not memory_budget > 0:
        raise ValueError(f"A table of {memory_budget:g} bytes holds nothing: give more than 0.")


def shares(terms: StepErrors | ErrorTerms) -> dict[str, float]:
    """Splits an error by cause.

    Args:
        terms: Measured, or a bound.

    Returns:
        {cause: its share of their sum}; an estimate below zero counts as none.
    """
    parts = {name: max(float(getattr(terms, name)), 0.0) for name in WORDS}
    total = sum(parts.values())
    return {name: part / total if total > 0 else 0.0 for name, part in parts.items()}


def _listed(parts: Mapping[str, float]) -> str:
    ranked = sorted(parts.items(), key=lambda item: -item[1])
    told = [f"{_percent(value)} from {WORDS[name]}" for name, value in ranked if value > 0]
    return ", ".join(told) or "nothing, there is none"


def _percent(share: float) -> str:
    """Rounded, but never to none or all of it."""
    if 0 < share < 0.005:
        return "under 1%"
    return "over 99%" if 0.995 <= share < 1 else f"{share:.0%}"


def _of_the_step(found: Diagnosis) -> str:
    """What is wrong with a step of FedAvg, by cause, and which cause is the largest."""
    errors = found.step_errors["fedavg"]
    line = "One FedAvg step at this model"
    if _is_nothing(found, errors):
        line += " is what training on the pooled data would do, but for next to nothing, measured."
    else:
        total = found.interval("total")
        line += f" is off by {_with_interval(total)}, measured: {_listed(shares(errors))}. "
        line += _verdict(found)
    if found.settings.clients_per_round == found.measured.num_clients:
        line += " With all clients in every round FedVARP takes the same steps as FedAvg."
    if found.updates is not None and found.updates.diverged:
        line += f" {found.updates.diverged} clients diverged and are left out."
    return line


def _verdict(found: Diagnosis) -> str:
    """The largest cause, if the intervals tell it from the others."""
    errors = found.step_errors["fedavg"]
    largest, *others = sorted(WORDS, key=lambda cause: -float(getattr(errors, cause)))
    rivals = [cause for cause in others if found.excess(largest, cause).low <= 0]
    if rivals:
        either = " or ".join(WORDS[cause] for cause in (largest, *rivals))
        more = (
            "All clients were measured: their batches vary too much."
            if found.measured.of_all_clients
            else "Measure more clients (--sample)."
        )
        return f"The intervals do not tell which is the largest, {either}. {more}"
    return f"The largest cause is {WORDS[largest]}. {_AGAINST[largest]}"


def _of_progress(found: Diagnosis) -> str:
    assert found.updates is not None
    progress, norm2 = found.updates.spread.progress, found.measured.gradient_norm2.value
    if norm2 <= 0 or progress <= 1e-3 * norm2:
        return ""
    return (
        f"Local steps on the pooled data would depart from ∇f by {progress:.3g} "
        f"({progress / norm2:.2g} times ‖∇f‖²): progress along a curved path, which no error is "
        f"counted for."
    )


def _what_would_help(found: Diagnosis) -> list[str]:
    """The remedies that leave least, with and without memory, and what the run's rows are worth."""
    ranked = rank_remedies(found)
    now = next(remedy for remedy in ranked if remedy.is_now)
    lines = [_of_own_rows(found)]
    if _is_nothing(found, now.errors):
        lines.append(
            "There is next to nothing to remove from a step. More local steps, or a higher client "
            "rate, are the next move to try: they save rounds, and bring some drift."
        )
        return lines
    helping = [remedy for remedy in ranked if remedy.helps]
    if not helping:
        lines.append(
            "No remedy that was tried is certain to leave a smaller error: the intervals of all "
            "changes include none."
        )
        return lines
    lines.append(f"Least would be left by {_told(helping[0], now)}.")
    cheap = [remedy for remedy in helping if remedy.table_bytes <= now.table_bytes]
    if helping[0].table_bytes > now.table_bytes and cheap:
        lines[-1] += f" Without more memory at the server, by {_told(cheap[0], now)}."
    lines[-1] += _unsupported(ranked, now)
    return lines


def _told(remedy: Remedy, now: Remedy) -> str:
    cost = [
        *([f"{in_bytes(remedy.table_bytes)} of rows"] if remedy.table_bytes else []),
        *([remedy.price] if remedy.price else []),
    ]
    price = f", for {' and '.join(cost)}" if cost else ""
    of_it = _percent(max(remedy.total.value, 0.0) / now.total.value)
    return f"{remedy.name}: {_with_interval(remedy.total)}, {of_it} of now{price}"


def _unsupported(ranked: Sequence[Remedy], now: Remedy) -> str:
    """Remedies that look better than now, but whose intervals do not support it."""
    doubtful = [
        remedy.name
        for remedy in ranked
        if remedy.total.value < now.total.value and not remedy.helps
    ]
    if not doubtful:
        return ""
    return f" That these leave less than now, the intervals do not support: {'; '.join(doubtful)}."


def _of_own_rows(found: Diagnosis) -> str:
    own, fedavg = found.step_errors_with_rows, found.step_errors["fedavg"]
    everybody = found.settings.clients_per_round == found.measured.num_clients
    if own is None or not found.round or everybody or _is_nothing(found, fedavg):
        return ""
    ratio = own.total / fedavg.total
    if ratio < 1:
        return (
            f"With the rows of this run as they are, {_percent(ratio)} of FedAvg's error is left."
        )
    return (
        f"With the rows of this run as they are, the error is {ratio:.2g} times FedAvg's: they are "
        f"too old, too noisy, shared by clients that differ, or of clients not yet seen."
    )


def _is_nothing(found: Diagnosis, errors: StepErrors) -> bool:
    """Whether an error of a step is no more than that of 32-bit arithmetic."""
    assert found.updates is not None
    spread = found.updates.spread
    scale = spread.between_clients + spread.progress + max(found.measured.gradient_norm2.value, 0.0)
    return errors.total - min(errors.client_drift, 0.0) <= 1e-9 * scale


def _with_interval(estimate: Estimate) -> str:
    value, low, high = (f"{one:.3g}" for one in (estimate.value, estimate.low, estimate.high))
    return value if low == high else f"{value} (95%: {low} to {high})"


def _of_the_steepest(found: Diagnosis) -> str:
    L = found.measured.smoothness
    reach = found.client_lr * L.curvature
    line = ""
    if L.curvature > _STEEP * L.median_screened > 0:
        line = (
            f"Client {L.steepest} is {L.curvature / L.median_screened:.2g} times as steep as the "
            f"median client, and decides about L."
        )
    if reach > 2:
        line += (
            f" The client rate times the largest curvature is {reach:.2g}, above 2: there local "
            f"steps bounce instead of descending. Rates below {2 / L.curvature:.2g} do not."
        )
    return line.strip()


def _of_the_bound(found: Diagnosis) -> str:
    allowed, used = found.allowed_lr["fedavg"], found.client_lr
    at_most = found.terms(min(allowed, used))["fedavg"]
    line = (
        f"FedAvg's error floor by Theorem 1 at a client rate of {min(allowed, used):.2g}: "
        f"{_listed(shares(at_most))}."
    )
    if used > allowed:
        beyond = _listed(shares(found.terms(used)["fedavg"]))
        line += (
            f" The run's rate of {used:.2g} is {used / allowed:.0f} times the largest for which "
            f"the theorem is proved here. Its formula there ({beyond}) bounds nothing; rates that "
            f"work in practice are usually beyond the theorems."
        )
    return line


def _memory(found: Diagnosis) -> str:
    N = found.measured.num_clients
    by_codec = ", ".join(
        f"{codec} {in_bytes(found.table_bytes(N, codec))}" for codec in CODEC_NAMES
    )
    return f"FedVARP keeps a row for each of {N:,} clients at the server: {by_codec}."


def _clusters(found: Diagnosis, keep: float, budget: float | None) -> str:
    codec = found.settings.table.codec
    line = ""
    own = found.measured.sigma_K2
    if own is not None and found.measured.sigma_g2.value > 0:
        K = len(found.measured.cluster_sizes or [])
        removed = 1 - own.value / found.measured.sigma_g2.value
        line = (
            f"The {K} clusters measured remove {removed:.0%} of the variance between "
            f"clients with {in_bytes(found.table_bytes(K, codec))} of {codec} rows."
        )
    if not found.curve:
        return line or "Measure all clients to see what clusters would do."
    affordable = [p for p in found.curve if budget is None or _cost(found, p) <= budget]
    enough = [point for point in affordable if point.share_removed >= keep]
    allowance = "" if budget is None else f" within {in_bytes(budget)}"
    if enough:
        best = enough[0]
        line += (
            f" Of the numbers tried, {best.num_clusters} clusters found by k-means are the fewest "
            f"that remove {keep:.0%}{allowance}: {best.share_removed:.0%} with "
            f'{in_bytes(_cost(found, best))} (clusters = "auto:{best.num_clusters}").'
        )
    elif affordable:
        best = affordable[-1]
        line += (
            f" No number of clusters tried removes {keep:.0%}{allowance}; {best.num_clusters} "
            f"remove {best.share_removed:.0%} with {in_bytes(_cost(found, best))}."
        )
    else:
        line += f" Not even one {codec} row fits{allowance}; a smaller codec may, or FedAvg."
    return line.strip()


def _cost(found: Diagnosis, point: CurvePoint) -> int:
    return found.table_bytes(point.num_clusters, found.settings.table.codec)


def _next_move_by_bounds(found: Diagnosis) -> str:
    """More local steps, or a lower client rate: by what the bound of FedVARP has left."""
    steps = found.measured.num_steps
    bound = found.terms(min(found.client_lr, found.allowed_lr["fedvarp"]))["fedvarp"]
    parts = shares(bound)
    if bound.floor == 0:
        return (
            "Once the choice of clients no longer counts, next to nothing is left: a single step "
            "with whole batches neither drifts nor varies. More local steps are the next move to "
            "try; they save rounds, and bring some drift."
        )
    by_bounds = "by the bounds, which are loose; without --bounds-only it is measured"
    if parts["client_drift"] > parts["stochastic_gradient"]:
        return (
            f"Once the choice of clients no longer counts, drift is "
            f"{_percent(parts['client_drift'])} of what is left, {by_bounds}: a lower client rate "
            f"or fewer than {steps:g} local steps lessen it."
        )
    return (
        f"Once the choice of clients no longer counts, mini-batches are "
        f"{_percent(parts['stochastic_gradient'])} of what is left, {by_bounds}: larger batches, "
        f"or more than {steps:g} local steps at the same rate times steps, average it out."
    )


def assumptions(found: Diagnosis) -> list[str]:
    """Says what a diagnosis rests on.

    Args:
        found: The diagnosis.

    Returns:
        Sentences, one or two to a line.
    """
    settings, measured = found.settings, found.measured
    L = measured.smoothness
    lines = [
        f"Measured at one model (after round {found.round}); the constants change as it moves.",
        f"L is at least {L.value:.3g}: {L.num_screened:,} clients were looked at, at this model "
        f"alone. The true rates of the theorems are smaller still.",
        f"f* is taken to be at least {measured.loss_lower_bound:g}; σ² and σ_g² are means over "
        f"clients, which is all that the proofs use.",
        "Bounds are loose by factors of 4 to several hundred, which differ from term to term and "
        "from algorithm to algorithm: how a term changes with M, τ, K or the rate may be compared, "
        "the heights of two terms may not.",
        "Fresh rows are those of clients that were all just asked; rows of a run are older, and "
        "worth less.",
        "None of this promises an accuracy: a smaller gradient is not a better test score.",
    ]
    sampling, local = settings.sampling, settings.local_sgd
    present = {
        "momentum": bool(local.momentum or settings.server.momentum),
        "clipping": local.clip_norm is not None,
        "dropouts": sampling.dropout > 0,
        "clients that are not always available": sampling.availability.name != "always",
        "clients drawn by their sizes": sampling.scheme != "uniform",
    }
    beyond = [name for name, there in present.items() if there]
    if _unequal(found) and not local.normalise_steps:
        lines.append(
            "Clients take unequally many local steps, and plain model differences weigh them by "
            "these: all figures are about that objective, the mean of (τ_i/τ̄) f_i."
        )
    if beyond:
        lines.append(f"The theorems know nothing of {', '.join(beyond)}, which this run has.")
    return lines


def _unequal(found: Diagnosis) -> bool:
    return not found.measured.equal_steps
