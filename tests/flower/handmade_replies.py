"""A round in which every client is asked, and replies are made by hand, good ones and bad."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedvarp.flower import FedVARP
from flower.in_process import InProcessGrid

NUM_CLIENTS = 12


SHAPES = {"weight": (3, 2), "bias": (3,)}


DIM = 9


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


def archive() -> bytes:
    """An npz file, which `numpy.load` opens as well."""
    file = io.BytesIO()
    np.savez(file, bias=np.zeros(3, dtype=np.float32))
    return file.getvalue()


def objects() -> bytes:
    """An array of Python objects, which `numpy.load` would have to unpickle."""
    file = io.BytesIO()
    np.save(file, np.array([None, {}, 1.0], dtype=object), allow_pickle=True)
    return file.getvalue()


DAMAGE: dict[str, tuple[Callable[[], RecordDict], str]] = {
    "missing array": (lambda: without("arrays", "bias"), "arrays missing"),
    "strange array": (lambda: with_array("extra", numbers((1,), 0)), "not known"),
    "other shape": (lambda: with_array("bias", numbers((4,), 0)), "has shape"),
    "transposed": (lambda: with_array("weight", numbers((2, 3), 0)), "has shape"),
    "other dtype": (lambda: with_array("bias", numbers((3,), 0, "complex64")), "is complex64"),
    "half a counter": (lambda: with_array("steps", numbers((), 7.5)), "must hold whole numbers"),
    "no counter": (lambda: with_array("steps", numbers((), math.inf)), "must hold whole numbers"),
    "object": (
        lambda: with_array("bias", renamed((3,), "object", objects())),
        "is object",
    ),
    "hidden object": (
        lambda: with_array("bias", renamed((3,), "float32", objects())),
        "cannot be read",
    ),
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
    "archive": (
        lambda: with_array("bias", renamed((3,), "float32", archive())),
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
    "NaN examples": (lambda: with_metric("num-examples", math.nan), "num-examples = nan"),
    "all examples": (lambda: with_metric("num-examples", 10**13), "num-examples = 1e+13"),
    "beyond floats": (lambda: with_metric("num-examples", 10**400), "num-examples = inf"),
    "listed examples": (lambda: with_metric("num-examples", [1, 2]), "is a list"),
    "no steps": (lambda: with_metric("num-steps", 0), "num-steps = 0"),
    "endless steps": (lambda: with_metric("num-steps", 10**9), "num-steps = 1e+09"),
    "no rate": (lambda: with_metric("client-lr", 0.0), "client-lr = 0"),
    "no gradients": (lambda: with_metric("num-gradients", 0.0), "num-gradients = 0"),
    "endless gradients": (lambda: with_metric("num-gradients", 2e7), "num-gradients = 2e+07"),
    "NaN gradients": (lambda: with_metric("num-gradients", math.nan), "num-gradients = nan"),
    "listed gradients": (lambda: with_metric("num-gradients", [1.0]), "is a list"),
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
