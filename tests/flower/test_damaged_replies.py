"""A bad reply costs nothing but itself."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedvarp.flower import MIFA, FedVARP, Scaffold
from flower.in_process import InProcessGrid, be_the_server_app

NUM_CLIENTS = 12
SHAPES = {"weight": (3, 2), "bias": (3,)}
DIM = 9


@pytest.fixture(autouse=True)
def server_app() -> None:
    be_the_server_app()


def a_model(fill: float = 0.0) -> ArrayRecord:
    record = {name: Array(np.full(shape, fill, dtype=np.float32)) for name, shape in SHAPES.items()}
    return ArrayRecord({**record, "steps": Array(np.array(7, dtype=np.int64))})


def good(fill: float = 0.5) -> RecordDict:
    metrics = MetricRecord({"num-examples": 10, "num-steps": 2, "loss": 1.0})
    return RecordDict({"arrays": a_model(fill), "metrics": metrics})


def with_array(name: str, array: Array) -> RecordDict:
    content = good()
    content.array_records["arrays"][name] = array
    return content


def with_metric(key: str, value: Any) -> RecordDict:
    content = good()
    content.metric_records["metrics"][key] = value
    return content


def without(kind: str, key: str) -> RecordDict:
    content = good()
    del content[kind][key]
    return content


def numbers(shape: tuple[int, ...], fill: float, dtype: str = "float32") -> Array:
    return Array(np.full(shape, fill, dtype=dtype))


def renamed(shape: tuple[int, ...], claimed: str, data: bytes) -> Array:
    return Array(dtype=claimed, shape=shape, stype="numpy.ndarray", data=data)


DAMAGE: dict[str, tuple[Callable[[], RecordDict], str]] = {
    "missing array": (lambda: without("arrays", "bias"), "arrays missing"),
    "strange array": (lambda: with_array("extra", numbers((1,), 0)), "not known"),
    "other shape": (lambda: with_array("bias", numbers((4,), 0)), "has shape"),
    "transposed": (lambda: with_array("weight", numbers((2, 3), 0)), "has shape"),
    "other dtype": (lambda: with_array("bias", numbers((3,), 0, "float64")), "is float64"),
    "float counter": (lambda: with_array("steps", numbers((), 7)), "is float32"),
    "NaN": (lambda: with_array("bias", numbers((3,), math.nan)), "NaN or infinity"),
    "infinity": (lambda: with_array("weight", numbers((3, 2), -math.inf)), "NaN or infinity"),
    "enormous": (lambda: with_array("weight", numbers((3, 2), 1e30)), "reaches"),
    "cut off": (
        lambda: with_array("bias", renamed((3,), "float32", numbers((3,), 0).data[:-5])),
        "cannot be read",
    ),
    "no numbers": (lambda: with_array("bias", renamed((3,), "float32", b"")), "cannot be read"),
    "false claim": (
        lambda: with_array("bias", renamed((3,), "float32", numbers((5,), 0).data)),
        "holds 5 numbers",
    ),
    "false dtype": (
        lambda: with_array("bias", renamed((3,), "float32", numbers((3,), 0, "int32").data)),
        "of int32",
    ),
    "pickled": (
        lambda: with_array(
            "bias", Array(dtype="float32", shape=(3,), stype="pickle", data=b"\x80\x04N.")
        ),
        "cannot be read",
    ),
    "no arrays": (
        lambda: RecordDict({"metrics": MetricRecord({"num-examples": 1})}),
        "0 array records",
    ),
    "two records": (
        lambda: RecordDict(
            {"a": a_model(), "b": a_model(), "metrics": MetricRecord({"num-examples": 1})}
        ),
        "2 array records",
    ),
    "nothing": (RecordDict, "does not report 'num-examples'"),
    "no examples": (lambda: without("metrics", "num-examples"), "does not report 'num-examples'"),
    "zero examples": (lambda: with_metric("num-examples", 0), "num-examples = 0"),
    "minus examples": (lambda: with_metric("num-examples", -3), "num-examples = -3"),
    "half an example": (lambda: with_metric("num-examples", 1.5), "num-examples = 1.5"),
    "NaN examples": (lambda: with_metric("num-examples", math.nan), "num-examples = nan"),
    "all examples": (lambda: with_metric("num-examples", 10**13), "num-examples = 1e+13"),
    "beyond floats": (lambda: with_metric("num-examples", 10**400), "num-examples = inf"),
    "listed examples": (lambda: with_metric("num-examples", [1, 2]), "is a list"),
    "no steps": (lambda: with_metric("num-steps", 0), "num-steps = 0"),
    "endless steps": (lambda: with_metric("num-steps", 10**9), "num-steps = 1e+09"),
    "no rate": (lambda: with_metric("client-lr", 0.0), "client-lr = 0"),
    "NaN rate": (lambda: with_metric("client-lr", math.nan), "client-lr = nan"),
    "wild rate": (lambda: with_metric("client-lr", 1e5), "client-lr = 100000"),
    # √6 · 60 = 147, and about that from wherever the model has moved to.
    "long": (lambda: with_array("weight", numbers((3, 2), 60.0)), "above max_update_norm=100"),
}


class Round:
    """One round in which every client is asked, and its replies are made here."""

    def __init__(self, strategy: Any) -> None:
        self.strategy = strategy
        self.grid = InProcessGrid(ClientApp())
        for node in range(1, NUM_CLIENTS + 1):
            self.grid.connect(node, {"partition-id": node})
        self.arrays = a_model()

    def ask(self, round: int) -> dict[int, Message]:
        messages = self.strategy.configure_train(round, self.arrays, ConfigRecord(), self.grid)
        self.grid.push_messages(messages)
        return {message.metadata.dst_node_id: message for message in messages}

    def rows(self) -> torch.Tensor:
        states = self.strategy.server.aggregator.table
        rows: torch.Tensor = states.get(torch.arange(states.num_clients))
        return rows

    def check_law(self) -> None:
        states = self.strategy.server.aggregator.table
        torch.testing.assert_close(states.mean(), self.rows().mean(0))

    def end(self, round: int, replies: list[Message]) -> None:
        arrays, _ = self.strategy.aggregate_train(round, replies)
        self.arrays = self.arrays if arrays is None else arrays


def a_strategy(**changed: Any) -> FedVARP:
    return FedVARP(num_clients=NUM_CLIENTS, ask_names=False, max_update_norm=100.0, **changed)


@pytest.fixture
def one_round() -> Round:
    return Round(a_strategy())


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
    # w_i = 0.5 after two steps: Δ_i = (0 - 0.5) / 2, for the two good clients only.
    assert one_round.rows().eq(-0.25).all(1).sum() == 2
    assert one_round.rows().eq(0).all(1).sum() == NUM_CLIENTS - 2
    assert one_round.strategy.server.w.tolist() == [0.5] * DIM
    one_round.check_law()


def test_errors_duplicates_and_strangers_have_their_reasons_too(
    one_round: Round, caplog: pytest.LogCaptureFixture
) -> None:
    asked = one_round.ask(1)
    stranger = Message(good(), reply_to=asked[5])
    stranger.metadata.__dict__["_src_node_id"] = 99
    elsewhen = Message(good(), reply_to=asked[6])
    elsewhen.metadata.__dict__["_group_id"] = "no round"
    one_round.end(
        1,
        [
            Message(Error(2, "ValueError\nout of memory"), reply_to=asked[1]),
            Message(good(0.25), reply_to=asked[2]),
            Message(good(0.75), reply_to=asked[2]),
            stranger,
            elsewhen,
        ],
    )
    said = " ".join(record.getMessage() for record in caplog.records)
    assert "error 2: out of memory" in said
    assert said.count("it has answered already") == 1
    assert said.count("nothing was asked of it") == 2
    assert one_round.rows().eq(-0.125).all(1).sum() == 1, "the first answer counts"
    assert one_round.rows().eq(0).all(1).sum() == NUM_CLIENTS - 1


def test_an_error_of_the_superlink_is_told_of_the_node_it_is_about(
    one_round: Round, caplog: pytest.LogCaptureFixture
) -> None:
    """Flower's SuperLink is node 1 and answers in place of a node that sends no heartbeat."""
    asked = one_round.ask(1)
    gone = Message(Error(3, "Node Unavailable"), reply_to=asked[7])
    lost = Message(Error(1, "Message Unavailable"), reply_to=asked[8])
    for error in (gone, lost):
        error.metadata.__dict__["_src_node_id"] = 1
    lost.metadata.__dict__["_group_id"] = ""
    one_round.end(1, [gone, lost, Message(good(), reply_to=asked[9])])
    said = [record.getMessage() for record in caplog.records if "is not used" in record.message]
    assert [line.split("The reply of ")[1] for line in said] == [
        "node 7 is not used: error 3: Node Unavailable.",
        "node 8 is not used: error 1: Message Unavailable.",
    ]
    evaluation = one_round.strategy.configure_evaluate(
        1, one_round.arrays, ConfigRecord(), one_round.grid
    )
    one_round.grid.push_messages(evaluation)
    gone = Message(Error(3, "Node Unavailable"), reply_to=evaluation[5])
    gone.metadata.__dict__["_src_node_id"] = 1
    caplog.clear()
    assert one_round.strategy.aggregate_evaluate(1, [gone]) is None
    node = evaluation[5].metadata.dst_node_id
    assert f"The evaluation of node {node} is not used: error 3" in caplog.text


def test_two_nodes_that_claim_one_name_count_once(
    one_round: Round, caplog: pytest.LogCaptureFixture
) -> None:
    asked = one_round.ask(1)
    one_round.end(
        1, [Message(with_metric("partition-id", 4), reply_to=asked[node]) for node in (7, 8)]
    )
    assert "client '4' has answered already" in caplog.text
    assert one_round.rows().eq(-0.25).all(1).sum() == 1


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
    assert round_.rows().eq(-0.25).all(1).sum() == 3


def test_what_the_core_refuses_is_refused_too(
    one_round: Round, caplog: pytest.LogCaptureFixture
) -> None:
    """A move of 0.5 at a rate of 1e-12 and one of 1e8: the row would hold 5e11 and 1e20."""
    asked = one_round.ask(1)
    replies = [with_metric("client-lr", 1e-12) for _ in range(2)]
    replies[1]["arrays"] = a_model(1e8)
    one_round.strategy._rounds.reader.__dict__["max_norm"] = None
    one_round.end(1, [Message(c, reply_to=asked[n]) for n, c in enumerate(replies, 1)])
    assert "reaches 5.0e+19" in caplog.text
    assert "1 replies used, 1 not." in caplog.text
    assert one_round.rows().any(1).sum() == 1
    assert one_round.strategy.server.w.tolist() == pytest.approx([0.5] * DIM)
    asked = one_round.ask(2)
    one_round.end(2, [Message(replies[1], reply_to=asked[1])])
    assert one_round.strategy.server.round == 2, "a round of nothing but refusals is counted"


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


def test_scaffold_needs_the_number_of_steps(caplog: pytest.LogCaptureFixture) -> None:
    round_ = Round(Scaffold(num_clients=NUM_CLIENTS, ask_names=False))
    asked = round_.ask(1)
    replies = [without("metrics", "num-steps"), good()]
    round_.end(1, [Message(c, reply_to=asked[n]) for n, c in enumerate(replies, 1)])
    assert "LocalSteps" in caplog.text
    assert round_.rows().any(1).sum() == 1


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
        st.sampled_from(["num-examples", "num-steps", "client-lr", "partition-id", "loss"]),
        ANY_NUMBER,
        max_size=5,
    ),
)


@given(damaged=st.lists(ANY_REPLY, min_size=1, max_size=4), value=st.floats(-9, 9, width=32))
@example(damaged=[RecordDict()], value=2.0**-149)
@settings(max_examples=60, deadline=None)
def test_whatever_arrives_the_law_holds_and_good_replies_count(
    damaged: list[RecordDict], value: float
) -> None:
    round_ = Round(a_strategy())
    asked = round_.ask(1)
    replies = [Message(c, reply_to=asked[n]) for n, c in enumerate(damaged, 1)]
    round_.end(1, [*replies, Message(good(value), reply_to=asked[9])])
    row = round_.strategy.clients.at(9).row
    half = np.float32(-value) / np.float32(2)  # in float32: half of the least number is zero
    assert round_.rows()[row].tolist() == [float(half)] * DIM
    assert bool(round_.strategy.server.w.isfinite().all())
    round_.check_law()
