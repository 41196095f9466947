"""From replies to one step of the server."""

from __future__ import annotations

import math

import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flower.asking import FedVARP, Scaffold
from flower.handmade_replies import (
    DIM,
    Round,
    a_model,
    a_strategy,
    good,
    numbers,
    with_array,
    with_metric,
)
from flower.in_process import InProcessGrid
from flower.small_federation import an_app, numbered_grid, row_of, train, w0


def test_a_round_of_bad_replies_changes_nothing_but_its_number(one_round: Round) -> None:
    asked = one_round.ask(1)
    w = one_round.strategy.server.w.clone()
    bad = with_array("bias", numbers((3,), math.nan))
    arrays, metrics = one_round.strategy.aggregate_train(
        1, [Message(bad, reply_to=message) for message in asked.values()]
    )
    assert arrays is None
    assert metrics is None
    assert one_round.strategy.server.round == 1
    assert one_round.strategy.server.w.equal(w)
    assert not one_round.rows().any()


def test_too_few_replies_change_nothing(caplog: pytest.LogCaptureFixture) -> None:
    round_ = Round(a_strategy(min_replies=3))
    asked = round_.ask(1)
    round_.end(1, [Message(good(), reply_to=asked[node]) for node in (3, 4)])
    assert "only 2 of at least 3 replies" in caplog.text
    assert not round_.rows().any()
    assert not round_.strategy.server.w.any()
    asked = round_.ask(2)
    round_.end(2, [Message(good(), reply_to=asked[node]) for node in (3, 4, 5)])
    assert round_.rows().eq(-0.5).all(1).sum() == 3


def test_what_the_core_refuses_is_refused_too(
    one_round: Round, caplog: pytest.LogCaptureFixture
) -> None:
    """A move of 0.5 at a rate of 1e-12 is a row of 5e11; one of 1e8 would make it 1e20."""
    asked = one_round.ask(1)
    replies = [with_metric("client-lr", 1e-12) for _ in range(2)]
    replies[1]["arrays"] = a_model(1e8)
    one_round.strategy._rounds.reader.__dict__["max_norm"] = None
    one_round.end(1, [Message(c, reply_to=asked[n]) for n, c in enumerate(replies, 1)])
    assert "reaches 1.0e+20" in caplog.text
    assert "1 replies used, 1 not." in caplog.text
    assert one_round.rows().any(1).sum() == 1
    assert one_round.strategy.server.w.tolist() == pytest.approx([0.5] * DIM)
    asked = one_round.ask(2)
    one_round.end(2, [Message(replies[1], reply_to=asked[1])])
    assert one_round.strategy.server.round == 2, "a round of nothing but refusals is counted"


def test_two_nodes_that_claim_one_name_count_once(
    one_round: Round, caplog: pytest.LogCaptureFixture
) -> None:
    asked = one_round.ask(1)
    one_round.end(
        1, [Message(with_metric("partition-id", 4), reply_to=asked[node]) for node in (7, 8)]
    )
    assert "client '4' has answered already" in caplog.text
    assert one_round.rows().eq(-0.5).all(1).sum() == 1


def test_scaffold_refuses_an_update_made_with_the_correction_of_another_row(
    caplog: pytest.LogCaptureFixture,
) -> None:
    grid = numbered_grid(an_app(answers=False, reports=True, steps=1))
    strategy = Scaffold(seed=0)
    strategy.begin(w0())
    train(strategy, grid, 1)
    before = row_of(strategy, "1")
    grid.disconnect(101)
    grid.connect(999, {"partition-id": 1})
    train(strategy, grid, 2)
    assert caplog.text.count("was sent another client's correction") == 1
    assert row_of(strategy, "1") == before
    train(strategy, grid, 3)
    assert caplog.text.count("was sent another client's correction") == 1, "it is known by now"


def test_buffers_are_averaged_counters_take_the_maximum_and_no_row_sees_them() -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        number = int(context.node_config["partition-id"])
        arrays = ArrayRecord(
            {
                "bn.running_mean": torch.full((2,), float(number)),
                "w": torch.ones(3),
                "bn.num_batches_tracked": torch.tensor(number),
            }
        )
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    grid = InProcessGrid(app)
    for node in range(4):
        grid.connect(node + 1, {"partition-id": node})
    start = ArrayRecord(
        {
            "bn.running_mean": torch.zeros(2),
            "w": torch.zeros(3),
            "bn.num_batches_tracked": torch.tensor(0),
        }
    )
    strategy = FedVARP(fraction_evaluate=0)
    result = strategy.start(grid, start, num_rounds=1, timeout=5)
    arrays = result.arrays.to_torch_state_dict()
    assert list(arrays) == ["bn.running_mean", "w", "bn.num_batches_tracked"]
    assert arrays["bn.running_mean"].tolist() == [1.5, 1.5]
    assert arrays["bn.num_batches_tracked"].dtype == torch.int64
    assert int(arrays["bn.num_batches_tracked"]) == 3
    assert arrays["w"].tolist() == [1, 1, 1]
    assert len(strategy.server.w) == 3
