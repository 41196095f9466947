"""The settings that all strategies share, and what they refuse."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

from flwr.serverapp.strategy import Result
from pydantic import Field

from fedvarp.algorithms.names import ALGORITHMS
from fedvarp.errors import InvalidError
from fedvarp.flower.cohort import Candidate, Sampling, Select, WhenOffline
from fedvarp.flower.replies import RefusedReplyError
from fedvarp.flower.reporting import MetricsAggregator
from fedvarp.flower.rows import Clusters, ClusterSource
from fedvarp.server.names import make_server_optimizer
from fedvarp.server.optimizers import ServerOptimizer
from fedvarp.settings.bounds import (
    AboveOne,
    Count,
    Decay,
    KeepCheckpoints,
    Positive,
    Seed,
    Share,
)
from fedvarp.settings.checked import check_fields
from fedvarp.settings.names import options_of
from fedvarp.settings.problems import SettingsError
from fedvarp.tables.codecs import codec_named
from fedvarp.tables.settings import ClipUpdates

Weighting = Literal["uniform", "examples"]
Strata = Mapping[str | int, str | int] | Callable[[str], str | int]


@dataclass(kw_only=True, eq=False, repr=False)
class StrategySettings:
    """The settings of a strategy, all of them keywords with a default.

    Attributes:
        num_clients: N, everybody who may ever take part; a reply of one more is refused. None: as
            many as have turned up.
        clients_per_round: M, how many clients train in a round; None: `fraction_train` of them.
        fraction_train: Share of the nodes online that train in a round, unless
            `clients_per_round` is given; 0: no training.
        fraction_evaluate: Share of the nodes online that evaluate the model after a round; 0: no
            evaluation on clients.
        min_train_nodes: How many train at least, however small `fraction_train` is.
        min_evaluate_nodes: How many evaluate at least.
        min_available_nodes: How many nodes must be online for a round; it is waited for them while
            its timeout lasts, and nobody is asked if there are fewer then. A first round waits for
            `clients_per_round` of them too.
        seed: The same seed gives the same cohorts, whatever Flower's node ids are.
        sampling: How cohorts are drawn: "uniform"ly; "stratified", from each cluster its share;
            "round_robin", clients in turn; or by "importance", those online whose last update was
            far from their row more often, with weights that make up for it.
        uniform_share: With sampling="importance" the part of each client's chance that it has
            whatever was seen of it, above 0; None: 0.2.
        strata: With sampling="stratified" the cluster of each client: {name: cluster}, or a
            function from a client's name to it. None: the clusters of `ClusterFedVARP`. Clients
            whose cluster is not known make one of their own.
        server_lr: η_s, the server's learning rate; None: the optimiser's own default, for "sgd"
            the paper's 1.0.
        server_optimizer: "sgd" unless given, another name in `fedvarp.server.SERVER_OPTIMIZERS`,
            the import path of one of your own, or an optimiser such as `fedvarp.ServerMomentum`.
        client_lr: η_c where neither clients report "client-lr" nor the configuration that they are
            sent holds it. It cancels out where it is the same in all rounds (but in SCAFFOLD, whose
            variates are gradients), and must stay the same while a run lasts.
        client_lr_key: Where the configuration of a round holds the rate; None: "lr",
            "learning-rate" or another of the usual names.
        normalise_steps: False: an update is the plain difference of models, so that clients count
            by how far they walk, nearly by their local steps, as in everybody's FedAvg. True: it
            is divided by the client's number of steps (FedNova), so that each client counts once,
            and clients must report "num-steps".
        weighting: How much clients count, in the mean of a round's replies and in that of all rows:
            "examples", by the number they report under `weighted_by_key`, as in Flower's FedAvg; or
            "uniform", all the same, as in the paper.
        weighted_by_key: The metric that says how much a client counts.
        checkpoint: Folder that holds the run; started again with it, the run goes on. None: a
            restart begins anew.
        keep_checkpoints: How many of the last rounds it holds, to go back to if those after them
            are damaged; they share all rows that did not change.
        where: Where the table of client states lives, "memory" or "disk"; "disk" needs
            `checkpoint`.
        codec: How its rows are stored: float32, bfloat16, float16 or int8.
        rows: Of which numbers rows are kept: "all", "last_layer", or patterns of arrays' names
            separated by commas, such as "fc3.*"; elsewhere the algorithm is FedAvg.
        max_rows: How many clients may have a row at a time: the oldest rows are dropped, and
            whoever had them counts as never seen. None: all.
        max_row_age: Rounds after which the row of a client that was not heard of any more is
            dropped; it then counts as never seen. None: rows stay until their client is forgotten.
        identity: What a client is known by: the key it reports ("partition-id", or any other),
            "supernode-key" or "node-id".
        ask_names: Whether nodes are asked once for their name before they are first drawn, so that
            cohorts follow the seed from round 1; clients answer with
            `fedvarp.flower.answer_identity`, and those that do not show an error.
        select: (round, names of the clients online) → names of those who train, in place of a draw.
        when_offline: A client that is drawn and offline is replaced ("replace"), or the round has
            fewer ("fewer").
        min_replies: With fewer good replies a round changes nothing.
        max_failed_rounds: With so many rounds running of which no reply could be used the run
            fails, and says why; None: it goes on whatever happens.
        late_replies: Rounds for which a late reply still refreshes its client's row; 0: never.
        max_update_norm: Longest update that is believed, ‖w − w_i‖, and as long as it is when it is
            used; None: any.
        claims_within: By which factor what a client says of itself (its examples, its steps) may
            differ from the running median of what clients say; it counts as that much if it says
            more, or less. None: any.
        clip_updates: How long an update may be before it is shortened: "median", 3 times the
            running median of the norms of updates; another multiple of it above 1; None or False:
            as long as it is. Clients are strangers, and a row is replayed until its client returns.
        arrayrecord_key: Name of the record that holds the model in a message.
        configrecord_key: Name of the record that holds the configuration.
        train_metrics_aggr_fn: As in Flower's FedAvg; None: means weighted by examples.
        evaluate_metrics_aggr_fn: The same for evaluations.
        after_round: (round, Flower's `Result` so far) → whether the run ends here; called when a
            round is over and saved, to keep the best model or to log.
    """

    algorithm: ClassVar[str]

    num_clients: Count | None = None
    clients_per_round: Count | None = None
    fraction_train: Share = 1.0
    fraction_evaluate: Share = 1.0
    min_train_nodes: Count = 2
    min_evaluate_nodes: Count = 2
    min_available_nodes: Count = 2
    seed: Seed = 0
    sampling: Sampling = "uniform"
    strata: Strata | None = None
    uniform_share: Decay | None = None
    server_lr: Positive | None = None
    server_optimizer: str | ServerOptimizer | None = None
    client_lr: Positive = 1.0
    client_lr_key: str | None = None
    normalise_steps: bool = False
    weighting: Weighting = "examples"
    weighted_by_key: Annotated[str, Field(min_length=1)] = "num-examples"
    checkpoint: str | os.PathLike[str] | None = None
    keep_checkpoints: KeepCheckpoints = 2
    where: Literal["memory", "disk"] = "memory"
    codec: str = "float32"
    rows: Annotated[str, Field(min_length=1)] = "all"
    max_rows: Count | None = None
    max_row_age: Count | None = None
    identity: Annotated[str, Field(min_length=1, examples=['"partition-id"'])] = "partition-id"
    ask_names: bool = False
    select: Select | None = None
    when_offline: WhenOffline = "replace"
    min_replies: Count = 1
    max_failed_rounds: Count | None = 3
    late_replies: Seed = 10
    max_update_norm: Positive | None = None
    claims_within: AboveOne | None = 10.0
    clip_updates: ClipUpdates | Literal[False] = "median"
    arrayrecord_key: str = "arrays"
    configrecord_key: str = "config"
    train_metrics_aggr_fn: MetricsAggregator | None = None
    evaluate_metrics_aggr_fn: MetricsAggregator | None = None
    after_round: Callable[[int, Result], object] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.sampling == "importance" and self.weighting != "uniform":
            raise InvalidError(
                f'{type(self).__name__}: sampling="importance" has weights of its own, for clients '
                f"that all count the same; weighting={self.weighting!r} does not go with it. Give "
                f'weighting="uniform".'
            )
        if self.uniform_share is not None and self.sampling != "importance":
            raise InvalidError(f'{type(self).__name__}: uniform_share goes with "importance".')
        clustered = self.strata is not None or self.cluster_source is not None
        if self.sampling == "stratified" and not clustered:
            raise InvalidError(
                f'{type(self).__name__}: sampling="stratified" needs the cluster of each client: '
                f"give strata={{name: cluster}}, or a function of the name."
            )
        if self.strata is not None and self.sampling != "stratified":
            raise InvalidError(f'{type(self).__name__}: strata go with sampling="stratified".')
        codec_named(self.codec)
        if self.where == "disk" and self.checkpoint is None:
            raise InvalidError(
                f"{type(self).__name__}: where='disk' needs a folder for the rows; give "
                f"checkpoint='some/folder'."
            )
        if isinstance(self.server_optimizer, ServerOptimizer) and self.server_lr is not None:
            raise InvalidError(
                f"{type(self).__name__}: give server_lr or server_optimizer, which has a rate of "
                f"its own; not both."
            )
        least = self.clients_per_round
        if least is None and self.fraction_train > 0 and self.select is None:
            least = self.min_train_nodes
        if self.max_rows is not None and least is not None and self.max_rows < least:
            raise InvalidError(
                f"{type(self).__name__}: max_rows={self.max_rows} is less than a cohort of "
                f"{least}, whose rows should fit."
            )
        source = self.cluster_source
        if isinstance(source, str) and source.startswith("auto:"):
            raise InvalidError(
                f"{type(self).__name__}: clusters={source!r}, found from gradients, are for "
                f"simulations: here nobody can be asked for a gradient. Give clusters={{name: "
                f"cluster}}, a function of the name, or the key under which clients report theirs."
            )
        if isinstance(source, Mapping) and not source:
            raise InvalidError(
                f"{type(self).__name__}: clusters={{}} names no client, and whoever has no cluster "
                f"is not used. Give the cluster of each client, by its name."
            )
        try:
            self.make_server_optimizer()
        except SettingsError as error:
            raise SettingsError(f"{type(self).__name__}: {error}") from None
        if self.clients_per_round is not None and self.min_replies > self.clients_per_round:
            raise InvalidError(
                f"{type(self).__name__}: min_replies={self.min_replies} can never be reached with "
                f"clients_per_round={self.clients_per_round}."
            )

    @property
    def algorithm_options(self) -> dict[str, Any]:
        """What the algorithm is made with beside its table: settings of the same name."""
        names = options_of(ALGORITHMS.find(self.algorithm), but_required=True).model_fields
        return {name: getattr(self, name) for name in names if hasattr(self, name)}

    @property
    def cluster_source(self) -> ClusterSource | None:
        """Where clusters come from, `clusters`; None: each client has a row of its own."""
        return getattr(self, "clusters", None)

    @property
    def unchanging(self) -> dict[str, Any]:
        """What must stay the same while a run lasts, for its checkpoint."""
        return {
            "seed": self.seed,
            "identity": self.identity,
            "weighting": self.weighting,
            "weighted_by_key": self.weighted_by_key,
            "client_lr": self.client_lr,
            "normalise_steps": self.normalise_steps,
            "sampling": self.sampling
            if self.uniform_share is None
            else f"{self.sampling}(uniform_share={self.uniform_share})",
        }

    def placed(self, among: Sequence[Candidate]) -> Sequence[Candidate]:
        """Says of candidates to which of the strata they belong, if strata are given.

        Args:
            among: Those among whom a cohort is drawn.

        Returns:
            The same, in the same order.
        """
        if self.strata is None:
            return among
        strata, placed = Clusters(self.strata), []
        for candidate in among:
            with contextlib.suppress(RefusedReplyError):  # whoever nobody knows the cluster of
                candidate = replace(candidate, cluster=strata.label_of(candidate.name, None))
            placed.append(candidate)
        return placed

    def make_server_optimizer(self) -> ServerOptimizer:
        """The server's optimiser, by `server_optimizer` and `server_lr`."""
        given = self.server_optimizer or "sgd"
        rate = {} if self.server_lr is None else {"lr": self.server_lr}
        return make_server_optimizer(given, **rate)

    def cohort_size(self, num_clients: int) -> int:
        """How many clients train in a round.

        Args:
            num_clients: How many there are.

        Returns:
            M, which may be more than there are.
        """
        if self.clients_per_round is not None:
            return self.clients_per_round
        return max(int(self.fraction_train * num_clients), self.min_train_nodes)

    @property
    def least_online(self) -> int:
        """How many nodes must be online for a round."""
        by_share = self.clients_per_round is None
        return max(self.min_available_nodes, self.min_train_nodes if by_share else 1)

    def evaluation_size(self, num_online: int) -> int:
        """How many clients evaluate the model after a round.

        Args:
            num_online: How many nodes are online.

        Returns:
            Their number, which may be more than there are.
        """
        return max(int(self.fraction_evaluate * num_online), self.min_evaluate_nodes)
