"""What a strategy says in Flower's log."""

from __future__ import annotations

from logging import INFO, WARNING
from typing import TYPE_CHECKING

from flwr.supercore import log

from fedvarp.flower.federation import Federation, Outcome

if TYPE_CHECKING:
    from fedvarp.flower.settings import StrategySettings


class Reporter:
    """Logs rounds; says some things only once."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def once(self, topic: str, level: int, message: str, *values: object) -> None:
        """Logs a message unless one on this topic has been logged."""
        if topic not in self._said:
            self._said.add(topic)
            log(level, message, *values)

    def summary(self, settings: StrategySettings, federation: Federation) -> None:
        """The settings, and how large the table is and may become."""
        size = settings.clients_per_round or f"{settings.fraction_train:.0%} of the"
        log(INFO, "\t├──> Cohort: %s clients, seed %d", size, settings.seed)
        log(INFO, "\t├──> Clients known by: %s", settings.identity)
        log(INFO, "\t├──> Checkpoint: %s", settings.checkpoint or "none, a restart begins anew")
        log(INFO, "\t└──> Table: %s", _table_size(settings, federation))
        if federation.layout.has_running_statistics:
            self.once(
                "BatchNorm",
                WARNING,
                "The model has running statistics (BatchNorm). They are averaged over the clients "
                "of a round, which breaks training on heterogeneous clients; GroupNorm does not.",
            )

    def round(self, settings: StrategySettings, federation: Federation, outcome: Outcome) -> None:
        """What became of the replies of a round."""
        log(INFO, "%d replies used, %d not.", len(outcome.accepted), len(outcome.refused))
        for who, why in outcome.refused:
            log(WARNING, "\t> The reply of %s is not used: %s.", who, why)
        for name, rounds in outcome.refreshed:
            log(INFO, "\t> A late reply refreshed the row of %r, %d round(s) stale.", name, rounds)
        if outcome.nameless:
            self.once(
                "nameless",
                WARNING,
                "Clients do not report %r, so that they go by their node id: a SuperNode that is "
                "started again without authentication keys will count as a new client and lose "
                'its row. Add one line to the metrics of the client: "%s": '
                'context.node_config["%s"].',
                settings.identity,
                settings.identity,
                settings.identity,
            )
        if federation.units.are_settled and not federation.units.steps_are_counted:
            self.once(
                "steps",
                INFO,
                "Clients do not report 'num-steps': all are taken to make equally many local "
                'steps. If they do not, add "num-steps" to the metrics of the client.',
            )
        more = federation.num_clients - (settings.num_clients or federation.num_clients)
        if more > 0:
            self.once(
                "more clients",
                WARNING,
                "There are more clients than num_clients=%d: %d so far. The table has grown.",
                settings.num_clients,
                federation.num_clients,
            )


def _table_size(settings: StrategySettings, federation: Federation) -> str:
    states = federation.server.aggregator.table
    if states is None:
        return f"none; {federation.layout.dim} parameters"
    rows = states.tables()[0]
    each = rows.codec.row_bytes(rows.dim)
    where = "in memory" if settings.states == "memory" else f"on disk in {settings.checkpoint}"
    return (
        f"{rows.num_rows} of {rows.num_clients} rows written, {settings.dtype}, "
        f"{_megabytes(each)} each: {_megabytes(states.num_bytes)} now, "
        f"{_megabytes(each * rows.num_clients)} when full, {where}"
    )


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.2f} MB"
