"""The running sum heals, and weighs rows as it is told."""

from __future__ import annotations

import pytest
import torch

from fedvarp import MemoryTable, stream
from registry import every_codec
from rows import assert_law, everyone, rows_like

N, D = 7, 300  # 300 numbers: one whole block of the int8 codec and a part of one


def test_an_outlier_that_retreats_step_by_step_takes_nothing_with_it() -> None:
    table = MemoryTable(N, D)
    table.put(torch.arange(N), rows_like(table, N, seed=0))
    for size in (1e17, 1e12, 1e8, 1e4, 1.0):
        table.put(torch.tensor([2]), rows_like(table, 1, seed=int(size), size=size))
    assert_law(table)


def test_an_outlier_that_stays_is_not_summed_up_again_every_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    afresh: list[int] = []
    make = MemoryTable._sum_afresh

    def counting(self: MemoryTable) -> None:
        afresh.append(1)
        make(self)

    monkeypatch.setattr(MemoryTable, "_sum_afresh", counting)
    table = MemoryTable(N, D)
    table.put(torch.tensor([0, 1]), rows_like(table, 2, seed=0, size=1e20))
    for t in range(40):
        table.put(torch.tensor([2 + t % 5]), rows_like(table, 1, seed=t))
    assert not afresh
    table.put(torch.tensor([0, 1]), rows_like(table, 2, seed=1))
    assert len(afresh) == 1
    assert_law(table)


def test_a_sum_made_afresh_does_not_depend_on_the_order_rows_came_in() -> None:
    """Rows of very unlike sizes, where the order of a float64 sum shows."""
    sizes = torch.logspace(-12, 3, 13, dtype=torch.float64)[:, None]
    rows = sizes * torch.randn(13, D, generator=stream(0, "r"), dtype=torch.float64)
    means = []
    for order in (range(13), [10, 3, 12, 0, 7, 1, 11, 2, 9, 4, 8, 6, 5]):
        table = MemoryTable(13, D, "float64")
        for i in order:
            table.put(torch.tensor([i]), rows[i : i + 1])
        table._sum_afresh()
        means.append(table.mean())
    assert torch.equal(means[0], means[1])


def test_a_heavy_client_heals_too() -> None:
    """An outlier counts with its weight: 2e11 · 1e6 among rows of size 1."""
    weights = torch.ones(N)
    weights[2] = 1e6
    table = MemoryTable(N, D, client_weights=weights)
    for size in (1.0, 2e11, 1e-6):
        table.put(torch.arange(N), rows_like(table, N, seed=0))
        table.put(torch.tensor([2]), rows_like(table, 1, seed=1, size=size))
    expected = weights.double() @ everyone(table).double() / weights.double().sum()
    torch.testing.assert_close(table.mean().double(), expected, rtol=1e-6, atol=1e-12)


@every_codec
def test_unequal_client_weights_weigh_the_mean(codec: str) -> None:
    weights = torch.tensor([1.0, 2.0, 0.0, 4.0])
    table = MemoryTable(4, D, codec, client_weights=weights)
    for seed in range(3):
        table.put(torch.tensor([0, seed + 1]), rows_like(table, 2, seed=seed))
    expected = weights.double() @ everyone(table).double() / 7
    torch.testing.assert_close(table.mean().double(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("weights", [[1.0, -1.0], [0.0, 0.0], [1.0], [1.0, float("nan")]])
def test_weights_that_are_none_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="weight"):
        MemoryTable(2, D, client_weights=torch.tensor(weights))
