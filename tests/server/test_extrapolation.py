"""FedExP: the step is as long as the updates' disagreement allows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedvarp import (
    Aggregator,
    FedAvg,
    FedVARP,
    MemoryTable,
    RoundUpdates,
    Server,
    ServerExP,
    stream,
)

DELTAS = torch.tensor([[3.0, 0.0], [0.0, 4.0], [-1.0, -1.0]]).double()


def updates(weights: Tensor | None = None, scale: float = 0.5) -> RoundUpdates:
    ones = torch.ones(3, dtype=torch.int64)
    return RoundUpdates(torch.arange(3), DELTAS, ones, ones, scale, weights)


def a_server(aggregator: Aggregator | None = None, lr: float = 1.0, eps: float = 1e-3) -> Server:
    return Server(torch.zeros(2).double(), aggregator or FedAvg(), ServerExP(lr, eps))


def test_the_rate_is_the_papers() -> None:
    """Σ‖w − w_i‖² / (2M (‖mean‖² + ε)) with w − w_i = Δ_i/2: (9 + 16 + 2)/4/3 = 2.25.

    The mean of the differences is (1/3, 1/2), of length² 13/36; η = 2.25 / (2 (13/36 + 0.125)).
    """
    server = a_server(eps=0.125)
    server.receive(updates())
    rate = 2.25 / (2 * (13 / 36 + 0.125))
    assert rate > 1
    expected = -rate * torch.tensor([1 / 3, 1 / 2], dtype=torch.float64)
    torch.testing.assert_close(server.w, expected, rtol=1e-12, atol=0)


def test_clients_count_by_their_weights() -> None:
    """Σ a_i‖Δ_i‖² with a = (½, ¼, ¼): (½·9 + ¼·16 + ¼·2)/4 = 2.25 again; v/2 = (0.625, 0.375)."""
    server = a_server(eps=0.125)
    server.receive(updates(torch.tensor([0.5, 0.25, 0.25]).double()))
    v = torch.tensor([0.625, 0.375]).double()
    rate = 2.25 / (2 * (float(v.square().sum()) + 0.125))
    torch.testing.assert_close(server.w, -rate * v, rtol=1e-12, atol=0)


def test_over_a_table_it_is_the_length_of_v_that_counts() -> None:
    server = a_server(FedVARP(MemoryTable(6, 2, "float64")), eps=0.125)
    server.receive(updates())
    before = server.w.clone()
    server.receive(updates())  # Δ = y for all three: v is half of the mean, ȳ over six clients
    v = DELTAS.mean(0) / 2 * 0.5
    rate = max(1.0, 2.25 / (2 * (float(v.square().sum()) + 0.125)))
    torch.testing.assert_close(server.w, before - rate * v, rtol=1e-12, atol=0)


@given(seed=st.integers(0, 99), size=st.integers(1, 5), scale=st.floats(1e-3, 10))
def test_it_steps_along_v_at_least_as_far_as_fedavg(seed: int, size: int, scale: float) -> None:
    deltas = torch.randn(size, 4, generator=stream(seed, "deltas"), dtype=torch.float64)
    ones = torch.ones(size, dtype=torch.int64)
    server = Server(torch.zeros(4).double(), FedAvg(), ServerExP())
    server.receive(RoundUpdates(torch.arange(size), deltas, ones, ones, scale))
    step = -scale * deltas.mean(0)
    rates = server.w / step
    assert float(rates.min()) >= 1 - 1e-12
    torch.testing.assert_close(rates, rates[:1].expand(4), rtol=1e-9, atol=0)
    if size == 1:
        assert float(rates[0]) == pytest.approx(1), "one client disagrees with nobody"


def test_a_round_without_replies_goes_on_at_the_least_rate() -> None:
    """What the round before has told must not be taken for this one's."""
    aggregator = FedVARP(MemoryTable(3, 2, "float64"))
    server = a_server(aggregator, lr=1.0)
    server.receive(updates())
    before = server.w.clone()
    none = torch.empty(0, dtype=torch.int64)
    empty = RoundUpdates(none, torch.empty(0, 2).double(), none, none, 0.5, weights=none.double())
    server.receive(empty)
    torch.testing.assert_close(server.w, before - 0.5 * DELTAS.mean(0), rtol=1e-12, atol=0)


def test_enormous_updates_do_not_overflow() -> None:
    ones = torch.ones(2, dtype=torch.int64)
    deltas = torch.full((2, 2000), 9e17)  # their squared lengths are beyond float32
    deltas[1] *= -0.9
    server = Server(torch.zeros(2000), FedAvg(), ServerExP())
    report = server.receive(RoundUpdates(torch.arange(2), deltas, ones, ones, scale=1e-3))
    assert report.accepted == (0, 1)
    assert bool(server.w.isfinite().all())
