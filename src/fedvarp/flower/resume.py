"""Begins a run, or takes it up again where its checkpoint left it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from logging import WARNING
from typing import TYPE_CHECKING, Any, Final

from flwr.app import ArrayRecord, Message
from flwr.supercore import log

from fedvarp.algorithms.aggregator import Aggregator
from fedvarp.algorithms.registry import TableSettings, make_algorithm
from fedvarp.errors import InvalidError
from fedvarp.flower.arrays import Layout
from fedvarp.flower.identity import Client, KnownClients, Presence
from fedvarp.flower.ledger import Ledger
from fedvarp.flower.names import name_order
from fedvarp.flower.replies import ReplyReader
from fedvarp.flower.round import TrainingRounds
from fedvarp.flower.rows import ClientRows, Clusters
from fedvarp.flower.units import UpdateUnits
from fedvarp.server.checkpoint import Checkpoint, CheckpointError
from fedvarp.server.server import Server
from fedvarp.server.step_checks import refuse_belief_in_lengths
from fedvarp.settings.calls import written_call
from fedvarp.settings.problems import SettingsError
from fedvarp.tables.partial import numbers_kept
from fedvarp.tables.settings import Table, clip_multiple

if TYPE_CHECKING:
    from fedvarp.flower.settings import StrategySettings

Entries = Mapping[str, Mapping[str, Any]]

_WHY_UNCHANGING: Final = {
    "seed": "its cohorts would be others",
    "sampling": "its cohorts would be drawn otherwise",
    "identity": "nobody would find their row again",
    "weighting": "it would be trained for another objective",
    "weighted_by_key": "it would be trained for another objective",
    "client_lr": "old and new rows would be in different units (clients whose rate changes report "
    "it, as 'client-lr', from the first round on)",
    "normalise_steps": "old and new rows would be in different units, and it would be trained for "
    "another objective",
}

_ONCE_THE_ONLY_WAY: Final = {"sampling": "uniform", "weighted_by_key": "num-examples"}


@dataclass(eq=False)
class FederatedRun:
    """The rounds of a run, and the checkpoint that keeps them.

    Attributes:
        rounds: From replies to steps of the server.
        checkpoint: Where each round is saved; None: nowhere.
        unchanging: The settings that must stay the same while the run lasts.
        entries: What the checkpoint held of clients and history when the run was taken up.
        is_resumed: Whether it was taken up and has not looked yet who is still there.
        commits_rounds: Whether somebody else commits each round, as `start` does.
    """

    rounds: TrainingRounds
    checkpoint: Checkpoint | None
    unchanging: Mapping[str, Any]
    entries: Entries
    is_resumed: bool
    commits_rounds: bool = False
    _rounds_before: int = 0
    _is_closed: bool = False
    _given: ArrayRecord | None = None  # the model as it was last given away
    _superseded: ArrayRecord | None = None  # what somebody began with who knew of no checkpoint

    def follow(self, server_round: int, arrays: ArrayRecord | None) -> None:
        """Takes its rounds from a loop of somebody else's, which begins anew after a restart.

        Args:
            server_round: The number of the loop's first round.
            arrays: The model that the loop begins with; None: nobody knows.
        """
        if self.is_resumed:
            self._rounds_before = self.rounds.server.round + 1 - server_round
            self._superseded = None if arrays is self._given else arrays

    def listen(self, server_round: int, replies: Sequence[Message]) -> None:
        """Follows a loop that has sent messages of its own: replies are the first that is seen.

        Who has not answered is taken to be gone, as no list of nodes says otherwise.

        Args:
            server_round: The number of the loop's first round.
            replies: Its replies.
        """
        if replies and self.is_resumed:
            self.follow(server_round, None)
            heard = sorted({reply.metadata.src_node_id for reply in replies})
            self.look_around(self.rounds.rows.clients.look(heard))

    def number_of(self, server_round: int) -> int:
        """The number of a round, those before a restart included.

        Args:
            server_round: As whoever runs the loop counts.

        Returns:
            The same, unless the loop began anew.
        """
        return server_round + self._rounds_before

    def record_to_give(self) -> ArrayRecord:
        """The model as Flower sends it; remembered, to know it again."""
        self._given = self.rounds.record
        return self._given

    def model_to_send(self, arrays: ArrayRecord) -> ArrayRecord:
        """The model of a round: the server's, or what others have made of it since.

        Args:
            arrays: What the loop would send.

        Returns:
            The model that is sent, which the server has, too.

        Raises:
            ValueError: It is another kind of model, or holds NaN or infinity.
        """
        if arrays is self._superseded:
            return self.record_to_give()
        if arrays is not self._given:
            self.rounds.adopt(arrays)
            self._given = arrays
        return arrays

    @property
    def is_saved(self) -> bool:
        """Whether the checkpoint holds this run already."""
        return self.checkpoint is not None and self.checkpoint.round is not None

    def look_around(self, presence: Presence) -> None:
        """Drops what a run that goes on has kept of clients nobody can know again.

        Those without a name go by the id of their node. In a simulation ids are new each time; on a
        deployment a SuperNode that is still there has kept its own, and its row.

        Args:
            presence: Who is there.
        """
        if not self.is_resumed:
            return
        self.is_resumed, rows = False, self.rounds.rows
        gone = [client for client in rows.clients if client.row in presence.gone]
        dropped = sum(client.last_round > 0 for client in gone)
        for client in gone:
            rows.forget(client, in_shared_rows=False)
        if dropped:
            log(
                WARNING,
                "%d clients that do not say who they are went by the ids of nodes that are gone: "
                "their rows were dropped, and the run goes on with a table of %d rows. Let clients "
                "report %r to keep theirs.",
                dropped,
                sum(client.last_round > 0 for client in rows.clients),
                self.rounds.identity,
            )

    def commit(self, history: Entries) -> None:
        """Saves the round in one transaction; does nothing without a checkpoint.

        Args:
            history: The round's entry of the history.
        """
        if self.checkpoint is None:
            return
        rounds, clients, clusters = self.rounds, self.rounds.rows.clients, self.rounds.rows.clusters
        self.checkpoint.commit(
            rounds.server,
            tensors=rounds.buffers,
            notes={
                "settings": dict(self.unchanging),
                "layout": rounds.reader.layout.digest,
                "clients": clients.state_dict(),
                "units": rounds.units.state_dict(),
                "clusters": None if clusters is None else clusters.state_dict(),
            },
            entries={**clients.changed_entries(), **history},
        )
        clients.saved()

    def forget(self, client: Client) -> None:
        """Lets go of a client, in memory and in the checkpoint's file, which is written anew.

        Args:
            client: The client.

        Raises:
            CheckpointError: The folder was given back.
        """
        if self.checkpoint is not None and self._is_closed:
            folder = self.checkpoint.store.path
            raise CheckpointError(
                f"The run is over, and {folder} was given back; nothing was changed. To erase "
                f"{client.name!r} there: fedvarp flower forget {folder} {client.name}"
            )
        self.rounds.forget(client)
        self.commit({})
        if self.checkpoint is not None:
            self.checkpoint.store.compact()

    def close(self) -> None:
        """Gives the checkpoint's folder back."""
        self._is_closed = True
        table = self.rounds.server.aggregator.table
        for rows in () if table is None else table.tables():
            rows.close()
        if self.checkpoint is not None:
            self.checkpoint.close()


def open_run(settings: StrategySettings, initial: ArrayRecord) -> FederatedRun:
    """Makes the run that a strategy describes, from its checkpoint if there is one.

    Args:
        settings: Those of the strategy.
        initial: The initial model; only its names, shapes and dtypes count in a run that goes on.

    Returns:
        The run, which has to be closed.

    Raises:
        CheckpointError: The folder holds another run.
        ValueError: The model has nothing to train.
    """
    layout = Layout.of(initial)
    in_memory = _table_settings(settings, layout, {}, *_clients_and_clusters(settings, None, {}))
    _aggregator(settings, replace(in_memory, folder=None))  # refuses before there is a file
    with contextlib.ExitStack() as opened:  # what was opened is closed if the rest cannot be
        checkpoint = None
        if settings.checkpoint is not None:
            checkpoint = Checkpoint(settings.checkpoint, keep=settings.keep_checkpoints)
            opened.callback(checkpoint.close)
            _refuse_another_run(checkpoint, layout, settings)
        entries = {} if checkpoint is None else checkpoint.entries()
        clients, clusters = _clients_and_clusters(settings, checkpoint, entries)
        saved = (checkpoint.server_description if checkpoint else None) or {}
        table = _table_settings(settings, layout, saved, clients, clusters)
        aggregator = _aggregator(settings, table)
        for rows in () if aggregator.table is None else aggregator.table.tables():
            opened.callback(rows.close)
        server = Server(layout.vector(initial), aggregator, settings.make_server_optimizer())
        units = UpdateUnits(settings.client_lr, settings.normalise_steps, settings.claims_within)
        buffers = layout.read_buffers(initial)
        if checkpoint is not None and checkpoint.restore(server):
            units.load_state_dict(checkpoint.notes["units"])
            buffers = checkpoint.tensors()
        opened.pop_all()
    by_examples = settings.weighting == "examples"
    sends_corrections = type(aggregator.unwrapped).corrections is not Aggregator.corrections
    rounds = TrainingRounds(
        server=server,
        buffers=buffers,
        rows=ClientRows(aggregator.table, clients, clusters, settings.num_clients, by_examples),
        reader=ReplyReader(
            layout,
            settings.arrayrecord_key,
            settings.max_update_norm,
            steps_needed=sends_corrections or settings.normalise_steps,
            weighted_by=settings.weighted_by_key,
        ),
        units=units,
        ledger=Ledger(settings.late_replies),
        identity=settings.identity,
        sends_corrections=sends_corrections,
        weighted_by_examples=by_examples,
        max_row_age=settings.max_row_age,
        lr_key=settings.client_lr_key,
    )
    if clusters is not None:
        for name in sorted(clusters.names, key=name_order):
            rounds.rows.place(clients.meet(name), clusters.label_of(name, None))
    is_resumed = checkpoint is not None and checkpoint.round is not None
    return FederatedRun(rounds, checkpoint, settings.unchanging, entries, is_resumed)


def _clients_and_clusters(
    settings: StrategySettings, checkpoint: Checkpoint | None, entries: Entries
) -> tuple[KnownClients, Clusters | None]:
    clients = KnownClients()
    source = settings.cluster_source
    clusters = None if source is None else Clusters(source)
    if checkpoint is not None and checkpoint.round is not None:
        clients.load_state_dict(checkpoint.notes["clients"], entries)
        if clusters is not None:
            clusters.load_state_dict(checkpoint.notes["clusters"])
    return clients, clusters


def _table_settings(
    settings: StrategySettings,
    layout: Layout,
    saved: Mapping[str, Any],
    clients: KnownClients,
    clusters: Clusters | None,
) -> TableSettings:
    N = saved.get("num_clients", max(1, settings.num_clients or 0))
    return TableSettings(
        num_clients=N,
        dim=layout.dim,
        codec=settings.codec,
        folder=str(settings.checkpoint) if settings.where == "disk" else None,
        cluster_of=None if clusters is None else clusters.cluster_of(clients, N),
        num_clusters=0 if clusters is None else clusters.num_rows,
        max_rows=settings.max_rows,
        parameters={slot.name: slice(slot.start, slot.stop) for _, slot in layout.parameters},
        kept=Table(rows=settings.rows).parameters_kept,
        clip_updates=clip_multiple(settings.clip_updates),
    )


def _aggregator(settings: StrategySettings, table: TableSettings) -> Aggregator:
    who = type(settings).__name__
    if table.kept is not None:
        try:
            numbers_kept(table.kept, table.parameters)
        except SettingsError as error:  # whose setting has another name in simulations
            raise InvalidError(f"{who}: {error}") from None
    made = make_algorithm(written_call(settings.algorithm, settings.algorithm_options), table)
    weighted = settings.sampling == "importance" or settings.weighting != "uniform"
    if made.needs_equal_weights and weighted:
        raise InvalidError(
            f"{who} counts all clients of a cohort the same: neither "
            f'sampling="importance" nor weighting="examples" goes with it.'
        )
    refuse_belief_in_lengths(made, settings.make_server_optimizer())
    return made


def _refuse_another_run(checkpoint: Checkpoint, layout: Layout, settings: StrategySettings) -> None:
    if checkpoint.round is None:
        return
    folder, notes = checkpoint.store.path, checkpoint.notes
    if notes.get("layout") != layout.digest:  # a run without Flower has no such note
        raise CheckpointError(
            f"The run in {folder} has a model with other arrays. Start with the model it was begun "
            f"with, or choose another folder; nothing was changed."
        )
    begun_with = {**_ONCE_THE_ONLY_WAY, **notes["settings"]}
    if unknown := settings.unchanging.keys() - begun_with.keys():
        raise CheckpointError(
            f"The run in {folder} was begun by a version of fedvarp without the setting "
            f"{', '.join(sorted(unknown))}: its rows may be in other units. Go on with that "
            f"version, or choose another folder; nothing was changed."
        )
    clustered = settings.cluster_source is not None
    if clustered != (notes["clusters"] is not None):
        begun, now = ("without", "with") if clustered else ("with", "without")
        raise CheckpointError(
            f"The run in {folder} was begun {begun} clusters, and this strategy is {now} them. Use "
            f"the one it was begun with, or choose another folder; nothing was changed."
        )
    for name, value in settings.unchanging.items():
        if begun_with[name] != value:
            raise CheckpointError(
                f"The run in {folder} was begun with {name}={begun_with[name]!r}, not "
                f"{value!r}: {_WHY_UNCHANGING[name]}. Use the settings it was begun with, or "
                f"choose another folder; nothing was changed."
            )
