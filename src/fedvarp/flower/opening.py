"""Makes the server of a federation, or takes it up again where its checkpoint left it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from flwr.app import ArrayRecord

from fedvarp.algorithms import Aggregator, ClusterFedVARP
from fedvarp.algorithms.registry import TableSettings, make_algorithm
from fedvarp.flower.arrays import Layout
from fedvarp.flower.clusters import Clusters
from fedvarp.flower.federation import Federation
from fedvarp.flower.identity import Identities, name_order
from fedvarp.flower.replies import ReplyReader
from fedvarp.flower.units import Units
from fedvarp.server.checkpoint import Checkpoint, CheckpointError
from fedvarp.server.optimizers import ServerSGD
from fedvarp.server.server import Server
from fedvarp.tables.clustered import ClusteredTable

if TYPE_CHECKING:
    from fedvarp.flower.settings import StrategySettings

Entries = dict[str, dict[str, Any]]

_WHY_UNCHANGING: Final = {
    "seed": "its cohorts would be others",
    "identity": "nobody would find their row again",
    "weighting": "it would be trained for another objective",
    "client_lr": "old and new rows would be in different units (clients whose rate changes report "
    "it, as 'client-lr', from the first round on)",
}


def open_federation(strategy: StrategySettings, arrays: ArrayRecord) -> tuple[Federation, Entries]:
    """The federation that a strategy describes, and the entries of its checkpoint.

    Args:
        strategy: The settings.
        arrays: The initial model; only its names, shapes and dtypes count in a run that goes on.
    """
    layout = Layout.of(arrays)
    with contextlib.ExitStack() as opened:  # what was opened is closed if the rest cannot be
        checkpoint = None
        if strategy.checkpoint is not None:
            checkpoint = Checkpoint(strategy.checkpoint)
            opened.callback(checkpoint.close)
            _refuse_another_run(checkpoint, layout, strategy)
        entries = {} if checkpoint is None else checkpoint.entries()
        clients, clusters = _population(strategy, checkpoint, entries)
        saved = (checkpoint.server_description if checkpoint else None) or {}
        table = TableSettings(
            num_clients=saved.get("num_clients", max(1, strategy.num_clients or 0)),
            dim=layout.dim,
            codec=strategy.dtype,
            folder=str(strategy.checkpoint) if strategy.states == "disk" else None,
        )
        aggregator = _aggregator(strategy.algorithm, table, clients, clusters)
        for rows in () if aggregator.table is None else aggregator.table.tables():
            opened.callback(rows.close)
        optimizer = strategy.server_optimizer or ServerSGD(lr=strategy.server_lr)
        server = Server(layout.vector(arrays), aggregator, optimizer)
        units = Units(strategy.client_lr)
        buffers = layout.read_buffers(arrays)
        if checkpoint is not None and checkpoint.restore(server):
            units.load(checkpoint.notes["units"])
            buffers = checkpoint.tensors()
        opened.pop_all()
    federation = Federation(
        layout=layout,
        server=server,
        clients=clients,
        units=units,
        reader=ReplyReader(
            layout,
            strategy.arrayrecord_key,
            strategy.max_update_norm,
            steps_needed=strategy.algorithm == "scaffold",
        ),
        buffers=buffers,
        identity=strategy.identity,
        unchanging=strategy.unchanging,
        least_clients=max(1, strategy.num_clients or 0),
        clusters=clusters,
        checkpoint=checkpoint,
        weighted_by_examples=strategy.weighted_by == "examples",
        rounds_kept=strategy.late_replies,
    )
    if clusters is not None:
        for name in sorted(clusters.names, key=name_order):
            federation.place(clients.meet(name), clusters.label_of(name, None))
    return federation, entries


def _population(
    strategy: StrategySettings, checkpoint: Checkpoint | None, entries: Entries
) -> tuple[Identities, Clusters | None]:
    clients = Identities()
    notes = {} if checkpoint is None else checkpoint.notes
    clients.load(entries, notes.get("left", ()), notes.get("missing", ()))
    if strategy.cluster_source is None:
        return clients, None
    clusters = Clusters(strategy.cluster_source)
    if notes:
        # Others, of a longer mapping, follow when clients are placed.
        clusters.labels = list(notes["clusters"])
    return clients, clusters


def _aggregator(
    name: str, table: TableSettings, clients: Identities, clusters: Clusters | None
) -> Aggregator:
    if clusters is None:
        return make_algorithm(name, table)
    cluster_of = clusters.cluster_of(clients, table.num_clients)
    return ClusterFedVARP(ClusteredTable(cluster_of, table.rows(clusters.num_rows, None)))


def _refuse_another_run(checkpoint: Checkpoint, layout: Layout, strategy: StrategySettings) -> None:
    if checkpoint.round is None:
        return
    if checkpoint.notes.get("layout") != layout.digest:
        raise CheckpointError(
            f"The run in {checkpoint.store.path} has a model with other arrays. Start with the "
            f"model it was begun with, or choose another folder; nothing was changed."
        )
    clustered = strategy.cluster_source is not None
    if clustered != (checkpoint.notes["clusters"] is not None):
        begun, now = ("without", "with") if clustered else ("with", "without")
        raise CheckpointError(
            f"The run in {checkpoint.store.path} was begun {begun} clusters, and this strategy is "
            f"{now} them. Use the one it was begun with, or choose another folder; nothing was "
            f"changed."
        )
    for name, now in strategy.unchanging.items():
        begun = checkpoint.notes.get(name, now)  # earlier versions noted fewer of them
        if begun != now:
            raise CheckpointError(
                f"The run in {checkpoint.store.path} was begun with {name}={begun!r}, not "
                f"{now!r}: {_WHY_UNCHANGING[name]}. Use the settings it was begun with, or choose "
                f"another folder; nothing was changed."
            )
