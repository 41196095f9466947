"""What a run tells its user: metrics averaged over clients, their history, and the log."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from logging import INFO, WARNING
from typing import TYPE_CHECKING, Any, Final

from flwr.app import MetricRecord, RecordDict
from flwr.app.typing import MetricRecordValues
from flwr.serverapp.strategy import Result
from flwr.supercore import log

from fedvarp.flower.claims import Claims
from fedvarp.flower.reception import Outcome
from fedvarp.flower.replies import examples_in, shown
from fedvarp.flower.round import TrainingRounds

if TYPE_CHECKING:
    from fedvarp.flower.settings import StrategySettings

MetricsAggregator = Callable[[list[RecordDict], str], MetricRecord]
"""Flower's own signature: (contents of the replies, key of the weight) → metrics."""

_ENTRY: Final = "history/"  # before the round, in the keys of a checkpoint's entries


def weighted_means(
    contents: Sequence[RecordDict],
    weighted_by: str,
    leave_out: Collection[str],
    within: float | None = None,
) -> MetricRecord:
    """Averages each metric over the replies that report it, weighted by their examples.

    A value that is not finite, or a list of another length, is left out; so are the number of
    examples and what says who a client is.

    Args:
        contents: Of replies that have been checked.
        weighted_by: The key of the number of examples.
        leave_out: Keys that are no metrics.
        within: See `Claims`.

    Returns:
        The means.
    """
    reports: dict[str, list[tuple[float, list[float], bool]]] = {}
    weights = Claims(within).believed([examples_in(each, weighted_by) for each in contents])
    for content, weight in zip(contents, weights, strict=True):
        for record in content.metric_records.values():
            for key, value in record.items():
                if key != weighted_by and key not in leave_out:
                    is_list = isinstance(value, list)
                    listed = value if isinstance(value, list) else [value]
                    numbers = [_as_float(v) for v in listed]
                    if all(map(math.isfinite, numbers)):
                        reports.setdefault(key, []).append((weight, numbers, is_list))
    return MetricRecord({key: _mean(values) for key, values in reports.items()})


def history_entry(result: Result, round: int) -> dict[str, dict[str, Any]]:
    """One round of the history as an entry of the checkpoint.

    Args:
        result: What Flower's `start` returns in the end.
        round: The round; 0 for the evaluation before the first one.

    Returns:
        {key: the round's metrics}.
    """
    parts = {
        name: dict(records[round]) for name, records in _parts(result).items() if round in records
    }
    return {f"{_ENTRY}{round}": parts}


def load_history(result: Result, entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Puts the rounds of a checkpoint into a result.

    Args:
        result: What Flower's `start` returns in the end.
        entries: Every entry that `history_entry` has given, and others beside them.
    """
    rounds = {
        int(key.removeprefix(_ENTRY)): entry
        for key, entry in entries.items()
        if key.startswith(_ENTRY)
    }
    for round in sorted(rounds):
        for name, records in _parts(result).items():
            if name in rounds[round]:
                records[round] = MetricRecord(rounds[round][name])


class RunLog:
    """Writes what happens into Flower's log; says some things only once.

    Args:
        settings: Those of the strategy.
    """

    def __init__(self, settings: StrategySettings) -> None:
        self._settings = settings
        self._said: set[str] = set()

    def summary(self, rounds: TrainingRounds | None) -> None:
        """Logs the settings, and how large the table is and may become.

        Args:
            rounds: Those of the run; None: it has not begun.
        """
        settings = self._settings
        size = settings.clients_per_round or f"{settings.fraction_train:.0%} of the"
        drawn = settings.sampling.replace("_", " ")
        log(INFO, "\t├──> Cohort: %s clients, %s, seed %d", size, drawn, settings.seed)
        log(INFO, "\t├──> Clients known by: %s", settings.identity)
        log(INFO, "\t├──> Clients count: %s", _objective(settings, rounds))
        log(INFO, "\t├──> Checkpoint: %s", settings.checkpoint or "none, a restart begins anew")
        log(INFO, "\t└──> Table: %s", self._table(rounds) if rounds else "to be made")
        if rounds is not None and rounds.reader.layout.has_running_statistics:
            self._once(
                "BatchNorm",
                WARNING,
                "The model has running statistics (BatchNorm). They are averaged over the clients "
                "of a round, which breaks training on heterogeneous clients; GroupNorm does not.",
            )

    def round(self, rounds: TrainingRounds, outcome: Outcome) -> None:
        """Logs what became of the replies of a round.

        Args:
            rounds: Those of the run.
            outcome: That of the round.
        """
        log(INFO, "%d replies used, %d not.", len(outcome.accepted), len(outcome.refused))
        for who, why in outcome.refused:
            log(WARNING, "\t> The reply of %s is not used: %s.", who, why)
        for name, late in outcome.refreshed:
            log(INFO, "\t> A late reply refreshed the row of %r, %d round(s) stale.", name, late)
        if outcome.clipped:
            who = shown(", ".join(map(repr, outcome.clipped)))
            log(WARNING, "\t> %d updates were clipped: those of %s.", len(outcome.clipped), who)
        if outcome.doubted:
            log(
                WARNING,
                "\t> What %s said of examples or steps is more than %g times off the median of "
                "all clients, and counts as that much (claims_within).",
                shown(", ".join(map(repr, outcome.doubted))),
                self._settings.claims_within,
            )
        if outcome.nameless:
            identity = self._settings.identity
            self._once(
                "nameless",
                WARNING,
                "Clients do not report %r, so that they go by their node id: a SuperNode that is "
                "started again without authentication keys will count as a new client and lose "
                'its row. Add one line to the metrics of the client: "%s": '
                'context.node_config["%s"].',
                identity,
                identity,
                identity,
            )
        units = rounds.units
        has_rows = rounds.server.aggregator.table is not None
        if has_rows and units.source == "setting":
            self._once(
                "rates",
                INFO,
                "Nothing tells the rate of the clients' steps: it is taken to be client_lr=%g in "
                "all rounds. If it changes from round to round, or for SCAFFOLD is another, start "
                'anew with it in train_config, under "lr" or what client_lr_key names, or with '
                '"client-lr" in the metrics of every client.',
                self._settings.client_lr,
            )
        elif has_rows and units.source == "sent":
            self._once("rates", INFO, "The clients' rate is the one that they are sent.")

    def _once(self, topic: str, level: int, message: str, *values: object) -> None:
        if topic not in self._said:
            self._said.add(topic)
            log(level, message, *values)

    def _table(self, rounds: TrainingRounds) -> str:
        table = rounds.server.aggregator.table
        if table is None:
            return f"none; {rounds.reader.layout.dim} parameters"
        rows, folder = table.tables()[0], self._settings.checkpoint
        each = rows.codec.row_bytes(rows.dim)
        where = "in memory" if self._settings.where == "memory" else f"on disk in {folder}"
        return (
            f"{rows.num_rows} of {rows.num_clients} rows written, {self._settings.codec}, "
            f"{_megabytes(each)} each: {_megabytes(table.num_bytes)} now, "
            f"{_megabytes(each * rows.num_clients)} when full, {where}"
        )


def _objective(settings: StrategySettings, rounds: TrainingRounds | None) -> str:
    """How much each client counts in what the run minimises."""
    counts_steps = rounds is None or rounds.server.aggregator.counts_steps
    each_alike = settings.normalise_steps or not counts_steps
    if settings.weighting == "examples":
        by = f"by their {settings.weighted_by_key!r}"
        return by if each_alike else f"{by} times their local steps, as in Flower's FedAvg"
    return "once each" if each_alike else "by their local steps (plain differences of models)"


def _parts(result: Result) -> dict[str, dict[int, MetricRecord]]:
    return {
        "train": result.train_metrics_clientapp,
        "evaluate": result.evaluate_metrics_clientapp,
        "server": result.evaluate_metrics_serverapp,
    }


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer beyond all floats
        return math.inf


def _mean(reports: list[tuple[float, list[float], bool]]) -> MetricRecordValues:
    _, first, is_list = reports[0]
    alike = [r for r in reports if len(r[1]) == len(first) and r[2] == is_list]
    total = sum(weight for weight, _, _ in alike)
    means = [sum(w * numbers[i] for w, numbers, _ in alike) / total for i in range(len(first))]
    return means if is_list else means[0]


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.2f} MB"
