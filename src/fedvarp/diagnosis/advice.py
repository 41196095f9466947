"""What a diagnosis means for somebody who has a training to run, in sentences."""

from __future__ import annotations

from typing import Final

from pydantic import InstanceOf

from fedvarp.analysis.row_trust import trust_sentence
from fedvarp.analysis.units import in_bytes
from fedvarp.diagnosis.advice_on_steps import advise_on_steps
from fedvarp.diagnosis.result import Diagnosis
from fedvarp.diagnosis.wording import WORDS, against, percent, shares
from fedvarp.errors import InvalidError
from fedvarp.settings.checked import checked
from fedvarp.tables.settings import CODEC_NAMES
from fedvarp.theory.measurements import CurvePoint

KEEP: Final = 0.8
"""The share of FedVARP's benefit that clusters should keep, unless another is asked for."""

_STEEP: Final = 5.0  # times the median curvature: a client that is worth a sentence


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
        lines += advise_on_steps(found)
    if (trust := found.trust) is not None:
        lines.append(trust_sentence(trust))
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
        raise InvalidError(f"keep={keep} must be above 0 and at most 1, as in 0.8.")
    if memory_budget is not None and not memory_budget > 0:
        raise InvalidError(f"A table of {memory_budget:g} bytes holds nothing: give more than 0.")


def _of_the_bound(found: Diagnosis) -> str:
    allowed, used = found.allowed_lr["fedavg"], found.client_lr
    at_most = found.terms(min(allowed, used))["fedavg"]
    line = (
        f"FedAvg's error floor by Theorem 1 at a client rate of {min(allowed, used):.2g} is "
        f"{at_most.floor:.2g}."
    )
    if used > allowed:
        line += (
            f" The run's rate of {used:.2g} is {_times(used / allowed)} the largest for which the "
            f"theorem is proved here: its formula there bounds nothing. Rates that work in "
            f"practice are usually beyond the theorems."
        )
    return line


def _times(ratio: float) -> str:
    if ratio < 1.05:
        return "just above"
    return f"{ratio:.1f} times" if ratio < 10 else f"{ratio:.0f} times"


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
        share = f"{removed:.0%}" if removed >= 0.005 else "none"  # an estimate can be negative
        line = (
            f"The {K} clusters measured remove {share} of the variance between "
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
    """What to do about the largest cause that the bound of FedVARP has left."""
    bound = found.terms(min(found.client_lr, found.allowed_lr["fedvarp"]))["fedvarp"]
    if bound.floor == 0:
        return (
            "Once the choice of clients no longer counts, next to nothing is left: a single step "
            "with whole batches neither drifts nor varies. More local steps are the next move to "
            "try; they save rounds, and bring some drift."
        )
    cause = bound.dominating
    return (
        f"Once the choice of clients no longer counts, {percent(shares(bound)[cause])} of what is "
        f"left comes from {WORDS[cause]}, by the bounds, which are loose; without --bounds-only it "
        f"is measured. {against(cause, found)}"
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
    sampling, local, server = settings.sampling, settings.local_sgd, settings.server
    present = {
        "momentum": bool(local.momentum or server.options.get("momentum")),
        f"the server optimiser {server.name}": server.name != "sgd",
        "client optimisers other than SGD": local.optimizer is not None,
        "clipping": local.clip_norm is not None,
        "dropouts": sampling.dropout > 0,
        "clients that are not always available": sampling.availability.name != "always",
        f"clients that are drawn otherwise than uniformly ({sampling.scheme})": (
            sampling.scheme != "uniform"
        ),
    }
    beyond = [name for name, there in present.items() if there]
    if not (measured.equal_steps or local.normalise_steps):
        lines.append(
            "Clients take unequally many local steps, and plain model differences weigh them by "
            "these: all figures are about that objective, the mean of (τ_i/τ̄) f_i."
        )
    if measured.is_lopsided:
        lines.append(
            f"A few clients make up most of σ_g²: by their distances, or by their numbers of "
            f"steps, those measured count as {measured.draws:.1f} of {len(measured.clients):,}. "
            f"Others like them may not have been drawn, and the truth may lie above the "
            f"intervals. Measure all clients: leave out --sample."
        )
    if beyond:
        lines.append(f"The theorems know nothing of {', '.join(beyond)}, which this run has.")
    return lines


def _of_the_steepest(found: Diagnosis) -> str:
    """Whether one client is far steeper than others, and whether local steps bounce.

    Both by the clients' own f_i, which local steps descend; L of the theorems is that of
    f̃_i = (τ_i/τ̄) f_i, by which a large client looks steep, and a small one flat.
    """
    L = found.measured.smoothness
    reach = found.client_lr * L.own_curvature
    line = ""
    if L.own_curvature > _STEEP * L.median_screened > 0:
        decides = L.by_client[L.steepest] == L.curvature
        line = (
            f"Client {L.steepest} is {L.own_curvature / L.median_screened:.2g} times as steep as "
            f"the median client{', and decides about L' if decides else ''}."
        )
    if reach > 2:
        line += (
            f" The client rate times the largest curvature is {reach:.2g}, above 2: there local "
            f"steps bounce instead of descending. Rates below {2 / L.own_curvature:.2g} do not."
        )
    return line.strip()
