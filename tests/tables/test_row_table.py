"""Clients that come and go."""

from __future__ import annotations

import pytest
import torch

from fedvarp import MemoryTable

N, D = 7, 300  # 300 numbers: one whole block of the int8 codec and a part of one


def test_nobody_is_let_in_backwards() -> None:
    with pytest.raises(ValueError, match="at least one client"):
        MemoryTable(5, D).add_clients(-2)


def test_clients_who_never_wrote_a_row_may_go_again() -> None:
    """Rows 3 and 5 over four clients, then over two: the mean is 2, then 4."""
    table = MemoryTable(num_clients=4, dim=1)
    table.put(torch.tensor([0, 1]), torch.tensor([[3.0], [5.0]]))
    assert table.mean().tolist() == [2]
    table.drop_clients(2)
    assert (table.num_clients, table.mean().tolist()) == (2, [4])
    with pytest.raises(ValueError, match="has written a row"):
        table.drop_clients(1)
    with pytest.raises(ValueError, match="one stay"):
        table.drop_clients(2)
    with pytest.raises(IndexError):
        table.get(torch.tensor([2]))
