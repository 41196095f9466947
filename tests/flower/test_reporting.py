"""Metrics are averaged over clients, and the log says what matters."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, Message

from fedvarp.flower import Median
from flower.asking import FedAvg, FedDyn, FedProx, FedVARP, Scaffold
from flower.handmade_replies import Round, with_metric
from flower.small_federation import a_grid, an_app, run, w0


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


@pytest.mark.parametrize(
    ("strategy", "objective"),
    [
        (FedVARP(weighting="uniform"), "by their local steps"),
        (FedVARP(weighting="uniform", normalise_steps=True), "once each"),
        (Scaffold(weighting="uniform"), "once each"),
        (Scaffold(), "by their 'num-examples'\n"),
        (FedDyn(weighting="uniform"), "once each"),
        (FedProx(weighting="uniform"), "by their local steps"),
        (FedAvg(), "by their 'num-examples' times their local steps, as in Flower's FedAvg"),
        (FedVARP(), "by their 'num-examples' times their local steps, as in Flower's FedAvg"),
        (FedAvg(weighted_by_key="n", normalise_steps=True), "by their 'n'\n"),
        (Median(), "by their local steps"),
    ],
)
def test_the_start_says_whom_the_model_is_trained_for(
    strategy: Any, objective: str, caplog: pytest.LogCaptureFixture
) -> None:
    strategy.begin(w0())
    strategy.summary()
    assert f"Clients count: {objective}" in caplog.text


@pytest.mark.parametrize(
    ("kind", "rates", "said"),
    [(FedVARP, None, 1), (FedVARP, {2: 0.1}, 1), (FedVARP, {1: 0.1}, 0), (FedAvg, None, 0)],
)
def test_rates_that_are_not_reported_are_told_where_rows_depend_on_them(
    kind: Any, rates: Any, said: int, caplog: pytest.LogCaptureFixture
) -> None:
    run(kind(fraction_evaluate=0), a_grid(an_app(rates=rates), 2, seed=0), rounds=2)
    assert caplog.text.count("taken to be client_lr=1 in all rounds") == said
