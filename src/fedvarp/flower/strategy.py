"""Flower's `Strategy` over the core server: sample, send, receive, evaluate, commit."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from logging import INFO, WARNING
from typing import Final

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.supercore import log

from fedvarp.flower.client import CORRECTION_RECORD
from fedvarp.flower.discovery import Discovery
from fedvarp.flower.exchange import Exchange
from fedvarp.flower.federation import Federation
from fedvarp.flower.history import history_entry, load_history
from fedvarp.flower.metrics import MetricsAggregator, weighted_means
from fedvarp.flower.opening import Entries, open_federation
from fedvarp.flower.replies import NUM_EXAMPLES, RefusedReplyError, examples_in, refuse_error
from fedvarp.flower.reporting import Reporter
from fedvarp.flower.sampling import candidates, draw
from fedvarp.flower.settings import StrategySettings
from fedvarp.server.server import Server

_ASK_TIMEOUT: Final = 60.0  # seconds for clients to say who they are
_LOOK_EVERY: Final = 0.5  # seconds between two looks at who is online

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


@dataclass(kw_only=True, eq=False, repr=False)
class ServerStrategy(StrategySettings, Strategy):
    """What the five strategies have in common; see `StrategySettings` for the settings."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._federation: Federation | None = None
        self._exchange = Exchange(self.late_replies)
        self._discovery = Discovery(self.identity, self.ask_names)
        self._reporter = Reporter()

    @property
    def server(self) -> Server:
        """The core server: w, the table, the round number."""
        return self._begun.server

    def begin(self, initial_arrays: ArrayRecord) -> Entries:
        """Makes the server, or takes it up from the checkpoint; `start` does it by itself.

        Returns:
            What the checkpoint holds beside the server: clients and history.
        """
        self.close()
        self._federation, entries = open_federation(self, initial_arrays)
        return entries

    def close(self) -> None:
        """Gives the checkpoint's folder back; `start` does it by itself."""
        if self._federation is not None:
            self._federation.close()

    @property
    def _begun(self) -> Federation:
        if self._federation is None:
            raise RuntimeError("The strategy has no model yet: call start(), or begin() first.")
        return self._federation

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Trains up to round `num_rounds`, from the last round in the checkpoint.

        Args:
            grid: Flower's.
            initial_arrays: The initial model, such as ``ArrayRecord(model.state_dict())``.
            num_rounds: T, the rounds before a restart included.
            timeout: Deadline of a round in seconds; evaluation has its own, as long.
            train_config: Sent to clients with each round of training.
            evaluate_config: Sent with each evaluation.
            evaluate_fn: (round, arrays) → metrics, on the server.
        """
        began = time.monotonic()
        result = Result()
        load_history(result, self.begin(initial_arrays))
        federation = self._begun
        try:
            log(INFO, "Starting %s strategy:", type(self).__name__)
            self.summary()
            result.arrays = federation.record
            if not federation.is_saved:
                _evaluate_centrally(evaluate_fn, 0, result)
                federation.commit(history_entry(result, 0))
            first = federation.server.round + 1
            for current in range(first, num_rounds + 1):
                log(INFO, "[ROUND %d/%d]", current, num_rounds)
                self._wait_for_nodes(grid, timeout, is_first=current == first)
                self._train(grid, current, timeout, train_config or ConfigRecord(), result)
                self._evaluate(grid, current, timeout, evaluate_config or ConfigRecord(), result)
                _evaluate_centrally(evaluate_fn, current, result)
                federation.commit(history_entry(result, current))
        finally:
            self.close()
        log(INFO, "Strategy execution finished in %.2fs", time.monotonic() - began)
        for line in io.StringIO(str(result)):
            log(INFO, "\t%s", line.rstrip("\n"))
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draws the cohort of a round by name, and writes to it."""
        if self._federation is None:
            self.begin(arrays)
        federation = self._begun
        self._learn_names(grid, federation.clients.still_at(grid.get_node_ids()))
        online = federation.clients.still_at(grid.get_node_ids())
        federation.count(len(online))
        among = candidates(federation.clients, online)
        cohort = draw(
            among,
            self.cohort_size(len(among)),
            seed=self.seed,
            purpose="cohort",
            round=server_round - 1,
            when_offline=self.when_offline,
        )
        log(INFO, "Asking %d clients; %d nodes are online.", len(cohort), len(online))
        broadcast = federation.send(server_round, cohort)
        content = self._content(server_round, arrays, config)
        messages = []
        for m, client in enumerate(cohort):
            own = content
            if broadcast.corrections is not None:
                correction = federation.layout.parameter_record(broadcast.corrections[m])
                own = RecordDict({**content, CORRECTION_RECORD: correction})
            messages.append(_message(own, client.node, MessageType.TRAIN, server_round))
        federation.letters.note(server_round, messages)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """One round of the core server; a bad reply costs nothing but itself."""
        federation = self._begun
        outcome = federation.receive(server_round, list(replies), self.min_replies)
        self._reporter.round(self, federation, outcome)
        if not outcome.accepted:
            return None, None
        contents = [update.content for update in outcome.accepted]
        return federation.record, self._metrics(contents, self.train_metrics_aggr_fn)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Asks a share of the nodes online to evaluate the model."""
        if self.fraction_evaluate == 0:
            return []
        online = self._begun.clients.still_at(grid.get_node_ids())
        among = [c for c in candidates(self._begun.clients, online) if c.node is not None]
        cohort = draw(
            among,
            max(1, round(self.fraction_evaluate * len(among))),
            seed=self.seed,
            purpose="evaluation",
            round=server_round - 1,
            when_offline="fewer",
        )
        content = self._content(server_round, arrays, config)
        messages = [_message(content, c.node, MessageType.EVALUATE, server_round) for c in cohort]
        self._begun.letters.note(server_round, messages)
        return messages

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Metrics weighted by examples; the replies may also tell who the clients are."""
        good: list[Message] = []
        for reply in replies:
            try:
                refuse_error(reply)
                examples_in(reply.content)
                good.append(reply)
            except RefusedReplyError as why:
                who = self._begun.who(reply)
                log(WARNING, "\t> The evaluation of %s is not used: %s.", who, why)
        self._begun.learn(good)
        contents = [reply.content for reply in good]
        return self._metrics(contents, self.evaluate_metrics_aggr_fn) if contents else None

    def summary(self) -> None:
        """Logs the settings, and how large the table is and may become."""
        self._reporter.summary(self, self._begun)

    def _train(
        self, grid: Grid, current: int, timeout: float, config: ConfigRecord, result: Result
    ) -> None:
        messages = self.configure_train(current, result.arrays, config, grid)
        replies = self._exchange.send_and_receive(grid, messages, timeout, current)
        arrays, metrics = self.aggregate_train(current, replies)
        if arrays is not None:
            result.arrays = arrays
        if metrics is not None:
            log(INFO, "\t└──> Aggregated MetricRecord: %s", metrics)
            result.train_metrics_clientapp[current] = metrics

    def _evaluate(
        self, grid: Grid, current: int, timeout: float, config: ConfigRecord, result: Result
    ) -> None:
        messages = self.configure_evaluate(current, result.arrays, config, grid)
        replies = Exchange(rounds_kept=0).send_and_receive(grid, messages, timeout, current)
        metrics = self.aggregate_evaluate(current, replies)
        if metrics is not None:
            log(INFO, "\t└──> Aggregated MetricRecord: %s", metrics)
            result.evaluate_metrics_clientapp[current] = metrics

    def _wait_for_nodes(self, grid: Grid, timeout: float, is_first: bool) -> None:
        """Waits for enough nodes while the timeout lasts; then whoever is there must do."""
        known = max(self.num_clients or 1, len(self._begun.clients))
        enough = self.cohort_size(known) if is_first else self.min_replies
        wanted = self.min_available_nodes or enough
        deadline = time.monotonic() + timeout
        while (online := len(list(grid.get_node_ids()))) < wanted:
            if time.monotonic() >= deadline:
                log(WARNING, "%d of %d nodes are online; going on with them.", online, wanted)
                return
            log(INFO, "Waiting for nodes: %d of %d are online.", online, wanted)
            time.sleep(min(_LOOK_EVERY, timeout))

    def _learn_names(self, grid: Grid, online: Sequence[int]) -> None:
        def ask(questions: Sequence[Message]) -> Iterable[Message]:
            return Exchange(rounds_kept=0).send_and_receive(grid, questions, _ASK_TIMEOUT, 0)

        self._discovery.learn(grid, online, self._begun.clients, ask)

    def _content(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord) -> RecordDict:
        with_round = ConfigRecord({**config, "server-round": server_round})
        return RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: with_round})

    def _metrics(
        self, contents: list[RecordDict], custom: MetricsAggregator | None
    ) -> MetricRecord:
        if custom is not None:
            return custom(contents, NUM_EXAMPLES)
        source = self.cluster_source
        cluster_key = {source} if isinstance(source, str) else set()
        return weighted_means(contents, leave_out={self.identity} | cluster_key)


def _message(content: RecordDict, node: int | None, kind: str, round: int) -> Message:
    assert node is not None
    return Message(content, node, kind, group_id=str(round))


def _evaluate_centrally(evaluate_fn: EvaluateFn | None, round: int, result: Result) -> None:
    metrics = None if evaluate_fn is None else evaluate_fn(round, result.arrays)
    if metrics is not None:
        log(INFO, "Global evaluation: %s", metrics)
        result.evaluate_metrics_serverapp[round] = metrics
