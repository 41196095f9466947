"""Largest entries count only for the rows they were measured of, as they were then."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from fedvarp import FedVARP, MemoryTable, RoundUpdates, Server, ServerSGD
from fedvarp.algorithms.round_updates import Reply
from fedvarp.tables import largest_entries
from fedvarp.tables.largest_entries import LargestEntries, stacked

D = 300_001  # three blocks, the last of them short


def updates_of(deltas: torch.Tensor, measured: LargestEntries | None = None) -> RoundUpdates:
    ones = torch.ones(len(deltas), dtype=torch.int64)
    clients = torch.arange(len(deltas))
    return RoundUpdates(clients, deltas, ones, ones, scale=0.1, measured=measured)


def test_rows_measured_by_their_maker_are_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    deltas = torch.ones(2, 3)
    measured = LargestEntries.of(deltas)
    looks: list[object] = []
    monkeypatch.setattr(largest_entries, "_measured", looks.append)
    server = Server(torch.zeros(3), FedVARP(MemoryTable(2, 3)), ServerSGD())
    assert server.receive(updates_of(deltas, measured)).accepted == (0, 1)
    assert not looks


def test_what_was_measured_of_other_rows_or_before_a_change_counts_for_nothing() -> None:
    good, bad = torch.ones(2, 3), torch.tensor([[1.0, 1.0, 1.0], [1.0, math.nan, 1.0]])
    server = Server(torch.zeros(3), FedVARP(MemoryTable(2, 3)), ServerSGD())
    others = replace(updates_of(good, LargestEntries.of(good)), deltas=bad)
    assert list(server.receive(others).refused) == [1]
    changed = updates_of(good, LargestEntries.of(good))
    good[0, 2] = math.inf
    assert list(server.receive(changed).refused) == [0]
    assert server.w.isfinite().all()


def test_there_is_one_for_each_row() -> None:
    with pytest.raises(ValueError, match="1 largest entries for 2 rows"):
        LargestEntries.known([1.0], torch.ones(2, 3))


@pytest.mark.parametrize("place", [0, D // 2, D - 1])
@pytest.mark.parametrize("value", [-7.0, 7.0, math.nan, -math.inf])
def test_stacking_measures_every_block(place: int, value: float) -> None:
    rows = [torch.zeros(D), torch.full((D,), 0.5)]
    rows[0][place] = value
    stack, measured = stacked(rows)
    assert torch.equal(stack.nan_to_num(), torch.stack(rows).nan_to_num())
    expected = torch.tensor([abs(value), 0.5])
    found = torch.tensor(measured.values)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    assert measured.hold_for(stack)


def test_a_network_reply_with_nan_is_refused_though_it_was_measured_while_stacking() -> None:
    replies = [
        Reply(0, torch.tensor([1.0, 2.0]), 1, 1),
        Reply(1, torch.tensor([math.nan, 2.0]), 1, 1),
    ]
    updates = RoundUpdates.from_replies(replies, dim=2, client_lr=0.1, dtype=torch.float32)
    server = Server(torch.zeros(2), FedVARP(MemoryTable(2, 2)), ServerSGD())
    assert list(server.receive(updates).refused) == [1]


def test_norms_are_those_of_the_rows_as_they_are() -> None:
    deltas = torch.tensor([[3.0, 4.0], [0.0, 2.0], [0.0, 1.0]])
    told = updates_of(deltas, LargestEntries.known([4.0, 2.0, 1.0], deltas, [50.0, 20.0, 10.0]))
    assert told.norms == [50, 20, 10], "they are believed, not measured again"
    assert told.keep([2, 0], {}).norms == [10, 50]
    assert updates_of(deltas).norms == [5, 2, 1]
    deltas[1, 1] = 6
    assert told.norms == [5, 6, 1]
