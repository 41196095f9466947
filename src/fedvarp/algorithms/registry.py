"""How algorithms are made by their names, each with a table of its own."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedvarp.algorithms.aggregator import Aggregator
from fedvarp.algorithms.cluster_fedvarp import ClusterFedVARP
from fedvarp.algorithms.fedavg import FedAvg
from fedvarp.algorithms.feddyn import FedDyn
from fedvarp.algorithms.fedprox import FedProx
from fedvarp.algorithms.fedvarp import FedVARP
from fedvarp.algorithms.mifa import MIFA
from fedvarp.algorithms.names import ALGORITHMS
from fedvarp.algorithms.scaffold import Scaffold
from fedvarp.settings.bounds import NotNegative, Positive
from fedvarp.settings.problems import SettingsError
from fedvarp.tables.clustered import ClusteredTable
from fedvarp.tables.registry import TABLES
from fedvarp.tables.row_table import RowTable


@dataclass(frozen=True, eq=False)
class TableSettings:
    """What an algorithm needs to know to make its table.

    Attributes:
        num_clients: N.
        dim: d.
        codec: How rows are stored.
        folder: Where rows live on disk; None: in memory.
        cluster_of: (N,) for ClusterFedVARP.
        clustering: How the clusters are made, if they change with time.
        client_weights: (N,) p_i of the objective; None for 1/N each.
        device: Where the rows are needed.
        fsync: Whether rows on disk wait for the disk.
    """

    num_clients: int
    dim: int
    codec: str = "float32"
    folder: str | None = None
    cluster_of: Tensor | None = None
    clustering: str | None = None
    client_weights: Tensor | None = None
    device: torch.device | str = "cpu"
    fsync: bool = True

    def rows(self, count: int, weights: Tensor | None) -> RowTable:
        """A new table in the place and with the codec of these settings.

        Args:
            count: How many rows it has.
            weights: (count,) what each row counts for in the mean; None for the same.

        Returns:
            The table.
        """
        make = TABLES["memory" if self.folder is None else "disk"]
        return make(
            self.folder,
            count,
            self.dim,
            self.codec,
            client_weights=weights,
            device=self.device,
            fsync=self.fsync,
        )

    def row_per_client(self) -> RowTable:
        """A new table with one row for each client."""
        return self.rows(self.num_clients, self.client_weights)

    def row_per_cluster(self) -> ClusteredTable:
        """A new table with one row for each cluster.

        Raises:
            ValueError: The clusters are not known.
        """
        if self.cluster_of is None:
            raise ValueError(
                "ClusterFedVARP needs to know the clusters, and this data set has no natural ones. "
                "Give cluster_of, the cluster of each client, or use FedVARP."
            )
        rows = self.rows(int(self.cluster_of.max()) + 1, None)
        return ClusteredTable(self.cluster_of, rows, self.client_weights, self.clustering)


def make_algorithm(
    algorithm: str | Callable[..., Aggregator] | Aggregator, settings: TableSettings
) -> Aggregator:
    """Makes an algorithm with a table of its own.

    Args:
        algorithm: A name in `ALGORITHMS`, the import path of something of one's own, or that
            itself: a function of the settings, or a subclass of `Aggregator` whose constructor
            needs nothing, or one table: annotated `ClusteredTable` it has a row for each cluster,
            else one for each client; or an aggregator that has seen no update yet, which is copied
            so that no two runs share a table.
        settings: What its table is to be like.

    Returns:
        A new algorithm.

    Raises:
        SettingsError: There is no algorithm of that name, it is none, or its table was written to
            before or is not for these clients and this model.
    """
    try:
        make: Any = ALGORITHMS.find(algorithm) if isinstance(algorithm, str) else algorithm
    except SettingsError as error:
        raise SettingsError(f"algorithm {error}") from None
    if isinstance(make, Aggregator):
        return _copy(make, settings)
    usable = issubclass(make, Aggregator) if inspect.isclass(make) else callable(make)
    made = _made(make, settings) if usable else None
    if not isinstance(made, Aggregator):
        raise SettingsError(
            f"algorithm = {make!r} makes no Aggregator. Give a name, a subclass of "
            f"fedvarp.Aggregator, an object of one, or a function of "
            f"fedvarp.algorithms.TableSettings that makes one."
        )
    return made


def _copy(aggregator: Aggregator, settings: TableSettings) -> Aggregator:
    """A copy of a fresh aggregator whose table, if it has one, is for these clients."""
    name, table = type(aggregator).__name__, aggregator.table
    way_out = f"Give a function that makes it anew: lambda table: {name}(table.row_per_client())."
    if table is not None:
        if any(rows.num_rows for rows in table.tables()):
            raise SettingsError(
                f"algorithm = {name}(…) has seen updates before: its table holds rows of another "
                f"run, which must not mix with those of a new one. {way_out}"
            )
        is_for, needed = (table.num_clients, table.dim), (settings.num_clients, settings.dim)
        if is_for != needed:
            raise SettingsError(
                f"algorithm = {name}(…) has a table for {is_for[0]} clients and rows of "
                f"{is_for[1]} numbers; here are {needed[0]} clients and a model of {needed[1]}. "
                f"{way_out}"
            )
    try:
        return copy.deepcopy(aggregator)
    except Exception as error:  # a table on disk, an open file: whatever it holds says why
        raise SettingsError(
            f"algorithm = {name}(…) cannot be copied ({error}), and two runs must not share what "
            f"it remembers. {way_out}"
        ) from error


def _made(make: Any, settings: TableSettings) -> Any:
    if not inspect.isclass(make):
        return make(settings)
    known = inspect.signature(make).parameters
    needed = [
        parameter
        for parameter in known.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    if len(needed) > 1:
        raise SettingsError(
            f"algorithm = {make.__name__} needs {', '.join(part.name for part in needed)}, and "
            f"only its table is known. Give a function that makes it from its table's settings."
        )
    arguments = []
    if needed:
        shared = "ClusteredTable" in str(needed[0].annotation)
        arguments = [settings.row_per_cluster() if shared else settings.row_per_client()]
    return make(*arguments)


def fedavg(table: TableSettings) -> FedAvg:
    """FedAvg, which has no table."""
    return FedAvg()


def fedvarp(table: TableSettings) -> FedVARP:
    """FedVARP over a row for each client."""
    return FedVARP(table.row_per_client())


def cluster_fedvarp(table: TableSettings) -> ClusterFedVARP:
    """ClusterFedVARP over a row for each cluster."""
    return ClusterFedVARP(table.row_per_cluster())


def mifa(table: TableSettings) -> MIFA:
    """MIFA over a row for each client."""
    return MIFA(table.row_per_client())


def scaffold(table: TableSettings) -> Scaffold:
    """SCAFFOLD over a row for each client."""
    return Scaffold(table.row_per_client())


def fedprox(table: TableSettings, mu: NotNegative = 0.01) -> FedProx:
    """FedProx, which has no table."""
    return FedProx(mu)


def feddyn(table: TableSettings, alpha: Positive = 0.1) -> FedDyn:
    """FedDyn over a row for each client."""
    return FedDyn(table.row_per_client(), alpha)
