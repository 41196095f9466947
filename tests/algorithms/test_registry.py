"""How algorithms are made: by name, by import path, by their class, by a function."""

from __future__ import annotations

import dataclasses
import threading

import pytest
import torch
from torch import Tensor, nn

from fedvarp import (
    Aggregator,
    ClusterFedVARP,
    FedAvg,
    FedVARP,
    MemoryTable,
    RoundUpdates,
    stream,
)
from fedvarp.algorithms import TableSettings
from fedvarp.algorithms.registry import make_algorithm
from fedvarp.settings.problems import SettingsError

SETTINGS = TableSettings(num_clients=4, dim=3, cluster_of=torch.tensor([0, 0, 1, 1]))


class Decayed(Aggregator):
    """Needs no table; its one parameter has a default."""

    def __init__(self, decay: float = 0.5) -> None:
        self.decay = decay

    def aggregate(self, updates: RoundUpdates) -> Tensor:
        return self.decay * updates.average(updates.deltas)


class Demanding(Decayed):
    def __init__(self, table: object, decay: float) -> None:
        super().__init__(decay)


class HoldsALock(Decayed):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


def used() -> FedVARP:
    table = MemoryTable(4, 3)
    table.put(torch.tensor([1]), torch.ones(1, 3))
    return FedVARP(table)


@pytest.mark.parametrize(
    ("algorithm", "kind", "rows"),
    [
        ("fedavg", FedAvg, None),
        ("cluster_fedvarp", ClusterFedVARP, 2),
        ("fedvarp:ClusterFedVARP", ClusterFedVARP, 2),
        (ClusterFedVARP, ClusterFedVARP, 2),
        (FedVARP, FedVARP, 4),
        (Decayed, Decayed, None),
        (Decayed(0.5), Decayed, None),
        (FedVARP(MemoryTable(4, 3)), FedVARP, 4),
        (lambda table: FedVARP(table.row_per_client()), FedVARP, 4),
    ],
)
def test_an_algorithm_gets_the_table_it_is_made_for(
    algorithm: object, kind: type[Aggregator], rows: int | None
) -> None:
    made = make_algorithm(algorithm, SETTINGS)  # type: ignore[arg-type]
    assert type(made) is kind
    found = None if made.table is None else made.table.tables()[0].num_clients
    assert found == rows
    if isinstance(made, Decayed):
        assert made.decay == 0.5


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("fedvrp", "algorithm = 'fedvrp' is no algorithm; did you mean fedvarp"),
        ("fedvarp:FedVRAP", "algorithm = .*cannot be imported"),
        (used(), "has seen updates before.*Give a function"),
        (FedVARP(MemoryTable(5, 3)), "5 clients and rows of 3.*here are 4 clients.*Give a func"),
        (FedVARP(MemoryTable(4, 2)), "rows of 2 numbers.*a model of 3"),
        (HoldsALock(), "cannot be copied.*Give a function"),
        (nn.Linear, "makes no Aggregator"),
        (lambda table: 3, "makes no Aggregator"),
        (Demanding, "needs table, decay.*Give a function"),
    ],
)
def test_what_makes_no_algorithm_is_refused_with_the_way_out(wrong: object, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        make_algorithm(wrong, SETTINGS)  # type: ignore[arg-type]


def test_two_runs_of_one_aggregator_share_no_table() -> None:
    mine = FedVARP(MemoryTable(4, 3))
    one, other = make_algorithm(mine, SETTINGS), make_algorithm(mine, SETTINGS)
    assert isinstance(one, FedVARP)
    assert isinstance(other, FedVARP)
    one.y.put(torch.tensor([2]), torch.ones(1, 3))
    assert float(other.y.mean().abs().sum()) == 0
    assert float(mine.y.mean().abs().sum()) == 0


@pytest.mark.parametrize("M", [1, 2, 3, 4])
def test_fedstale_is_fedavg_and_fedvarp_to_the_bit_at_its_ends(M: int) -> None:
    ends = {0: make_algorithm("fedavg", SETTINGS), 1: make_algorithm("fedvarp", SETTINGS)}
    stale = {beta: make_algorithm(f"fedstale(beta={beta})", SETTINGS) for beta in ends}
    draws, ones = stream(0, "updates"), torch.ones(M, dtype=torch.int64)
    for _ in range(5):
        clients = torch.randperm(4, generator=draws)[:M].sort().values
        deltas = torch.randn(M, 3, generator=draws)
        updates = RoundUpdates(clients, deltas, ones, ones, scale=0.1)
        for beta, end in ends.items():
            assert torch.equal(stale[beta].aggregate(updates), end.aggregate(updates))
    assert stale[0].table is not None
    assert torch.equal(stale[0].table.get(clients), deltas)  # where it is FedAvg it has rows too


@pytest.mark.parametrize(
    ("algorithm", "changes", "says"),
    [
        ("fedavg", {"kept": ["nope"], "parameters": {"w": slice(0, 3)}}, "matches no parameter"),
        ("fedvarp_mixed", {"cluster_of": None}, r"table\.clusters to \"labels\""),
        ("mifa", {"max_rows": 2}, "mifa.*leave out max_rows.*int8"),
    ],
)
def test_rows_that_cannot_be_are_refused_with_the_way_out(
    algorithm: str, changes: dict[str, object], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        make_algorithm(algorithm, dataclasses.replace(SETTINGS, **changes))  # type: ignore[arg-type]
