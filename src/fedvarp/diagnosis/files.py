"""A diagnosis as plain numbers and names, for files and programs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedvarp.analysis.styles import CAUSES
from fedvarp.diagnosis.remedies import rank_remedies
from fedvarp.diagnosis.result import Diagnosis
from fedvarp.system.whole_files import write_whole
from fedvarp.tables.settings import CODEC_NAMES
from fedvarp.theory.bounds import ErrorTerms
from fedvarp.theory.step_errors import StepErrors


def as_json(found: Diagnosis, advice: Sequence[str]) -> dict[str, Any]:
    """Puts a diagnosis and its advice into plain numbers and names.

    Args:
        found: The diagnosis.
        advice: What `advise` says about it.

    Returns:
        What `json.dumps` takes.
    """
    settings, with_rows = found.settings, found.step_errors_with_rows
    sizes = found.measured.cluster_sizes
    tables = {point.num_clusters for point in found.curve} | {found.measured.num_clients}
    return {
        "name": settings.name,
        "algorithm": settings.algorithm,
        "round": found.round,
        "num_clients": found.measured.num_clients,
        "clients_per_round": settings.clients_per_round,
        "rounds": settings.rounds,
        "client_lr": found.client_lr,
        "server_lr": found.server_lr,
        "measured": found.measured.as_json(),
        "updates": _updates(found),
        "step_errors": {
            name: _plain(one) | {"intervals": _intervals(found, name)}
            for name, one in found.step_errors.items()
        },
        "step_errors_with_rows": None if with_rows is None else _plain(with_rows),
        "trust": found.trust,
        "remedies": [remedy.as_json() for remedy in rank_remedies(found)],
        "terms": _plain_all(found.terms(found.client_lr)),
        "allowed_client_lr": found.allowed_lr,
        "terms_at_allowed_lr": _plain_all(found.terms(found.smallest_allowed_lr)),
        "conditions": {
            name: [dataclasses.asdict(one) | {"met": one.met} for one in asked]
            for name, asked in found.conditions.items()
        },
        "curve": [point.as_json() for point in found.curve],
        "table_bytes": {
            str(rows): {codec: found.table_bytes(rows, codec) for codec in CODEC_NAMES}
            for rows in sorted(tables | (set() if sizes is None else {len(sizes)}))
        },
        "advice": list(advice),
    }


def write_json(found: Diagnosis, advice: Sequence[str], file: Path) -> None:
    """Writes a diagnosis and its advice into a file, whole or not at all.

    Args:
        found: What was found.
        advice: What `advise` says about it.
        file: Where; replaced if it exists.
    """
    write_whole(file, json.dumps(as_json(found, advice), indent=2, allow_nan=False) + "\n")


def _updates(found: Diagnosis) -> dict[str, Any] | None:
    if found.updates is None:
        return None
    return dataclasses.asdict(found.updates.spread) | {
        "num_walks": found.updates.num_walks,
        "diverged": found.updates.diverged,
        "by_parameter": {
            name: dataclasses.asdict(one) for name, one in found.updates.by_parameter.items()
        },
    }


def _intervals(found: Diagnosis, algorithm: str) -> dict[str, Any]:
    return {cause: found.interval(cause, algorithm).as_json() for cause in (*CAUSES, "total")}


def _plain_all(terms: Mapping[str, ErrorTerms]) -> dict[str, Any]:
    return {name: _plain(one) for name, one in terms.items()}


def _plain(one: StepErrors | ErrorTerms) -> dict[str, Any]:
    floor = {"floor": one.floor} if isinstance(one, ErrorTerms) else {}
    return dataclasses.asdict(one) | {"total": one.total} | floor
