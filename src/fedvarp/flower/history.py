"""The metrics of earlier rounds, kept in the checkpoint and given back in Flower's `Result`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from flwr.app import MetricRecord
from flwr.serverapp.strategy import Result

_PREFIX: Final = "history/"


def history_entry(result: Result, round: int) -> dict[str, dict[str, Any]]:
    """One round of the history as an entry of the checkpoint."""
    parts = {
        name: dict(records[round]) for name, records in _parts(result).items() if round in records
    }
    return {f"{_PREFIX}{round}": parts}


def load_history(result: Result, entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Puts the rounds that were saved into `result`."""
    rounds = {
        int(key.removeprefix(_PREFIX)): entry
        for key, entry in entries.items()
        if key.startswith(_PREFIX)
    }
    for round in sorted(rounds):
        for name, records in _parts(result).items():
            if name in rounds[round]:
                records[round] = MetricRecord(rounds[round][name])


def _parts(result: Result) -> dict[str, dict[int, MetricRecord]]:
    return {
        "train": result.train_metrics_clientapp,
        "evaluate": result.evaluate_metrics_clientapp,
        "server": result.evaluate_metrics_serverapp,
    }
