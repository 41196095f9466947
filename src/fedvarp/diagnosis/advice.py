"""What a diagnosis means for somebody who has a training to run, in sentences."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from pydantic import InstanceOf

from fedvarp.analysis.units import in_bytes
from fedvarp.diagnosis.result import Diagnosis
from fedvarp.settings.checked import checked
from fedvarp.tables.settings import CODEC_NAMES
from fedvarp.theory.bounds import ErrorTerms
from fedvarp.theory.measurements import CurvePoint
from fedvarp.theory.step_errors import StepErrors

KEEP: Final = 0.8
"""The share of FedVARP's benefit that clusters should keep, unless another is asked for."""

WORDS: Final = {
    "stochastic_gradient": "mini-batches",
    "partial_participation": "the choice of clients (partial participation)",
    "client_drift": "local steps that lead away from the common model (client drift)",
}
"""The causes of an error, as sentences name them."""


@checked
def advise(
    found: InstanceOf[Diagnosis], *, keep: float = KEEP, memory_budget: float | None = None
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
        lines.append(_of_the_step(found))
    lines.append(_of_the_bound(found))
    lines.append(_memory(found))
    lines.append(_clusters(found, keep, memory_budget))
    lines.append(_next_move(found))
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
    fedavg, fedvarp = (_variance(found.step_errors[name]) for name in ("fedavg", "fedvarp"))
    everybody = found.settings.clients_per_round == found.measured.num_clients
    if _is_rounding(found, fedavg.total):
        line = "Chance changes next to nothing in one FedAvg step at this model, measured."
    else:
        parts = _listed(shares(fedavg))
        line = f"What chance changes in one FedAvg step at this model, measured: {parts}."
    if everybody:
        line += " With all clients in every round FedVARP takes the same steps as FedAvg."
    elif fedvarp.total < fedavg.total:
        left = _percent(fedvarp.total / fedavg.total)
        line += (
            f" FedVARP with fresh states would leave {left} of it: it "
            f"removes what the choice of clients adds, and pays with the mini-batch noise of its "
            f"states."
        )
    else:
        line += (
            " FedVARP would not make it smaller: the mini-batch noise of its states outweighs what "
            "the choice of clients adds. Larger batches, or FedAvg."
        )
    own = found.step_errors_with_rows
    if own is not None and found.round and not everybody and not _is_rounding(found, fedavg.total):
        ratio = _variance(own).total / fedavg.total
        line += (
            f" With the rows of this run as they are, {_percent(ratio)} of it is left."
            if ratio < 1
            else f" With the rows of this run as they are it is {ratio:.2g} times FedAvg's: they "
            f"are too old, too noisy, shared by clients that differ, or of clients not yet seen."
        )
    drift, norm2 = found.step_errors["fedavg"].client_drift, found.measured.gradient_norm2.value
    if norm2 > 0:
        of_norm2 = _percent(max(drift, 0.0) / norm2)
        line += (
            f" Drift, which none of them removes, is {of_norm2} of ‖∇f‖² and the same whoever is "
            f"drawn."
        )
    if found.updates is not None and found.updates.diverged:
        line += f" {found.updates.diverged} clients diverged and are left out."
    return line


def _is_rounding(found: Diagnosis, error: float) -> bool:
    """Whether an error of a step is no more than that of 32-bit arithmetic."""
    assert found.updates is not None
    scale = found.updates.between_clients + max(found.measured.gradient_norm2.value, 0.0)
    return error <= 1e-10 * scale


def _variance(errors: StepErrors) -> StepErrors:
    """Without the drift, which is no matter of chance."""
    return dataclasses.replace(errors, client_drift=0.0)


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


def _next_move(found: Diagnosis) -> str:
    """More local steps, or a lower client rate: by what FedVARP would leave."""
    steps = found.measured.num_steps
    reach = found.client_lr * found.measured.smoothness.value
    if reach > 2:
        return (
            f"The client rate times L is {reach:.2g}, above 2: along the steepest direction local "
            f"steps bounce instead of descending, and ∇f at the model says little about where they "
            f"lead. Drift is then no verdict; try a lower client rate before more local steps."
        )
    if found.step_errors:
        left = found.step_errors["fedvarp"]
        parts, nothing = shares(left), _is_rounding(found, left.total)
    else:
        bound = found.terms(min(found.client_lr, found.allowed_lr["fedvarp"]))["fedvarp"]
        parts, nothing = shares(bound), bound.floor == 0
    if nothing:
        return (
            "Once the choice of clients no longer counts, next to nothing is left: a single step "
            "with whole batches neither drifts nor varies. More local steps are the next move to "
            "try; they save rounds, and bring some drift."
        )
    if parts["client_drift"] > parts["stochastic_gradient"]:
        return (
            f"Once the choice of clients no longer counts, drift is "
            f"{_percent(parts['client_drift'])} of what is left: a lower client rate is the better "
            f"next move (or fewer than {steps:g} local steps); more of them would add drift."
        )
    return (
        f"Once the choice of clients no longer counts, mini-batches are "
        f"{_percent(parts['stochastic_gradient'])} of what is left: more than {steps:g} local "
        f"steps at the same rate times steps, or larger batches, average it out; lowering the "
        f"client rate alone would mostly slow the training."
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
        f"L = {L.value:.3g} is a lower bound, from {len(L.by_client)} clients at this model: the "
        f"true rates of the theorems are smaller still.",
        f"f* is taken to be at least {measured.loss_lower_bound:g}; σ² and σ_g² are means over "
        f"clients, which is all that the proofs use.",
        "Bounds of different algorithms have constants of different proofs: compare the terms of "
        "one algorithm, not the heights of two.",
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
    if beyond:
        lines.append(f"The theorems know nothing of {', '.join(beyond)}, which this run has.")
    return lines
