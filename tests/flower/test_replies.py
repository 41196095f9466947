"""A bad reply costs nothing but itself."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from hypothesis import example, given
from hypothesis import settings as given_settings
from hypothesis import strategies as st

from fedvarp.flower.replies import text_in
from flower.asking import MIFA, FedDyn, FedVARP, Scaffold
from flower.handmade_replies import (
    DAMAGE,
    DIM,
    NUM_CLIENTS,
    SHAPES,
    Round,
    a_model,
    a_strategy,
    good,
    numbers,
    without,
)


@pytest.mark.parametrize("kind", DAMAGE)
def test_each_damage_has_its_reason_and_the_others_count(
    one_round: Round, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    make, reason = DAMAGE[kind]
    asked = one_round.ask(1)
    replies = [Message(good(), reply_to=asked[node]) for node in (3, 4)]
    replies.insert(1, Message(make(), reply_to=asked[9]))
    one_round.end(1, replies)
    said = [record.getMessage() for record in caplog.records if "is not used" in record.message]
    assert len(said) == 1
    assert "node 9" in said[0]
    assert reason in said[0]
    # w_i = 0.5 at a rate of 1: Δ_i = 0 - 0.5, for the two good clients only.
    assert one_round.rows().eq(-0.5).all(1).sum() == 2
    assert one_round.rows().eq(0).all(1).sum() == NUM_CLIENTS - 2
    assert one_round.strategy.server.w.tolist() == [0.5] * DIM
    one_round.check_law()


def test_more_records_do_no_harm_beside_the_one_that_is_asked_for(one_round: Round) -> None:
    asked = one_round.ask(1)
    content = good()
    content["another"] = a_model(7.0)
    one_round.end(1, [Message(content, reply_to=asked[1])])
    assert one_round.strategy.server.w.tolist() == [0.5] * DIM


def test_running_statistics_that_diverged_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    round_ = Round(a_strategy())
    start = {"w": numbers((2,), 0.0), "bn.running_mean": numbers((2,), 0.0)}
    round_.arrays = ArrayRecord(start)
    asked = round_.ask(1)
    contents = [
        RecordDict(
            {
                "arrays": ArrayRecord({**start, "bn.running_mean": numbers((2,), mean)}),
                "metrics": MetricRecord({"num-examples": 1}),
            }
        )
        for mean in (math.nan, 3.0)
    ]
    round_.end(1, [Message(c, reply_to=asked[n]) for n, c in enumerate(contents, 1)])
    assert caplog.text.count("NaN or infinity") == 1
    assert round_.arrays["bn.running_mean"].numpy().tolist() == [3, 3]


@pytest.mark.parametrize(
    ("kind", "settings"), [(Scaffold, {}), (FedDyn, {}), (FedVARP, {"normalise_steps": True})]
)
def test_steps_are_needed_where_gradients_are_corrected_and_to_normalise(
    kind: Any, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    round_ = Round(kind(num_clients=NUM_CLIENTS, ask_names=False, **settings))
    asked = round_.ask(1)
    replies = [without("metrics", "num-steps"), good()]
    round_.end(1, [Message(c, reply_to=asked[n]) for n, c in enumerate(replies, 1)])
    assert "LocalSteps" in caplog.text
    assert round_.rows().any(1).sum() == 1


def test_names_are_short_and_whole_numbers_have_no_point() -> None:
    told = ConfigRecord({"a": 2.0, "b": "x" * 201, "c": "x" * 200})
    content = RecordDict({"told": told})
    assert [text_in(content, key) for key in "abc"] == ["2", None, "x" * 200]


@pytest.mark.parametrize("kind", [FedVARP, MIFA])
def test_a_thousand_replies_with_every_kind_of_damage(kind: Any) -> None:
    """84 rounds of 12: after each, bad replies have changed no row and the law holds."""
    chance = random.Random(0)
    round_ = Round(kind(num_clients=NUM_CLIENTS, ask_names=False, max_update_norm=100.0))
    seen = 0
    for t in range(1, 85):
        asked = round_.ask(t)
        before = round_.rows().clone()
        replies, answering = [], set()
        for node, message in asked.items():
            damage = chance.choice([*DAMAGE, "error", "twice", *["none"] * 12])
            if damage == "error":
                replies.append(Message(Error(2, "failed"), reply_to=message))
            elif damage in DAMAGE:
                replies.append(Message(DAMAGE[damage][0](), reply_to=message))
            else:
                value = chance.uniform(-1, 1)
                replies.append(Message(good(value), reply_to=message))
                answering.add(node)
                if damage == "twice":
                    replies.append(Message(good(-value), reply_to=message))
        seen += len(replies)
        chance.shuffle(replies)
        round_.end(t, replies)
        changed = (round_.rows() != before).any(1).nonzero().flatten().tolist()
        known = {round_.strategy.clients.at(node).row for node in answering}
        assert set(changed) == known
        assert round_.strategy.server.round == t
        assert bool(round_.strategy.server.w.isfinite().all())
        round_.check_law()
    assert seen >= 1000


REPORTED = ["num-examples", "num-steps", "num-gradients", "client-lr"]


ANY_NUMBER = st.one_of(st.integers(-(2**70), 2**70), st.floats(), st.lists(st.floats(), max_size=3))


ANY_ARRAY = st.builds(
    Array,
    dtype=st.sampled_from(["float32", "float64", "int64", "object", "nonsense"]),
    shape=st.lists(st.integers(0, 4), max_size=3).map(tuple),
    stype=st.sampled_from(["numpy.ndarray", "", "pickle"]),
    data=st.one_of(
        st.binary(max_size=200),
        st.binary(max_size=12).map(lambda tail: numbers((3,), 1.0).data[:-12] + tail),
    ),
)


ANY_REPLY = st.builds(
    lambda arrays, metrics: RecordDict(
        {"arrays": ArrayRecord(arrays), "metrics": MetricRecord(metrics)}
    ),
    st.dictionaries(st.sampled_from([*SHAPES, "steps", "other"]), ANY_ARRAY, max_size=4),
    st.dictionaries(
        st.sampled_from([*REPORTED, "partition-id", "loss"]),
        ANY_NUMBER,
        max_size=6,
    ),
)


@given(damaged=st.lists(ANY_REPLY, min_size=1, max_size=4), value=st.floats(-9, 9, width=32))
@example(damaged=[RecordDict()], value=2.0**-149)
@given_settings(max_examples=60, deadline=None)
def test_whatever_arrives_the_law_holds_and_good_replies_count(
    damaged: list[RecordDict], value: float
) -> None:
    round_ = Round(a_strategy())
    asked = round_.ask(1)
    replies = [Message(c, reply_to=asked[n]) for n, c in enumerate(damaged, 1)]
    round_.end(1, [*replies, Message(good(value), reply_to=asked[9])])
    row = round_.strategy.clients.at(9).row
    # The difference over the rate of the round, whoever has reported that.
    delta = np.float32(-value) / np.float32(round_.strategy._rounds.units.latest_rate)
    assert round_.rows()[row].tolist() == [float(delta)] * DIM
    assert bool(round_.strategy.server.w.isfinite().all())
    round_.check_law()
