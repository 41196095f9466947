"""What the strategies are beside their algorithms."""

from __future__ import annotations

import pytest

from fedvarp.flower import FedAvg, FedVARP
from flower.small_federation import a_grid, an_app, run


def test_weighting_by_examples_is_flowers_and_the_default_is_the_papers() -> None:
    """Client i moves by i + 1 and has i + 1 examples; i = 0, 1, 2."""
    moved = {}
    for weighting in ("uniform", "examples"):
        strategy = FedAvg(weighting=weighting)
        run(strategy, a_grid(an_app(), 3, seed=0), rounds=1)
        moved[weighting] = float(strategy.server.w[0])
    assert moved["uniform"] == pytest.approx(2.0)
    assert moved["examples"] == pytest.approx((1 + 4 + 9) / 6)


def test_evaluations_tell_names_too() -> None:
    grid = a_grid(an_app(answers=False, reports=True), 8, seed=0)
    strategy = FedVARP(clients_per_round=1)
    run(strategy, grid, rounds=1)
    assert sorted(client.name for client in strategy.clients) == [str(i) for i in range(8)]
