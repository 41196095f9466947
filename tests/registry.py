"""Every table, codec and algorithm, for the suites of laws to run over."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from fedvarp import (
    MIFA,
    Aggregator,
    ClientTable,
    ClusteredTable,
    DiskTable,
    FedAvg,
    FedVARP,
    MemoryTable,
    Scaffold,
)
from fedvarp.tables import CODECS, RowTable

PLACES = ["memory", "disk"]
TABLES = ["memory", "disk", "clusters in memory", "clusters on disk"]
CODEC_NAMES = list(CODECS)
ALGORITHMS = ["FedAvg", "FedVARP", "ClusterFedVARP", "MIFA", "Scaffold"]


def rows_in(place: str, folder: Path, num_clients: int, dim: int, codec: str) -> RowTable:
    if place == "memory":
        return MemoryTable(num_clients, dim, codec)
    return DiskTable(folder, num_clients, dim, codec, fsync=False)


def close(states: ClientTable | None) -> None:
    for table in () if states is None else states.tables():
        if isinstance(table, DiskTable):
            table.close()


def table_in(table: str, folder: Path, num_clients: int, dim: int, codec: str) -> ClientTable:
    if table in PLACES:
        return rows_in(table, folder, num_clients, dim, codec)
    place = "memory" if table == "clusters in memory" else "disk"
    num_clusters = -(-num_clients // 3)
    clusters = torch.arange(num_clients) % num_clusters
    return ClusteredTable(clusters, rows_in(place, folder, num_clusters, dim, codec))


@contextlib.contextmanager
def table_of(table: str, num_clients: int, dim: int, codec: str) -> Iterator[ClientTable]:
    with tempfile.TemporaryDirectory() as folder:
        states = table_in(table, Path(folder), num_clients, dim, codec)
        try:
            yield states
        finally:
            close(states)


def algorithm_in(
    algorithm: str, place: str, folder: Path, num_clients: int, dim: int, codec: str
) -> Aggregator:
    if algorithm == "FedAvg":
        return FedAvg()
    if algorithm == "ClusterFedVARP":
        clusters = "clusters in memory" if place == "memory" else "clusters on disk"
        return FedVARP(table_in(clusters, folder, num_clients, dim, codec))
    kinds: dict[str, Callable[[ClientTable], Aggregator]]
    kinds = {"FedVARP": FedVARP, "MIFA": MIFA, "Scaffold": Scaffold}
    return kinds[algorithm](rows_in(place, folder, num_clients, dim, codec))
