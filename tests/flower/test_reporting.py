"""Metrics are averaged over clients, and the log says what matters."""

from __future__ import annotations

import math

import pytest
import torch
from flwr.app import ArrayRecord, Message

from fedvarp.flower import FedVARP
from flower.handmade_replies import Round, with_metric
from flower.small_federation import a_grid, an_app, run


def test_absurd_metrics_are_left_out_of_the_means(one_round: Round) -> None:
    """Losses of 1, beyond all floats, NaN and a list; only the first can be averaged."""
    asked = one_round.ask(1)
    replies = [with_metric("loss", value) for value in (1.0, 10**400, math.nan, [2.0])]
    _, metrics = one_round.strategy.aggregate_train(
        1, [Message(c, reply_to=asked[n]) for n, c in enumerate(replies, 1)]
    )
    assert metrics is not None
    assert metrics["loss"] == 1.0
    assert one_round.rows().any(1).sum() == 4, "their updates count all the same"


def test_evaluation_is_weighted_by_examples() -> None:
    result = run(FedVARP(clients_per_round=1), a_grid(an_app(), 3, seed=0), rounds=1)
    # Losses 0, 1, 2 with 1, 2, 3 examples.
    assert result.evaluate_metrics_clientapp[1] == {"loss": pytest.approx(8 / 6)}


def test_the_size_of_the_table_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    strategy = FedVARP(num_clients=250, codec="float16")
    strategy.begin(ArrayRecord({"w": torch.zeros(1_000_000)}))
    strategy.summary()
    assert "0 of 250 rows written, float16, 2.00 MB each" in caplog.text
    assert "500.00 MB when full, in memory" in caplog.text
