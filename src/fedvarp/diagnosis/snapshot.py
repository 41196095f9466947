"""Where a diagnosis is made: at the first model of some settings, or at a run's last checkpoint."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from fedvarp.algorithms.aggregator import LatestUpdates
from fedvarp.algorithms.registry import make_algorithm
from fedvarp.experiments.build import Experiment
from fedvarp.runs.directory import RunDirectory
from fedvarp.runs.errors import RunError
from fedvarp.server.checkpoint import Checkpoint
from fedvarp.server.flat_model import FlatModel
from fedvarp.server.server import Server
from fedvarp.tables.base import ClientTable
from fedvarp.tables.clustered import ClusteredTable
from fedvarp.tables.measured import MeasuredTable
from fedvarp.theory.row_trust import RowTrust

_REPLAYS: Final = ("fedvarp", "cluster_fedvarp")  # whose rows stand in for absent clients


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A model, and what its server had gathered by then.

    Attributes:
        round: After how many rounds.
        w: (d,) the model.
        buffers: Its buffers.
        cluster_of: (N,) int64, if k-means has found clusters; else None.
        table: y_1 … y_N of FedVARP or ClusterFedVARP; None for others, and where the settings are
            not those that the rows were made with.
        guesses: The tables of any algorithm whose rows are updates, by whose their rows are: "own"
            or "cluster".
        trust: How far the run itself trusts them, where it measures that.
    """

    round: int
    w: Tensor
    buffers: Mapping[str, Tensor]
    cluster_of: Tensor | None = None
    table: ClientTable | None = None
    guesses: Mapping[str, ClientTable] = field(default_factory=dict)
    trust: RowTrust | None = None


def row_of(table: ClientTable, client: int) -> Tensor:
    """Reads the row of a client from a table.

    Args:
        table: It.
        client: i.

    Returns:
        y_i, (d,).
    """
    return table.get(torch.tensor([client]))[0]


def of_first_model(flat: FlatModel) -> Snapshot:
    """Takes the model before the first round, when nothing has been gathered.

    Args:
        flat: The model.

    Returns:
        Its weights and buffers.
    """
    return Snapshot(0, flat.vector(), flat.buffers())


@contextlib.contextmanager
def of_last_checkpoint(
    directory: RunDirectory, experiment: Experiment, flat: FlatModel, *, with_rows: bool
) -> Iterator[Snapshot]:
    """Opens the last checkpoint of a run; its rows can be read inside the `with` block.

    Args:
        directory: Of the run.
        experiment: What its settings stand for.
        flat: Its model.
        with_rows: Whether to read rows too: the settings must be those the run was made with.

    Yields:
        The model of the checkpoint, with clusters and rows if there are any.

    Raises:
        RunError: If there is no checkpoint, or an empty one.
    """
    if not directory.checkpoint_file.exists():
        raise RunError(
            f"{directory.path} has no checkpoint: no round of it was trained, or it was not "
            f"copied. `fedvarp diagnose {directory.config_file}` looks at its first model."
        )
    with contextlib.ExitStack() as opened:
        checkpoint = opened.enter_context(Checkpoint(directory.checkpoint_folder))
        if checkpoint.round is None:
            raise RunError(f"The checkpoint of {directory.path} is empty: begin the run first.")
        w = checkpoint.store.read_tensor("state", "w", torch.float32, (flat.dim,))
        table = None
        if with_rows:
            table = _restored_table(directory, checkpoint, experiment, flat, opened)
        beside = checkpoint.beside_rows()
        yield Snapshot(
            checkpoint.round,
            w.to(experiment.settings.trainer.device),
            checkpoint.tensors(),
            next((beside[name] for name in beside if name.endswith("cluster_of")), None),
            table if experiment.settings.algorithm in _REPLAYS else None,
            _guesses(table),
            _own_trust(table, flat),
        )


def _restored_table(
    directory: RunDirectory,
    checkpoint: Checkpoint,
    experiment: Experiment,
    flat: FlatModel,
    opened: contextlib.ExitStack,
) -> ClientTable | None:
    """The table of the run; None where its rows are no updates, or there is none."""
    _, table = experiment.task().clusters_and_table(directory)
    aggregator = make_algorithm(experiment.settings.algorithm, table)
    if aggregator.table is None or not isinstance(aggregator.unwrapped, LatestUpdates):
        return None
    for rows in aggregator.table.tables():
        opened.callback(rows.close)
    checkpoint.restore(Server(flat.vector(), aggregator, experiment.server_optimizer))
    return aggregator.table


def _guesses(table: ClientTable | None) -> dict[str, ClientTable]:
    """The tables by whose their rows are; those that a measured one mixes."""
    if table is None:
        return {}
    tables = table.below if isinstance(table, MeasuredTable) else (table,)
    return {
        "cluster" if isinstance(one.made_of()[0], ClusteredTable) else "own": one for one in tables
    }


def _own_trust(table: ClientTable | None, flat: FlatModel) -> RowTrust | None:
    """b as a measured table has it; by parameter where each has its own."""
    if not isinstance(table, MeasuredTable):
        return None
    names, parameters = list(_guesses(table)), flat.names if len(table.b) > 1 else []
    return RowTrust(
        whole=dict(zip(names, table.metrics().values(), strict=True)),
        by_parameter={
            parameter: dict(zip(names, b.tolist(), strict=True))
            for parameter, b in zip(parameters, table.b, strict=False)
        },
    )
