"""What clients say of themselves is believed within a factor of what the others say."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from flwr.app import Message

from fedvarp.flower.claims import Claims, RateClaims
from flower.asking import FedVARP, Scaffold
from flower.handmade_replies import DIM, NUM_CLIENTS, Round, good, with_metric


def test_a_first_lie_is_outvoted_and_no_honest_number_is_changed_for_long() -> None:
    for lie in (1e7, 1.0):
        claims, believed = Claims(within=10.0), []
        claims.count(claims.believed([lie]))
        for _ in range(30):  # honest ones, one at a time
            believed = claims.believed([5000.0])
            claims.count(believed)
        assert believed == [5000.0]
        assert claims.believed([1e9, 5000.0, 1e-3]) == [5e4, 5000.0, 500.0]


def test_a_rate_that_one_client_tells_is_held_against_earlier_rounds() -> None:
    rates = RateClaims()
    assert rates.believed([0.1], None) == 0.1, "there is nothing to hold it against"
    assert rates.believed([1e4], None) == pytest.approx(0.3)
    assert rates.believed([1e-12], None) == pytest.approx(1e-4)
    assert rates.believed([0.05], None) == 0.05
    assert rates.believed([0.05, 0.05, 1e4], None) == 0.05, "a majority needs nobody's leave"
    assert rates.believed([1e-12, 0.04], None) == 0.04, "the one that is like the round before"
    assert rates.believed([1e4], 0.01) == pytest.approx(0.03), "what it was told to use"


@pytest.mark.parametrize("first", [[1e-12], [1e12], [0.1, 1e-12], [0.1, 1e12]])
def test_rows_are_replayed_at_most_three_times_too_long_for_a_first_lie(
    first: list[float],
) -> None:
    """A row that was divided by one rate is replayed by another: their ratio is what counts."""
    rates = RateClaims()
    believed = [rates.believed(first, None), *(rates.believed([0.1], None) for _ in range(9))]
    assert max(believed) / believed[0] <= 3.0 + 1e-9
    assert len(set(believed[1:])) == 1, "honest rounds are in one unit"


@pytest.mark.parametrize("clients_per_round", [1, 2])
def test_one_lie_about_a_rate_costs_little_in_small_cohorts(clients_per_round: int) -> None:
    """Every client moves the model half of the way to 1; the first to reply lies, and only once."""
    strategy = FedVARP(
        num_clients=NUM_CLIENTS, ask_names=False, clients_per_round=clients_per_round
    )
    round_, furthest, lies = Round(strategy), 0.0, [1e-12]
    for t in range(1, 49):
        replies = []
        for message in round_.ask(t).values():
            w = float(strategy.server.w[0])
            content = good(w + 0.5 * (1 - w))
            content.metric_records["metrics"]["client-lr"] = lies.pop() if lies else 0.1
            replies.append(Message(content, reply_to=message))
        round_.end(t, replies)
        furthest = max(furthest, float((strategy.server.w - 1).abs().max()))
    assert furthest <= 1.5
    assert (strategy.server.w - 1).abs().max() < 0.05


def rounds_with(lie: dict[str, float], strategy: Any, rounds: int = 8) -> Round:
    """Every client moves the model half of the way to 1; one in four of them lies about itself."""
    round_ = Round(strategy)
    for t in range(1, rounds + 1):
        replies = []
        for node, message in round_.ask(t).items():
            w = float(strategy.server.w[0])
            content = good(w + 0.5 * (1 - w))
            if node % 4 == 0:
                for key, number in lie.items():
                    content.metric_records["metrics"][key] = number
            replies.append(Message(content, reply_to=message))
        round_.end(t, replies)
    return round_


LIES: list[dict[str, float]] = [
    {"num-steps": 10**7},
    {"num-gradients": 1e-9},
    {"client-lr": 1e-12},
    {"client-lr": 1e4},
    {"num-examples": 10**12},
    {"num-examples": 1e-12},
]


@pytest.mark.parametrize("settings", [{}, {"normalise_steps": True}, {"kind": "scaffold"}])
@pytest.mark.parametrize("lie", LIES, ids=lambda lie: " ".join(lie))
def test_lies_about_oneself_do_not_take_the_model_away(
    lie: dict[str, float], settings: dict[str, Any]
) -> None:
    """All arrays are honest: the model must go where it goes without lies, 1."""
    kind = Scaffold if "kind" in settings else FedVARP
    chosen = {name: value for name, value in settings.items() if name != "kind"}
    strategy = kind(num_clients=NUM_CLIENTS, ask_names=False, max_update_norm=10.0, **chosen)
    round_ = rounds_with(lie, strategy)
    assert (round_.strategy.server.w - 1).abs().max() < 0.2
    assert round_.rows().abs().max() < 3


def test_the_longest_update_that_is_believed_is_the_one_that_is_used(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """0.05 for 5 gradients is taken for 0.5: a norm of 1.5 becomes 1.5 · τ̄ / 0.5 = 10.5."""
    strategy = FedVARP(
        num_clients=NUM_CLIENTS,
        ask_names=False,
        normalise_steps=True,
        max_update_norm=5.0,
        clip_updates=None,
    )
    round_ = Round(strategy)
    asked = round_.ask(1)
    contents = [with_metric("num-steps", 5) for _ in range(3)]
    contents[2].metric_records["metrics"]["num-gradients"] = 0.05
    round_.end(1, [Message(c, reply_to=asked[n]) for n, c in enumerate(contents, 1)])
    assert "above max_update_norm=5" in caplog.text
    assert round_.rows().any(1).sum() == 2
    assert torch.allclose(strategy.server.w, torch.full((DIM,), 0.5))
