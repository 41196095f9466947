"""What `fedvarp diagnose` left in the directories of runs, for the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fedvarp.analysis.groups import Group
from fedvarp.analysis.row_trust import trust_table
from fedvarp.analysis.runs import Run
from fedvarp.analysis.styles import CAUSES, look_of, with_rows
from fedvarp.analysis.tables import Table
from fedvarp.analysis.units import in_bytes, in_short
from fedvarp.runs.errors import RunError
from fedvarp.system.parsing import parse_json

DIAGNOSIS_FILE: Final = "diagnosis.json"
"""Where the diagnosis of a run is kept, in its directory."""

_WIDTH: Final = 640
_NAMES: Final = 180  # pixels for the algorithms' names
_STEP: Final = 32  # pixels from one bar to the next

Errors = Mapping[str, Mapping[str, Any]]  # by algorithm, then by cause


@dataclass(frozen=True)
class Segment:
    """The part of a bar that has one cause.

    Attributes:
        cause: Its name among CAUSES.
        left: Where it begins, in pixels.
        width: In pixels.
        value: What it stands for.
    """

    cause: str
    left: float
    width: float
    value: float


@dataclass(frozen=True)
class ErrorChart:
    """Errors of several algorithms as stacked bars, and the same in a table.

    Attributes:
        table: The figures; its title is that of the chart too.
        bars: By algorithm, the label and the segments of its bar.
        width: Of the whole chart, in pixels.
        height: Of the whole chart, in pixels.
        step: From one bar to the next, in pixels.
    """

    table: Table
    bars: Sequence[tuple[str, Sequence[Segment]]]
    width: int
    height: int
    step: int


@dataclass(frozen=True)
class ReadDiagnosis:
    """The diagnosis of one run, ready for its place on the page.

    Attributes:
        run: Where the run is.
        about: When and where it was measured, in a sentence.
        charts: The errors by cause: measured, if they were, and by the theorems.
        trust: How far rows are to be trusted; None if that was not measured.
        remedies: What would help; None if that was not measured.
        clusters: What clusters would remove and cost; None if that was not measured.
        advice: Sentences.
    """

    run: str
    about: str
    charts: Sequence[ErrorChart]
    trust: Table | None
    remedies: Table | None
    clusters: Table | None
    advice: Sequence[str]


def read_diagnoses(groups: Sequence[Group]) -> list[ReadDiagnosis]:
    """Reads the diagnoses of those runs that were diagnosed.

    Args:
        groups: The runs.

    Returns:
        One for each diagnosed run.

    Raises:
        RunError: A diagnosis.json is damaged.
    """
    runs = [run for group in groups for run in group.runs]
    return [_read(run) for run in runs if (run.path / DIAGNOSIS_FILE).exists()]


def _read(run: Run) -> ReadDiagnosis:
    file = run.path / DIAGNOSIS_FILE
    try:
        return _laid_out(run, parse_json(file.read_text(encoding="utf-8")))
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise RunError(
            f"{file} is damaged ({type(error).__name__}: {error}). `fedvarp diagnose {run.path}` "
            f"writes it anew; or move it away."
        ) from error


def _laid_out(run: Run, found: Mapping[str, Any]) -> ReadDiagnosis:
    measured, advice = found["measured"], found["advice"]
    if not isinstance(advice, list) or not all(isinstance(line, str) for line in advice):
        raise TypeError("advice holds no sentences")
    charts = []
    if found["step_errors"]:
        errors = dict(found["step_errors"])
        if (own := found.get("step_errors_with_rows")) is not None:
            errors[with_rows(look_of(own["algorithm"]).label)] = own
        charts.append(_chart("Error of one step, E‖v − h‖², measured", errors))
    rate = min(found["allowed_client_lr"].values())
    title = f"Error floor by the theorems at a client rate of {rate:.2g}, which they all allow"
    charts.append(_chart(title, found["terms_at_allowed_lr"]))
    return ReadDiagnosis(
        run=str(run.path),
        about=f"Measured after round {found['round']} over {measured['measured_clients']:,} of "
        f"{measured['num_clients']:,} clients, at a client rate of {in_short(found['client_lr'])}.",
        charts=charts,
        trust=trust_table(found["trust"]) if found.get("trust") else None,
        remedies=_remedies(found["remedies"]) if found.get("remedies") else None,
        clusters=_clusters(found) if found["curve"] else None,
        advice=advice,
    )


def _chart(title: str, errors: Errors) -> ErrorChart:
    rows = [
        (
            look_of(name).label + ("" if one.get("exact", True) else " (approx.)"),
            *(f"{one[cause]:.3g}" for cause in CAUSES),
            f"{_total(one):.3g}",
        )
        for name, one in errors.items()
    ]
    columns = ("", *(cause.label for cause in CAUSES.values()), "together")
    scale = (_WIDTH - _NAMES) / (max(map(_total, errors.values())) or 1.0)
    bars = [(look_of(name).label, _bar(one, scale)) for name, one in errors.items()]
    return ErrorChart(Table(title, columns, rows), bars, _WIDTH, len(errors) * _STEP, _STEP)


def _bar(error: Mapping[str, Any], scale: float) -> list[Segment]:
    segments, left = [], float(_NAMES)
    for cause in CAUSES:
        width = max(float(error[cause]), 0.0) * scale
        segments.append(Segment(cause, left, width, error[cause]))
        left += width
    return segments


def _remedies(remedies: Sequence[Mapping[str, Any]]) -> Table:
    rows = [
        (
            one["name"],
            f"{one['total']['value']:.3g}",
            f"{one['total']['low']:.3g} to {one['total']['high']:.3g}",
            in_bytes(one["table_bytes"]) if one["table_bytes"] else None,
            in_bytes(one["round_bytes"]),
            one["price"] or None,
            one["known_from"],
        )
        for one in remedies
    ]
    columns = ("", "error left", "95 %", "rows", "sent, a round", "costs", "known from")
    title = "What would help: the error of one step that would be left"
    return Table(title, columns, rows, words=("costs", "known from"))


def _clusters(found: Mapping[str, Any]) -> Table:
    rows = [
        (
            f"{point['num_clusters']:,}",
            f"{point['sigma_K2']:.3g}",
            f"{point['share_removed']:.0%}",
            in_bytes(found["table_bytes"][str(point["num_clusters"])]["float32"]),
            in_bytes(found["table_bytes"][str(point["num_clusters"])]["int8"]),
        )
        for point in found["curve"]
    ]
    columns = ("clusters K", "σ_K²", "variance removed", "rows as float32", "as int8")
    return Table("Clusters found by k-means on sketched gradients", columns, rows)


def _total(error: Mapping[str, Any]) -> float:
    return sum(max(float(error[cause]), 0.0) for cause in CAUSES)
