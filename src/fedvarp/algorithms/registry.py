"""How algorithms are made by their names, each with a table of its own."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from fedvarp.algorithms.aggregator import Aggregator
from fedvarp.algorithms.clipped import Clipped
from fedvarp.algorithms.cluster_fedvarp import ClusterFedVARP
from fedvarp.algorithms.fedavg import FedAvg
from fedvarp.algorithms.feddyn import FedDyn
from fedvarp.algorithms.fedprox import FedProx
from fedvarp.algorithms.fedstale import FedStale
from fedvarp.algorithms.fedvarp import FedVARP
from fedvarp.algorithms.mifa import MIFA
from fedvarp.algorithms.names import ALGORITHMS
from fedvarp.algorithms.scaffold import Scaffold
from fedvarp.algorithms.trimmed_mean import TrimmedMean
from fedvarp.errors import InvalidError
from fedvarp.settings.bounds import BelowHalf, Momentum, NotNegative, Positive, Share
from fedvarp.settings.calls import parse_call
from fedvarp.settings.names import options_of
from fedvarp.settings.problems import SettingsError
from fedvarp.tables.base import ClientTable
from fedvarp.tables.clustered import ClusteredTable
from fedvarp.tables.measured import MeasuredTable
from fedvarp.tables.partial import PartialTable, numbers_kept
from fedvarp.tables.registry import TABLES
from fedvarp.tables.row_table import RowTable

AnyTable = TypeVar("AnyTable", bound=ClientTable)
PerLayer = Literal["one", "per_layer"]
"""Whether β is one number for the whole model, or one for each of its parameters."""


@dataclass(frozen=True, eq=False)
class TableSettings:
    """What an algorithm needs to know to make its table.

    Attributes:
        num_clients: N.
        dim: d.
        codec: How rows are stored.
        folder: Where rows live on disk; None: in memory.
        cluster_of: (N,) for algorithms with clusters.
        num_clusters: K, if it is more than the clusters that `cluster_of` names.
        clustering: How the clusters are made, if they change with time.
        client_weights: (N,) p_i of the objective; None for 1/N each.
        device: Where the rows are needed.
        fsync: Whether rows on disk wait for the disk.
        max_rows: How many clients may have a row at a time; None: all.
        parameters: Where each parameter of the model lies in a row, by its name and in order;
            nothing if the model is one vector without names.
        kept: Of which parameters rows are kept: "last_layer", or patterns of names; None: of all.
        clip_updates: How many times the running median norm updates may be long; None: any.
    """

    num_clients: int
    dim: int
    codec: str = "float32"
    folder: str | None = None
    cluster_of: Tensor | None = None
    num_clusters: int = 0
    clustering: str | None = None
    client_weights: Tensor | None = None
    device: torch.device | str = "cpu"
    fsync: bool = True
    max_rows: int | None = None
    parameters: Mapping[str, slice] = field(default_factory=dict)
    kept: Sequence[str] | None = None
    clip_updates: float | None = None

    def rows(
        self, count: int, weights: Tensor | None, name: str = "rows", max_rows: int | None = None
    ) -> RowTable:
        """A new table in the place and with the codec of these settings.

        Args:
            count: How many rows it has.
            weights: (count,) what each row counts for in the mean; None for the same.
            name: Tells tables of one algorithm apart.
            max_rows: How many rows there may be at a time; None: as many as there are.

        Returns:
            The table; its rows are as long as what is kept.
        """
        make = TABLES["memory" if self.folder is None else "disk"]
        return make(
            self.folder,
            count,
            self.dim if self._numbers_kept is None else len(self._numbers_kept),
            self.codec,
            client_weights=weights,
            name=name,
            device=self.device,
            max_rows=max_rows,
            fsync=self.fsync,
        )

    def row_per_client(self) -> ClientTable:
        """A new table with one row for each client."""
        rows = self.rows(self.num_clients, self.client_weights, max_rows=self.max_rows)
        return self._whole(rows)

    def row_per_cluster(self, name: str = "rows") -> ClusteredTable | PartialTable:
        """A new table with one row for each cluster.

        Args:
            name: Tells tables of one algorithm apart.

        Raises:
            ValueError: The clusters are not known.
        """
        if self.cluster_of is None:
            raise InvalidError(
                "The clusters of clients are not known: this data set has none of its own. Set "
                'table.clusters to "labels" or "auto:K", or give the cluster of each client, '
                "clusters=[0, 0, 1, …]; or choose an algorithm without clusters, such as fedvarp."
            )
        rows = self.rows(max(self.num_clusters, int(self.cluster_of.max()) + 1), None, name)
        return self._whole(
            ClusteredTable(self.cluster_of, rows, self.client_weights, self.clustering)
        )

    def measured(self, *tables: ClientTable, per_layer: bool, memory: float) -> MeasuredTable:
        """A table that mixes others as far as each has proved right.

        Args:
            tables: What it mixes.
            per_layer: Whether each parameter of the model has its own mixture. A model that is one
                vector, without names of parameters, has one.
            memory: See `MeasuredTable`.
        """
        parts = list(self.parameters.values()) if per_layer else None
        return MeasuredTable(tables, parts, memory)

    def _whole(self, rows: AnyTable) -> AnyTable | PartialTable:
        """The table for whole updates of one that has what is kept of them."""
        kept = self._numbers_kept
        return rows if kept is None else PartialTable(rows, kept, self.dim)

    @functools.cached_property
    def _numbers_kept(self) -> Tensor | None:
        return None if self.kept is None else numbers_kept(self.kept, self.parameters)


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
        A new algorithm, over clipped updates if the settings say so.

    Raises:
        SettingsError: There is no algorithm of that name, it is none, or its table was written to
            before or is not for these clients and this model.
    """
    if settings.kept is not None:
        try:
            numbers_kept(settings.kept, settings.parameters)  # refused for those without rows too
        except SettingsError as error:
            raise SettingsError(f"table.{error}") from None
    made = _unclipped(algorithm, settings)
    if settings.clip_updates is None:
        return made
    if isinstance(made, Clipped):
        raise SettingsError(
            f"clip_updates is set, and algorithm = Clipped(…, {made.multiple:g}) clips its updates "
            f"by itself: give one of the two."
        )
    return Clipped(made, settings.clip_updates)


def _unclipped(
    algorithm: str | Callable[..., Aggregator] | Aggregator, settings: TableSettings
) -> Aggregator:
    make: Any = algorithm
    options: dict[str, Any] = {}
    if isinstance(algorithm, str):
        try:
            choice = parse_call(algorithm)
            make = ALGORITHMS.find(choice.name)
        except SettingsError as error:
            raise SettingsError(f"algorithm {error}") from None
        if choice.options:
            options = dict(options_of(make, but_required=True)(**choice.options))
    if isinstance(make, Aggregator):
        return _copy(make, settings)
    usable = issubclass(make, Aggregator) if inspect.isclass(make) else callable(make)
    made = _made(make, settings, options) if usable else None
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


def _made(make: Any, settings: TableSettings, options: Mapping[str, Any]) -> Any:
    if not inspect.isclass(make):
        return make(settings, **options)
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
    return make(*arguments, **options)


def fedavg(table: TableSettings) -> FedAvg:
    """FedAvg, which has no table."""
    return FedAvg()


def fedvarp(table: TableSettings) -> FedVARP:
    """FedVARP over a row for each client."""
    return FedVARP(table.row_per_client())


def cluster_fedvarp(table: TableSettings) -> ClusterFedVARP:
    """ClusterFedVARP over a row for each cluster."""
    return ClusterFedVARP(table.row_per_cluster())


def fedstale(table: TableSettings, beta: Share = 0.5) -> FedStale:
    """FedVARP with β as it is given."""
    return FedStale(table.row_per_client(), beta)


def fedvarp_adaptive(
    table: TableSettings, beta: PerLayer = "per_layer", memory: Momentum = 0.95
) -> FedVARP:
    """FedVARP that believes each client's row as far as rows have proved right."""
    rows = table.row_per_client()
    return FedVARP(table.measured(rows, per_layer=beta == "per_layer", memory=memory))


def fedvarp_mixed(
    table: TableSettings, beta: PerLayer = "per_layer", memory: Momentum = 0.95
) -> FedVARP:
    """FedVARP over the client's own row and its cluster's, each as far as it has proved right."""
    rows = (table.row_per_client(), table.row_per_cluster("clusters"))
    return FedVARP(table.measured(*rows, per_layer=beta == "per_layer", memory=memory))


def mifa(table: TableSettings) -> MIFA:
    """MIFA over a row for each client."""
    for name, given in (("rows", table.kept), ("max_rows", table.max_rows)):
        if given is not None:
            raise SettingsError(
                f"mifa steps by the mean of its rows, so that what has no row is hardly trained, "
                f"or not at all: leave out {name}. FedVARP and its kin can do with less; int8 rows "
                f"take a quarter of the memory."
            )
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


def trimmed_mean(table: TableSettings, beta: Share = 1.0, trim: BelowHalf = 0.1) -> TrimmedMean:
    """The coordinate-wise trimmed mean of what clients say beyond their rows."""
    return TrimmedMean(table.row_per_client(), beta, trim)


def median(table: TableSettings, beta: Share = 1.0) -> TrimmedMean:
    """The coordinate-wise median of what clients say beyond their rows."""
    return TrimmedMean(table.row_per_client(), beta, trim=0.5)
