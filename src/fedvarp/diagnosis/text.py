"""A diagnosis as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from fedvarp.analysis.row_trust import trust_table
from fedvarp.analysis.styles import CAUSES, LOOKS, with_rows
from fedvarp.analysis.tables import Table, paragraphs
from fedvarp.analysis.units import in_bytes
from fedvarp.diagnosis.remedies import rank_remedies, unmeasured_algorithm
from fedvarp.diagnosis.result import Diagnosis
from fedvarp.theory.bounds import ErrorTerms
from fedvarp.theory.intervals import Estimate
from fedvarp.theory.measuring_updates import ParameterSpread
from fedvarp.theory.step_errors import StepErrors

_HEADER: Final = tuple(cause.label for cause in CAUSES.values())


def tables(found: Diagnosis) -> list[Table]:
    """Lays a diagnosis out in tables.

    Args:
        found: The diagnosis.

    Returns:
        Constants, errors of a step, what rows leave by parameter and how far they are to be
        trusted, bounds, clusters: those there are.
    """
    shown = [_constants(found)]
    if found.step_errors:
        shown += [_by_cause(found), _remedies(found)]
    if found.updates is not None and found.updates.by_parameter:
        shown.append(_by_parameter(found.updates.by_parameter))
    if (trust := found.trust) is not None:
        shown.append(trust_table(trust))
    rates = [(found.smallest_allowed_lr, "the largest that all theorems allow")]
    if found.client_lr > found.smallest_allowed_lr:
        rates.append((found.client_lr, "the run's, beyond some theorems"))
    else:
        rates = [(found.client_lr, "the run's")]
    for rate, whose in rates:
        title = f"Bounds on min E‖∇f‖² of {found.settings.rounds:,} rounds at {rate:.2g}, {whose}"
        shown.append(_bounds(title, found.terms(rate).values()))
    if found.curve:
        shown.append(_curve(found))
    return shown


def as_text(found: Diagnosis, advice: Sequence[str]) -> str:
    """Writes a diagnosis for a terminal: tables, then advice.

    Args:
        found: The diagnosis.
        advice: What `advise` says about it.

    Returns:
        Paragraphs of at most 88 characters, tables as wide as they need to be.
    """
    shown = "".join(table.text() + ("\n" if table.notes else "") for table in tables(found))
    return shown + paragraphs(f"- {line}" for line in advice)


def _constants(found: Diagnosis) -> Table:
    m, L = found.measured, found.measured.smoothness
    within = f"within {len(m.cluster_sizes or [])} clusters, mean over clients"
    lines = [
        ("f(w)", _number(m.loss), f"f* is at least {m.loss_lower_bound:g}"),
        ("‖∇f(w)‖²", _number(m.gradient_norm2), ""),
        ("σ²", _number(m.sigma2), "noise of a mini-batch, mean over clients and local steps"),
        ("σ_g²", _number(m.sigma_g2), "between clients, mean over clients"),
        ("", f"{m.sigma_g2_max:.3g}", "between clients, the largest of those measured"),
        *([] if m.sigma_K2 is None else [("σ_K²", _number(m.sigma_K2), within)]),
        ("L", f"≥ {L.curvature:.3g}", f"largest curvature; {L.num_screened:,} clients looked at"),
        (
            "",
            f"≥ {L.gradient_difference:.3g}",
            f"from gradients at both ends of a walk of the {len(L.by_client)} steepest",
        ),
        ("τ", f"{m.num_steps:g}", "local steps, mean over clients"),
    ]
    whom = "all" if m.of_all_clients else f"{len(m.clients):,} of"
    title = (
        f"{found.settings.name} after round {found.round}, measured over {whom} "
        f"{m.num_clients:,} clients"
    )
    return Table(title, ("", "value (95 %)", "what it is"), lines, words=("what it is",))


def _number(estimate: Estimate) -> str:
    interval = f" ({_range(estimate)})" if estimate.standard_error > 0 else ""
    return f"{estimate.value:.3g}{interval}"


def shown_step_errors(found: Diagnosis) -> dict[str, StepErrors]:
    """Names the errors of a step as they are shown: algorithms, then the run's own rows.

    Args:
        found: The diagnosis.

    Returns:
        {label: errors}.
    """
    shown = {LOOKS[name].label: one for name, one in found.step_errors.items()}
    if (own := found.step_errors_with_rows) is not None:
        shown[with_rows(LOOKS[own.algorithm].label)] = own
    return shown


def _by_cause(found: Diagnosis) -> Table:
    updates = found.updates
    assert updates is not None
    lines = [
        (
            label,
            *(f"{getattr(one, cause):.3g}" for cause in CAUSES),
            f"{one.total:.3g}",
        )
        for label, one in shown_step_errors(found).items()
    ]
    intervals = {cause: found.interval(cause) for cause in (*CAUSES, "total")}
    lines.insert(1, ("  95 % interval", *(_range(one) for one in intervals.values())))
    title = f"Error of one step, E‖v − h‖², measured at a client rate of {found.client_lr:.3g}"
    progress = (
        f"h is where as many steps on the pooled data lead, the mean of {updates.num_walks} walks. "
        f"‖h − ∇f‖² = {updates.spread.progress:.3g} is progress, and no error."
    )
    return Table(title, ("", *_HEADER, "together"), lines, notes=(progress,))


def _range(estimate: Estimate, digits: int = 3) -> str:
    low, high = f"{estimate.low:.{digits}g}", f"{estimate.high:.{digits}g}"
    return low if low == high else f"{low} to {high}"


def _remedies(found: Diagnosis) -> Table:
    ranked = rank_remedies(found)
    own = unmeasured_algorithm(found)
    compared_with = "now" if own is None else "compared with"
    lines = [
        (
            remedy.name,
            f"{remedy.total.value:.3g}",
            _range(remedy.total, digits=2),
            compared_with if remedy.is_baseline else _range(remedy.change, digits=2),
            in_bytes(remedy.table_bytes) if remedy.table_bytes else None,
            in_bytes(remedy.round_bytes),
        )
        for remedy in ranked
    ]
    prices = [f"{remedy.name}: {remedy.price}" for remedy in ranked if remedy.price]
    anew = [remedy for remedy in ranked if "anew" in remedy.known_from]
    told = [f"{remedy.name}: {remedy.known_from}" for remedy in anew]
    notes = [
        "; ".join([*told, "all others follow from the updates measured"])
        + ", with fresh rows unless they are the run's."
    ]
    if own is not None:
        notes.append(f"The run trains with {own}, whose step is not measured.")
    if prices:
        notes.append(f"At a price: {'; '.join(prices)}.")
    return Table(
        "What would help: the error of one step that would be left",
        ("", "left", "95 %", "change, 95 %", "rows", "sent, a round"),
        lines,
        notes=notes,
    )


def _by_parameter(spreads: Mapping[str, ParameterSpread]) -> Table:
    lines = tuple(
        (
            name,
            f"{one.between_clients:.3g}",
            f"{one.around_rows:.3g}",
            f"{one.around_rows / one.between_clients:.0%}" if one.between_clients > 0 else "–",
        )
        for name, one in spreads.items()
    )
    header = ("", "between clients", "around the rows of this run", "left")
    return Table("Spread of the updates, by parameter", header, lines)


def _bounds(title: str, terms: Iterable[ErrorTerms]) -> Table:
    lines = tuple(
        (
            LOOKS[one.algorithm].label + ("" if one.exact else " (approx.)"),
            *(f"{getattr(one, cause):.3g}" for cause in CAUSES),
            f"{one.floor:.3g}",
            f"{one.initial + one.start_up:.3g}",
        )
        for one in terms
    )
    return Table(title, ("", *_HEADER, "floor", "falls as 1/T"), lines)


def _curve(found: Diagnosis) -> Table:
    codec = found.settings.table.codec
    lines = tuple(
        (
            f"{point.num_clusters:,}",
            f"{point.sigma_K2:.3g}",
            f"{point.share_removed:.0%}",
            in_bytes(found.table_bytes(point.num_clusters, codec)),
            in_bytes(found.table_bytes(point.num_clusters, "int8")),
        )
        for point in found.curve
    )
    header = ("clusters K", "σ_K²", "removed", f"rows as {codec}", "as int8")
    return Table("Clusters found by k-means on sketched gradients", header, lines)
