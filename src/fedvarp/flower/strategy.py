"""Flower's `Strategy` over the core server: who is asked, what is sent, what is made of replies."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from logging import INFO, WARNING

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.supercore import log

from fedvarp.flower.client import CORRECTION_RECORD, NUM_EXAMPLES, PROXIMAL
from fedvarp.flower.cohort import (
    Candidate,
    NameFinder,
    candidates,
    evaluation_cohort,
    training_cohort,
    wait_for_nodes,
)
from fedvarp.flower.identity import KnownClients
from fedvarp.flower.ledger import send_and_receive
from fedvarp.flower.replies import RefusedReplyError, examples_in, refuse_error
from fedvarp.flower.reporting import (
    MetricsAggregator,
    RunLog,
    history_entry,
    load_history,
    weighted_means,
)
from fedvarp.flower.resume import FederatedRun, open_run
from fedvarp.flower.round import TrainingRounds
from fedvarp.flower.settings import StrategySettings
from fedvarp.server.server import Server

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


@dataclass(kw_only=True, eq=False, repr=False)
class ServerStrategy(StrategySettings, Strategy):
    """What the strategies have in common; see `StrategySettings` for the settings."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._run: FederatedRun | None = None
        self._names = NameFinder(self.identity, self.ask_names)
        self._log = RunLog(self)

    @property
    def server(self) -> Server:
        """The core server: the model w, the table, the round number."""
        return self._rounds.server

    @property
    def clients(self) -> KnownClients:
        """The clients that are known, with their rows and where they were last seen."""
        return self._rounds.rows.clients

    @property
    def arrays(self) -> ArrayRecord:
        """The model as it is now."""
        return self._rounds.record

    def begin(self, initial_arrays: ArrayRecord) -> None:
        """Makes the server, or takes it up from the checkpoint; `start` does it by itself.

        Args:
            initial_arrays: The initial model; if the run goes on, only its names, shapes and
                dtypes count.

        Raises:
            CheckpointError: The folder holds another run, or is in use.
            ValueError: The model has nothing to train.
        """
        self.close()
        self._run = open_run(self, initial_arrays)

    def close(self) -> None:
        """Gives the checkpoint's folder back; `start` does it by itself."""
        if self._run is not None:
            self._run.close()

    @property
    def _begun(self) -> FederatedRun:
        if self._run is None:
            raise RuntimeError("The strategy has no model yet: call start(), or begin() first.")
        return self._run

    @property
    def _rounds(self) -> TrainingRounds:
        return self._begun.rounds

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
            grid: Flower's connection to the nodes.
            initial_arrays: The initial model, such as ``ArrayRecord(model.state_dict())``.
            num_rounds: T, the rounds before a restart included.
            timeout: Deadline of a round in seconds; evaluation has its own, as long.
            train_config: Sent to clients with each round of training.
            evaluate_config: Sent with each evaluation.
            evaluate_fn: (round, arrays) → metrics, on the server.

        Returns:
            The model, and the metrics of all rounds, those before a restart included.

        Raises:
            CheckpointError: The folder holds another run, or is in use.
            ValueError: The model has nothing to train.
        """
        began = time.monotonic()
        self.begin(initial_arrays)
        run, result = self._begun, Result()
        try:
            load_history(result, run.entries)
            log(INFO, "Starting %s strategy:", type(self).__name__)
            self.summary()
            result.arrays = self.arrays
            if not run.is_saved:
                _evaluate_centrally(evaluate_fn, 0, result)
                run.commit(history_entry(result, 0))
            first = self.server.round + 1
            for current in range(first, num_rounds + 1):
                log(INFO, "[ROUND %d/%d]", current, num_rounds)
                known = max(self.num_clients or 1, len(self.clients))
                enough = self.cohort_size(known) if current == first else self.min_replies
                wait_for_nodes(grid, self.min_available_nodes or enough, timeout)
                self._train(grid, current, timeout, train_config or ConfigRecord(), result)
                self._evaluate(grid, current, timeout, evaluate_config or ConfigRecord(), result)
                _evaluate_centrally(evaluate_fn, current, result)
                run.commit(history_entry(result, current))
        finally:
            self.close()
        log(INFO, "Strategy execution finished in %.2fs", time.monotonic() - began)
        for line in io.StringIO(str(result)):
            log(INFO, "\t%s", line.rstrip("\n"))
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draws the cohort of a round by name, and writes to it.

        Args:
            server_round: The round, counted from 1.
            arrays: The model to send.
            config: Sent along with it.
            grid: Flower's connection to the nodes.

        Returns:
            One message for each client of the cohort.
        """
        if self._run is None:
            self.begin(arrays)
        rounds = self._rounds
        self._names.find(grid, self.clients)
        online = self.clients.still_at(grid.get_node_ids())
        rounds.rows.count(len(online))
        among = self.placed(candidates(self.clients, online))
        cohort = training_cohort(
            among,
            self.cohort_size(len(among)),
            seed=self.seed,
            round=server_round - 1,
            when_offline=self.when_offline,
            sampling=self.sampling,
        )
        log(INFO, "Asking %d clients; %d nodes are online.", len(cohort), len(online))
        broadcast = rounds.send(server_round, cohort)
        if broadcast.proximal:
            config = ConfigRecord({**config, PROXIMAL: broadcast.proximal})
        content = self._content(server_round, arrays, config)
        contents = [content] * len(cohort)
        if broadcast.corrections is not None:
            layout = rounds.reader.layout
            corrections = [layout.parameter_record(row) for row in broadcast.corrections]
            contents = [RecordDict({**content, CORRECTION_RECORD: own}) for own in corrections]
        return self._messages(server_round, MessageType.TRAIN, cohort, contents)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Makes one step of the core server; a bad reply costs nothing but itself.

        Args:
            server_round: The round, counted from 1.
            replies: Whatever came back, late replies to earlier rounds among them.

        Returns:
            The new model and the clients' metrics; None and None if no reply could be used.
        """
        outcome = self._rounds.receive(server_round, list(replies), self.min_replies)
        self._log.round(self._rounds, outcome)
        if not outcome.accepted:
            return None, None
        contents = [update.content for update in outcome.accepted]
        return self.arrays, self._metrics(contents, self.train_metrics_aggr_fn)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Asks a share of the nodes online to evaluate the model.

        Args:
            server_round: The round, counted from 1.
            arrays: The model to send.
            config: Sent along with it.
            grid: Flower's connection to the nodes.

        Returns:
            One message for each client that is asked.
        """
        if self.fraction_evaluate == 0:
            return []
        online = self.clients.still_at(grid.get_node_ids())
        among = [c for c in candidates(self.clients, online) if c.node is not None]
        size = self.evaluation_size(len(among))
        cohort = evaluation_cohort(among, size, seed=self.seed, round=server_round - 1)
        contents = [self._content(server_round, arrays, config)] * len(cohort)
        return self._messages(server_round, MessageType.EVALUATE, cohort, contents)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Averages the clients' metrics; the replies may also tell who the clients are.

        Args:
            server_round: The round, counted from 1.
            replies: Whatever came back.

        Returns:
            Means weighted by examples; None if no reply could be used.
        """
        good: list[Message] = []
        for reply in replies:
            try:
                refuse_error(reply)
                examples_in(reply.content)
                good.append(reply)
            except RefusedReplyError as why:
                who = self._rounds.who(reply)
                log(WARNING, "\t> The evaluation of %s is not used: %s.", who, why)
        self._rounds.learn(good)
        contents = [reply.content for reply in good]
        return self._metrics(contents, self.evaluate_metrics_aggr_fn) if contents else None

    def summary(self) -> None:
        """Logs the settings, and how large the table is and may become."""
        self._log.summary(self._rounds)

    def _train(
        self, grid: Grid, current: int, timeout: float, config: ConfigRecord, result: Result
    ) -> None:
        messages = self.configure_train(current, result.arrays, config, grid)
        replies = self._rounds.ledger.send_and_receive(grid, messages, timeout, current)
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
        replies, _ = send_and_receive(grid, messages, timeout)
        metrics = self.aggregate_evaluate(current, replies)
        if metrics is not None:
            log(INFO, "\t└──> Aggregated MetricRecord: %s", metrics)
            result.evaluate_metrics_clientapp[current] = metrics

    def _content(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord) -> RecordDict:
        with_round = ConfigRecord({**config, "server-round": server_round})
        return RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: with_round})

    def _messages(
        self,
        server_round: int,
        kind: str,
        cohort: Sequence[Candidate],
        contents: Sequence[RecordDict],
    ) -> list[Message]:
        messages = [
            Message(content, client.node, kind, group_id=str(server_round))
            for client, content in zip(cohort, contents, strict=True)
            if client.node is not None
        ]
        self._rounds.ledger.address(server_round, messages)
        return messages

    def _metrics(
        self, contents: list[RecordDict], custom: MetricsAggregator | None
    ) -> MetricRecord:
        if custom is not None:
            return custom(contents, NUM_EXAMPLES)
        source = self.cluster_source
        cluster_key = {source} if isinstance(source, str) else set()
        return weighted_means(contents, leave_out={self.identity} | cluster_key)


def _evaluate_centrally(evaluate_fn: EvaluateFn | None, round: int, result: Result) -> None:
    metrics = None if evaluate_fn is None else evaluate_fn(round, result.arrays)
    if metrics is not None:
        log(INFO, "Global evaluation: %s", metrics)
        result.evaluate_metrics_serverapp[round] = metrics
