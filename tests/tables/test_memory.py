"""Rows in memory."""

from __future__ import annotations

import pickle

import torch

from fedvarp import MemoryTable
from registry import every_codec
from rows import rows_like

N, D = 7, 300  # 300 numbers: one whole block of the int8 codec and a part of one


@every_codec
def test_rows_take_memory_only_once_written(codec: str) -> None:
    table = MemoryTable(num_clients=1_000_000, dim=D, codec=codec)
    empty = table.num_bytes
    table.put(torch.tensor([5, 999_999]), rows_like(table, 2, seed=0))
    table.put(torch.tensor([5]), rows_like(table, 1, seed=1))
    per_row = {"float64": 2400, "float32": 1200, "bfloat16": 600, "float16": 600, "int8": 308}
    assert table.num_bytes - empty == 2 * per_row[codec]


def test_pickled_rows_do_not_bring_their_slabs() -> None:
    """A row is 4 kB; a slab holds up to 16 MB of them."""
    table = MemoryTable(100, 1000)
    table.put(torch.arange(50), torch.randn(50, 1000))
    sent = pickle.dumps(table)
    assert len(sent) < 50 * 4000 * 1.2
    received = pickle.loads(sent)  # noqa: S301  # our own bytes
    assert torch.equal(received.get(torch.arange(100)), table.get(torch.arange(100)))
    received.put(torch.tensor([70]), torch.ones(1, 1000))
    assert torch.equal(table.get(torch.tensor([70])), torch.zeros(1, 1000))
