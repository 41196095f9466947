"""What is wrong with a step as measured, and what would help, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from fedvarp.analysis.units import in_bytes
from fedvarp.diagnosis.remedies import Remedy, rank_remedies, unmeasured_algorithm
from fedvarp.diagnosis.result import Diagnosis
from fedvarp.diagnosis.wording import WORDS, against, listed, percent, shares, with_interval
from fedvarp.theory.step_errors import StepErrors


def advise_on_steps(found: Diagnosis) -> list[str]:
    """Says what is wrong with a step, and what would help.

    Args:
        found: A diagnosis for which clients were trained.

    Returns:
        Sentences, one or several to a line; some may be empty.
    """
    return [
        _of_the_step(found),
        _of_another_algorithm(found),
        _of_progress(found),
        *_what_would_help(found),
    ]


def _of_the_step(found: Diagnosis) -> str:
    """What is wrong with a step of FedAvg, by cause, and which cause is the largest."""
    errors = found.step_errors["fedavg"]
    line = "One FedAvg step at this model"
    if _is_nothing(found, errors):
        line += " is what training on the pooled data would do, but for next to nothing, measured."
    else:
        total = found.interval("total")
        line += f" is off by {with_interval(total)}, measured: {listed(shares(errors))}. "
        line += _verdict(found)
    if found.everybody_takes_part:
        line += " With all clients in every round FedVARP takes the same steps as FedAvg."
    if found.updates is not None and found.updates.diverged:
        line += f" {found.updates.diverged} clients diverged and are left out."
    return line


def _of_another_algorithm(found: Diagnosis) -> str:
    own = unmeasured_algorithm(found)
    if own is None:
        return ""
    return (
        f"This run trains with {own}, whose step is not measured here: all of this is about steps "
        f"from its model, and remedies are compared with one of FedAvg."
    )


def _verdict(found: Diagnosis) -> str:
    """The largest cause, if the intervals tell it from the others that there are."""
    errors = found.step_errors["fedavg"]
    nothing = _next_to_nothing(found) / len(WORDS)  # so that not all of them can be below it
    causes = [cause for cause in WORDS if found.interval(cause).high > nothing]
    largest, *others = sorted(causes, key=lambda cause: -float(getattr(errors, cause)))
    rivals = [cause for cause in others if found.excess(largest, cause).low <= 0]
    if rivals:
        either = " or ".join(WORDS[cause] for cause in (largest, *rivals))
        more = (
            "All clients were measured: their batches vary too much."
            if found.measured.of_all_clients
            else "Measure more clients (--sample)."
        )
        return f"The intervals do not tell which is the largest, {either}. {more}"
    return f"The largest cause is {WORDS[largest]}. {against(largest, found)}"


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
    ranked = [one for one in rank_remedies(found) if one.setting or one.is_baseline]
    now = next(remedy for remedy in ranked if remedy.is_baseline)
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
    than = "now" if unmeasured_algorithm(found) is None else "FedAvg"
    least = min(helping, key=_error_to_rank_by)
    lines.append(f"Least would be left by {_told(least, now, than)}.")
    cheap = [remedy for remedy in helping if remedy.table_bytes <= now.table_bytes]
    if least.table_bytes > now.table_bytes and cheap:
        cheapest = min(cheap, key=_error_to_rank_by)
        lines[-1] += f" Without more memory at the server, by {_told(cheapest, now, than)}."
    lines[-1] += _unsupported(ranked, now, than)
    return lines


def _error_to_rank_by(remedy: Remedy) -> float:
    """The error left; where its estimate fell below zero, which says little, its upper end."""
    return remedy.total.value if remedy.total.value > 0 else remedy.total.high


def _told(remedy: Remedy, now: Remedy, than: str) -> str:
    cost = [
        *([f"{in_bytes(remedy.table_bytes)} of rows"] if remedy.table_bytes else []),
        *([remedy.price] if remedy.price else []),
    ]
    price = f", for {' and '.join(cost)}" if cost else ""
    share = ""
    if remedy.total.value > 0 and now.total.value > 0:
        share = f", {percent(remedy.total.value / now.total.value)} of {than}"
    return f"{remedy.name} (--set {remedy.setting}): {with_interval(remedy.total)}{share}{price}"


def _unsupported(ranked: Sequence[Remedy], now: Remedy, than: str) -> str:
    """Remedies that look better than the baseline, but whose intervals do not support it."""
    doubtful = [
        remedy.name
        for remedy in ranked
        if remedy.total.value < now.total.value and not remedy.helps
    ]
    if not doubtful:
        return ""
    return (
        f" That these leave less than {than}, the intervals do not support: {'; '.join(doubtful)}."
    )


def _of_own_rows(found: Diagnosis) -> str:
    own, fedavg = found.step_errors_with_rows, found.step_errors["fedavg"]
    if own is None or not found.round or found.everybody_takes_part or _is_nothing(found, fedavg):
        return ""
    if fedavg.total <= 0:
        return ""  # too noisy an estimate to be divided by
    ratio = max(own.total, 0.0) / fedavg.total
    if ratio < 1:
        return f"With the rows of this run as they are, {percent(ratio)} of FedAvg's error is left."
    return (
        f"With the rows of this run as they are, the error is {ratio:.2g} times FedAvg's: they are "
        f"too old, too noisy, shared by clients that differ, or of clients not yet seen."
    )


def _is_nothing(found: Diagnosis, errors: StepErrors) -> bool:
    """Whether an error of a step is no more than that of 32-bit arithmetic."""
    return errors.total - min(errors.client_drift, 0.0) <= _next_to_nothing(found)


def _next_to_nothing(found: Diagnosis) -> float:
    """An error of a step that 32-bit arithmetic alone may make."""
    assert found.updates is not None
    spread = found.updates.spread
    scale = spread.between_clients + spread.progress + max(found.measured.gradient_norm2.value, 0.0)
    return 1e-9 * scale
