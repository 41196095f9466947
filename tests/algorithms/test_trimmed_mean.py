"""The coordinate-wise trimmed mean and median, with rows of clients and without."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from torch import Tensor

import registry
from fedvarp import FedVARP, MemoryTable, RoundUpdates, SettingsError, TrimmedMean, stream
from fedvarp.algorithms import TableSettings
from fedvarp.algorithms.registry import make_algorithm

N, D = 9, 5


def updates_of(clients: list[int], deltas: Tensor, weights: Tensor | None = None) -> RoundUpdates:
    ones = torch.ones(len(clients), dtype=torch.int64)
    return RoundUpdates(torch.tensor(clients), deltas, ones, ones, scale=1.0, weights=weights)


def rounds_of(size: int) -> list[tuple[list[int], Tensor]]:
    generator = stream(size, "rounds")
    return [
        (
            sorted(torch.randperm(N, generator=generator)[:size].tolist()),
            torch.randn(size, D, generator=generator, dtype=torch.float64),
        )
        for _ in range(6)
    ]


def table() -> MemoryTable:
    return MemoryTable(N, D, "float64")


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 9])
@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("trim", [0.0, 0.1, 0.3, 0.5])
def test_it_is_the_plain_loop_over_numbers(size: int, beta: float, trim: float) -> None:
    """⌈trim·M⌉ of each number are left out at either end, while any is left; ½ is the median."""
    algorithm = TrimmedMean(table(), beta, trim)
    y = torch.zeros(N, D, dtype=torch.float64)
    for clients, deltas in rounds_of(size):
        left_out = math.ceil(round(trim * size, 6))
        while 2 * left_out >= size:
            left_out -= 1
        expected = []
        for j in range(D):
            changes = sorted(
                float(d[j] - beta * y[i, j]) for i, d in zip(clients, deltas, strict=True)
            )
            middle = changes[left_out : size - left_out]
            if trim == 0.5:
                assert statistics.mean(middle) == pytest.approx(statistics.median(changes))
            expected.append(beta * float(y[:, j].mean()) + statistics.mean(middle))
        v = algorithm.aggregate(updates_of(clients, deltas))
        torch.testing.assert_close(v, torch.tensor(expected, dtype=torch.float64))
        y[clients] = deltas
        assert torch.equal(algorithm.y.get(torch.arange(N)), y)


@pytest.mark.parametrize("name", ["median", "trimmed_mean(trim=0.4)", "trimmed_mean"])
@pytest.mark.parametrize("size", [1, 2])
def test_of_one_or_two_clients_it_is_fedvarp(name: str, size: int) -> None:
    """There is no telling which of two lies."""
    robust = make_algorithm(name, TableSettings(N, D, "float64"))
    fedvarp = FedVARP(table())
    for clients, deltas in rounds_of(size):
        updates = updates_of(clients, deltas)
        torch.testing.assert_close(robust.aggregate(updates), fedvarp.aggregate(updates))


@pytest.mark.parametrize("name", ["median(beta=0)", "trimmed_mean(beta=0, trim=0.1)"])
def test_one_liar_of_three_stays_within_the_others_range(name: str) -> None:
    honest = torch.tensor([[1.0, -2.0], [2.0, -1.0]])
    liar = torch.tensor([[1e9, -1e9]])
    robust = make_algorithm(name, TableSettings(3, 2))
    v = robust.aggregate(updates_of([0, 1, 2], torch.cat([honest, liar])))
    assert v.tolist() == [2.0, -2.0]


def test_the_liars_row_is_replayed_all_the_same() -> None:
    """What trimming does not do, and clipping does."""
    robust = make_algorithm("median", TableSettings(10, 1))
    robust.aggregate(updates_of([0, 1, 2], torch.tensor([[1.0], [1.0], [1e6]])))
    v = robust.aggregate(updates_of([3, 4, 5], torch.ones(3, 1)))
    assert float(v) == pytest.approx((1e6 + 2) / 10 + 1)


def test_unequal_weights_are_refused_before_anything_changes() -> None:
    robust = TrimmedMean(table())
    deltas = torch.ones(3, D, dtype=torch.float64)
    equal, unequal = torch.full((3,), 0.5), torch.tensor([0.5, 0.2, 0.3])
    with pytest.raises(ValueError, match=r"unequal weights.*uniformly"):
        robust.aggregate(updates_of([0, 1, 2], deltas, unequal))
    assert robust.y.tables()[0].num_rows == 0
    v = robust.aggregate(updates_of([0, 1, 2], deltas, equal))
    torch.testing.assert_close(v, 1.5 * deltas[0])  # a sum with weights of 3 · ½


@pytest.mark.parametrize("option", ["trim=0.5", "trim=-0.1", "beta=2"])
def test_options_out_of_bounds_are_refused(option: str) -> None:
    with pytest.raises(SettingsError, match=option.split("=")[0]):
        make_algorithm(f"trimmed_mean({option})", TableSettings(N, D))


def test_they_claim_no_unbiasedness() -> None:
    assert not registry.fresh("median").unbiased
    assert not registry.fresh("trimmed_mean").full_is_fedavg
