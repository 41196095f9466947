"""What the product has registered, made ready for the suites of laws to run over.

Nothing is listed by hand here: an algorithm, table or codec that is registered is under every law.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedvarp import Aggregator, ClientTable, ClusteredTable, MeasuredTable, PartialTable
from fedvarp.algorithms import ALGORITHMS
from fedvarp.algorithms.registry import TableSettings, make_algorithm
from fedvarp.tables import CODECS, TABLES, RowTable

PLACES = list(TABLES)
CODEC_NAMES = list(CODECS)
LOSSLESS = [name for name, codec in CODECS.items() if codec.lossless]
MADE_OF_TABLES = ["measured", "part"]  # in memory: where the rows live is not their affair
TABLE_NAMES = [*PLACES, *(f"clusters in {place}" for place in PLACES), *MADE_OF_TABLES]

every_algorithm = pytest.mark.parametrize("algorithm", list(ALGORITHMS))
every_codec = pytest.mark.parametrize("codec", CODEC_NAMES)
every_place = pytest.mark.parametrize("place", PLACES)
every_table = pytest.mark.parametrize("kind", TABLE_NAMES)


def clusters_of(num_clients: int) -> Tensor:
    """Clusters of about three clients."""
    return torch.arange(num_clients) % -(-num_clients // 3)


def rows_in(place: str, folder: Path, num_clients: int, dim: int, codec: str) -> RowTable:
    return TABLES[place](
        str(folder), num_clients, dim, codec, client_weights=None, device="cpu", fsync=False
    )


def close(table: ClientTable | None) -> None:
    for rows in () if table is None else table.tables():
        rows.close()


@contextlib.contextmanager
def table_of(kind: str, num_clients: int, dim: int, codec: str) -> Iterator[ClientTable]:
    if kind == "measured":
        with (
            table_of("memory", num_clients, dim, codec) as own,
            table_of("clusters in memory", num_clients, dim, codec) as shared,
        ):
            yield MeasuredTable([own, shared])
        return
    if kind == "part":
        kept = torch.arange(dim)[dim // 3 :: 2]
        with table_of("memory", num_clients, len(kept), codec) as rows:
            yield PartialTable(rows, kept, dim)
        return
    place = kind.removeprefix("clusters in ")
    with tempfile.TemporaryDirectory() as folder:
        cluster_of = torch.arange(num_clients) if kind == place else clusters_of(num_clients)
        rows = rows_in(place, Path(folder), int(cluster_of.max()) + 1, dim, codec)
        try:
            yield rows if kind == place else ClusteredTable(cluster_of, rows)
        finally:
            close(rows)


def algorithm_in(
    algorithm: str,
    place: str,
    folder: Path,
    num_clients: int,
    dim: int,
    codec: str,
    client_weights: Tensor | None = None,
) -> Aggregator:
    return make_algorithm(
        algorithm,
        TableSettings(
            num_clients,
            dim,
            codec,
            folder=None if place == "memory" else str(folder),
            cluster_of=clusters_of(num_clients),
            client_weights=client_weights,
            fsync=False,
        ),
    )


@contextlib.contextmanager
def algorithm_of(
    algorithm: str,
    place: str,
    num_clients: int,
    dim: int,
    codec: str,
    client_weights: Tensor | None = None,
) -> Iterator[Aggregator]:
    with tempfile.TemporaryDirectory() as folder:
        made = algorithm_in(algorithm, place, Path(folder), num_clients, dim, codec, client_weights)
        try:
            yield made
        finally:
            close(made.table)


def fresh(algorithm: str) -> Aggregator:
    """For what it claims, such as that E[v] is the update of full participation."""
    return algorithm_in(algorithm, "memory", Path(), 3, 1, "float32")
