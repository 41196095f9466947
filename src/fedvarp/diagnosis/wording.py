"""How causes, shares and intervals are put into words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fedvarp.diagnosis.result import Diagnosis
from fedvarp.theory.bounds import ErrorTerms
from fedvarp.theory.intervals import Estimate
from fedvarp.theory.step_errors import StepErrors

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
_AGAINST_WITH_ROWS: Final = {
    "partial_participation": "The run's rows remove it as far as they are fresh; more clients a "
    "round lessen it, and renew the rows.",
}
_AGAINST_WITH_EVERYBODY: Final = {  # there are no more clients, and rows change nothing
    "stochastic_gradient": "Larger batches, or more and smaller local steps, average it out.",
    "client_drift": "A lower client rate or fewer local steps lessen it.",
}


def against(cause: str, found: Diagnosis) -> str:
    """Says what lessens a cause of errors.

    Args:
        cause: The one.
        found: The diagnosis: where everybody takes part in a round, less can be done.

    Returns:
        A sentence.
    """
    ways = _AGAINST
    if found.step_errors_with_rows is not None:
        ways = ways | _AGAINST_WITH_ROWS
    if found.everybody_takes_part:
        ways = ways | _AGAINST_WITH_EVERYBODY
    return ways[cause]


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


def listed(parts: Mapping[str, float]) -> str:
    """Lists shares by cause, the largest first.

    Args:
        parts: {cause: its share}.

    Returns:
        Such as "70% from mini-batches, 30% from …".
    """
    ranked = sorted(parts.items(), key=lambda item: -item[1])
    told = [f"{percent(value)} from {WORDS[name]}" for name, value in ranked if value > 0]
    return ", ".join(told) or "nothing, there is none"


def percent(share: float) -> str:
    """Rounds a share, but never to none or all of it.

    Args:
        share: From 0 on.

    Returns:
        Such as "under 1%" or "42%".
    """
    if 0 < share < 0.005:
        return "under 1%"
    return "over 99%" if 0.995 <= share < 1 else f"{share:.0%}"


def with_interval(estimate: Estimate) -> str:
    """Writes a squared length with its interval, unless that rounds to nothing.

    Args:
        estimate: The number; without bias, so perhaps below zero, which reads as zero.

    Returns:
        Such as "0.21 (95%: 0.18 to 0.25)".
    """
    shown = estimate.at_least_zero()
    value, low, high = (f"{one:.3g}" for one in (shown.value, shown.low, shown.high))
    return value if low == high else f"{value} (95%: {low} to {high})"
