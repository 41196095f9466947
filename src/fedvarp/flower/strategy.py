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

from fedvarp.errors import InvalidError
from fedvarp.flower.client import (
    CORRECTION_RECORD,
    NEEDS_GRADIENTS,
    PROXIMAL,
    correction_record,
)
from fedvarp.flower.cohort import (
    Candidate,
    Candidates,
    evaluation_cohort,
    selected_cohort,
    training_cohort,
    wait_for_nodes,
)
from fedvarp.flower.failures import FailedRounds
from fedvarp.flower.forgetting import unknown_client
from fedvarp.flower.identity import KnownClients, Presence
from fedvarp.flower.ledger import send_and_receive
from fedvarp.flower.name_finder import NameFinder
from fedvarp.flower.replies import RefusedReplyError, examples_in, refuse_error, shown
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
        self._timeout: float | None = 3600.0  # that of `start`
        self._names = NameFinder(self.identity, self.ask_names)
        self._failed = FailedRounds(self.max_failed_rounds)
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
        return self._begun.record_to_give()

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

    def forget(self, name: str) -> None:
        """Lets go of a client that has left, or asks for it: of its row, its name and its history.

        They are gone from memory and from the checkpoint's file, also if the run ends now. What the
        model has learned from the client stays in the model. Should it answer once more it is a
        new client: end its SuperNode first. For a run that is over: ``fedvarp flower forget``.

        Args:
            name: What the client is known by: see `clients`.

        Raises:
            ValueError: There is no client of that name.
            CheckpointError: The run is over, and its folder was given back.
        """
        client = self.clients.named(name)
        if client is None:
            raise InvalidError(unknown_client(name, [client.name for client in self.clients]))
        self._begun.forget(client)

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
        timeout: float | None = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Trains up to round `num_rounds`, from the last round in the checkpoint.

        Args:
            grid: Flower's connection to the nodes.
            initial_arrays: The initial model, such as ``ArrayRecord(model.state_dict())``.
            num_rounds: T, the rounds before a restart included.
            timeout: Deadline of a round in seconds; evaluation has its own, as long. None: there is
                none.
            train_config: Sent to clients with each round of training. It is the same object in all
                rounds: what a `configure_train` of your own sets in it stays.
            evaluate_config: Sent with each evaluation.
            evaluate_fn: (round, arrays) → metrics, on the server.

        Returns:
            The model, and the metrics of all rounds, those before a restart included.

        Raises:
            CheckpointError: The folder holds another run, or is in use.
            NoUsableReplyError: See `max_failed_rounds`.
            ValueError: The model has nothing to train.
        """
        began = time.monotonic()
        self._timeout = timeout
        self.begin(initial_arrays)
        run, result = self._begun, Result()
        run.commits_rounds = True
        train_config = ConfigRecord() if train_config is None else train_config
        evaluate_config = ConfigRecord() if evaluate_config is None else evaluate_config
        try:
            load_history(result, run.entries)
            log(INFO, "Starting %s strategy:", type(self).__name__)
            self.summary()
            result.arrays = self.arrays
            if not run.is_saved:
                _evaluate_centrally(evaluate_fn, 0, result)
                run.commit(history_entry(result, 0))
            for current in range(self.server.round + 1, num_rounds + 1):
                log(INFO, "[ROUND %d/%d]", current, num_rounds)
                self._train(grid, current, train_config, result)
                self._evaluate(grid, current, evaluate_config, result)
                _evaluate_centrally(evaluate_fn, current, result)
                run.commit(history_entry(result, current))
                if self.after_round is not None and self.after_round(current, result):
                    break
        finally:
            self.close()
        log(INFO, "Strategy execution finished in %.2fs", time.monotonic() - began)
        for line in io.StringIO(str(result)):
            log(INFO, "\t%s", line.rstrip("\n"))
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Waits for enough nodes, draws the cohort of a round by name, and writes to it.

        Args:
            server_round: The round, counted from 1.
            arrays: The model to send. If it is another than the last one that was given back, the
                run goes on from it.
            config: Sent along with it.
            grid: Flower's connection to the nodes.

        Returns:
            One message for each client of the cohort; none if there are too few nodes.
        """
        if self._run is None:
            self.begin(arrays)
        self._begun.follow(server_round, arrays)
        arrays = self._begun.model_to_send(arrays)
        if self.fraction_train == 0 and self.clients_per_round is None:
            return []
        round, rounds = self._begun.number_of(server_round), self._rounds
        first = 0 if rounds.ledger.has_asked else (self.clients_per_round or 0)
        nodes = wait_for_nodes(grid, max(self.least_online, first), self._timeout)
        if len(nodes) < self.least_online:
            log(WARNING, "Fewer than %d nodes are online: nobody is asked.", self.least_online)
            return []
        presence = self._look_around(grid, nodes, round)
        among = self.placed(Candidates(self.clients, presence))
        cohort = self._cohort(among, len(presence.online), round)
        log(INFO, "Asking %d clients; %d nodes are online.", len(cohort), len(presence.online))
        broadcast = rounds.sending.send(round, cohort)
        if broadcast.proximal:
            config[PROXIMAL] = broadcast.proximal
        if self.normalise_steps or self.server.aggregator.needs_gradients:
            config[NEEDS_GRADIENTS] = True
        content = self._content(round, arrays, config)
        contents = [content] * len(cohort)
        if broadcast.corrections is not None:
            layout = rounds.reader.layout
            own = [layout.parameter_record(row) for row in broadcast.corrections]
            contents = [
                RecordDict({**content, CORRECTION_RECORD: correction_record(correction)})
                for correction in own
            ]
        messages = self._messages(round, MessageType.TRAIN, cohort, contents)
        rounds.ledger.will_be_read(round, messages, arrays)
        return messages

    def _look_around(self, grid: Grid, nodes: list[int], round: int) -> Presence:
        """Finds out who is there, and lets rows count accordingly."""
        self._names.find(grid, self._rounds.rows, nodes, self._timeout)
        self._begun.look_around(self.clients.look(nodes))
        presence = self.clients.look(nodes)
        self._rounds.count(round, presence)
        return presence

    def _cohort(self, among: Sequence[Candidate], num_online: int, round: int) -> list[Candidate]:
        if self.select is not None:
            return selected_cohort(among, round, self.select)
        return training_cohort(
            among,
            self.cohort_size(num_online if self.when_offline == "replace" else len(among)),
            seed=self.seed,
            round=round - 1,
            when_offline=self.when_offline,
            sampling=self.sampling,
            uniform_share=self.uniform_share,
        )

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Makes one step of the core server; a bad reply costs nothing but itself.

        Args:
            server_round: The round, counted from 1.
            replies: Whatever came back, late replies to earlier rounds among them.

        Returns:
            The new model and the clients' metrics; None and None if no reply could be used.

        Raises:
            NoUsableReplyError: See `max_failed_rounds`.
        """
        run, received = self._begun, list(replies)
        run.listen(server_round, received)
        round = run.number_of(server_round)
        asked = run.rounds.ledger.asked_in(round)
        num_asked = len(received) if asked is None or asked.is_open else len(asked.rows)
        outcome = run.rounds.receive(round, received, self.min_replies)
        self._log.round(run.rounds, outcome)
        if self.fraction_train > 0 or self.clients_per_round is not None:
            self._failed.note(outcome, num_asked)
        if not run.commits_rounds:
            run.commit({})
        if not outcome.accepted:
            return None, None
        contents = [update.content for update in outcome.accepted]
        return run.record_to_give(), self._metrics(contents, self.train_metrics_aggr_fn)

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
        presence = self.clients.look(grid.get_node_ids())
        among = Candidates(self.clients, presence).online()
        least = max(self.min_available_nodes, self.min_evaluate_nodes)
        if len(among) < least:
            log(WARNING, "Fewer than %d nodes are online: nobody evaluates the model.", least)
            return []
        round, size = self._begun.number_of(server_round), self.evaluation_size(len(among))
        cohort = evaluation_cohort(among, size, seed=self.seed, round=round - 1)
        contents = [self._content(round, arrays, config)] * len(cohort)
        return self._messages(round, MessageType.EVALUATE, cohort, contents)

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
                examples_in(reply.content, self.weighted_by_key)
                good.append(reply)
            except RefusedReplyError as why:
                who = self._rounds.reception.who(reply)
                log(WARNING, "\t> The evaluation of %s is not used: %s.", who, shown(str(why)))
        self._rounds.reception.learn(good)
        contents = [reply.content for reply in good]
        return self._metrics(contents, self.evaluate_metrics_aggr_fn) if contents else None

    def summary(self) -> None:
        """Logs the settings, and how large the table is and may become."""
        self._log.summary(None if self._run is None else self._rounds)

    def _train(self, grid: Grid, current: int, config: ConfigRecord, result: Result) -> None:
        messages = list(self.configure_train(current, result.arrays, config, grid))
        if messages and self._rounds.ledger.asked_in(current) is None:
            self._look_around(grid, list(grid.get_node_ids()), current)
        self._rounds.sending.note(current, messages, result.arrays)
        replies = self._rounds.ledger.send_and_receive(grid, messages, self._timeout, current)
        arrays, metrics = self.aggregate_train(current, replies)
        if arrays is not None:
            result.arrays = arrays
        if metrics is not None:
            log(INFO, "\t└──> Aggregated MetricRecord: %s", metrics)
            result.train_metrics_clientapp[current] = metrics

    def _evaluate(self, grid: Grid, current: int, config: ConfigRecord, result: Result) -> None:
        messages = self.configure_evaluate(current, result.arrays, config, grid)
        replies, _ = send_and_receive(grid, messages, self._timeout)
        metrics = self.aggregate_evaluate(current, replies)
        if metrics is not None:
            log(INFO, "\t└──> Aggregated MetricRecord: %s", metrics)
            result.evaluate_metrics_clientapp[current] = metrics

    def _content(self, round: int, arrays: ArrayRecord, config: ConfigRecord) -> RecordDict:
        config["server-round"] = round  # in place, as in Flower
        return RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})

    def _messages(
        self, round: int, kind: str, cohort: Sequence[Candidate], contents: Sequence[RecordDict]
    ) -> list[Message]:
        messages = [
            Message(content, client.node, kind, group_id=str(round))
            for client, content in zip(cohort, contents, strict=True)
            if client.node is not None
        ]
        self._rounds.ledger.address(round, messages)
        return messages

    def _metrics(
        self, contents: list[RecordDict], custom: MetricsAggregator | None
    ) -> MetricRecord:
        if custom is not None:
            return custom(contents, self.weighted_by_key)
        source = self.cluster_source
        cluster_key = {source} if isinstance(source, str) else set()
        leave_out = {self.identity} | cluster_key
        return weighted_means(contents, self.weighted_by_key, leave_out, self.claims_within)


def _evaluate_centrally(evaluate_fn: EvaluateFn | None, round: int, result: Result) -> None:
    metrics = None if evaluate_fn is None else evaluate_fn(round, result.arrays)
    if metrics is not None:
        log(INFO, "Global evaluation: %s", metrics)
        result.evaluate_metrics_serverapp[round] = metrics
