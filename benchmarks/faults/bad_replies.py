"""Ninety kinds of replies that no honest client sends, and lies that it might: each by its name."""

from __future__ import annotations

import io
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

SHAPES = {"weight": (4, 3), "bias": (4,)}
HEADER = b"\x93NUMPY\x01\x00"


@dataclass
class Forger:
    """What a liar knows and has.

    Attributes:
        chance: Where its whims come from.
        w: The model it was sent, by name.
        number: Counts its lies.
    """

    chance: random.Random
    w: dict[str, Any]
    number: int = 0


Forgery = Callable[[Forger, Message], list[Message]]


def npy(**changed: object) -> bytes:
    """A file of four float32 with another header."""
    told = {"descr": "<f4", "fortran_order": False, "shape": (4,), **changed}
    text = repr(told).encode().ljust(117) + b"\n"
    return HEADER + len(text).to_bytes(2, "little") + text + bytes(16)


def saved(write: Callable[[io.BytesIO], object]) -> bytes:
    """What a function writes into a file."""
    file = io.BytesIO()
    write(file)
    return file.getvalue()


def array(name: str, made: Callable[[], Array]) -> Forgery:
    """Another array of that name."""

    def forge(forger: Forger, reply: Message) -> list[Message]:
        reply.content.array_records["arrays"][name] = made()
        return [reply]

    return forge


def data(content: Callable[[], bytes], stype: str = "numpy.ndarray", dtype: str = "float32") -> Any:
    """Other bytes in place of the bias, made once."""
    made = cache(content)
    return array("bias", lambda: Array(dtype=dtype, shape=(4,), stype=stype, data=made()))


def filled(number: float, dtype: str = "float32", shape: tuple[int, ...] = (4,)) -> Forgery:
    """A bias of that number."""
    return array("bias", lambda: Array(np.full(shape, number, dtype=dtype)))


def counter(made: Any) -> Forgery:
    """Another counter, a buffer of the model."""
    return array("steps", lambda: Array(np.array(made)))


def metric(key: str, value: Any) -> Forgery:
    """Another number in the metrics, past Flower's own check of it."""

    def forge(forger: Forger, reply: Message) -> list[Message]:
        dict.__setitem__(reply.content.metric_records["metrics"].__dict__["_data"], key, value)
        return [reply]

    return forge


def told(key: str, value: Callable[[Forger], Any]) -> Forgery:
    """A name of another kind, in a record of its own."""

    def forge(forger: Forger, reply: Message) -> list[Message]:
        del reply.content.metric_records["metrics"]["partition-id"]
        record = ConfigRecord()
        dict.__setitem__(record.__dict__["_data"], key, value(forger))
        reply.content["who"] = record
        return [reply]

    return forge


def content(made: Callable[[RecordDict], RecordDict]) -> Forgery:
    """A reply with other records."""

    def forge(forger: Forger, reply: Message) -> list[Message]:
        reply.__dict__["_content"] = made(reply.content)
        return [reply]

    return forge


def metadata(key: str, value: Callable[[Message], Any]) -> Forgery:
    """A reply that claims to be another."""

    def forge(forger: Forger, reply: Message) -> list[Message]:
        reply.metadata.__dict__[key] = value(reply)
        return [reply]

    return forge


def error(code: int, reason: str) -> Forgery:
    """No content, but an error."""

    def forge(forger: Forger, reply: Message) -> list[Message]:
        reply.__dict__["_content"], reply.__dict__["_error"] = None, Error(code, reason)
        return [reply]

    return forge


def lie(change: Callable[[Forger, Any], Any]) -> Forgery:
    """An update that could be true: (forger, w_i − w) → what it says instead."""

    def forge(forger: Forger, reply: Message) -> list[Message]:
        arrays = reply.content.array_records["arrays"]
        for name in SHAPES:
            w = forger.w[name]
            moved = w + change(forger, arrays[name].numpy() - w)
            arrays[name] = Array(np.asarray(moved, dtype=np.float32))
        return [reply]

    return forge


def twice(forger: Forger, reply: Message) -> list[Message]:
    """The same answer two times."""
    return [reply, reply]


def noise(forger: Forger, step: Any) -> Any:
    """Something of ten times the length, in any direction."""
    drawn = np.array([forger.chance.gauss(0, 1) for _ in range(step.size)]).reshape(step.shape)
    return drawn * 10 * np.linalg.norm(step) / np.linalg.norm(drawn)


def _without(name: str) -> Forgery:
    def forge(forger: Forger, reply: Message) -> list[Message]:
        del reply.content.array_records["arrays"][name]
        return [reply]

    return forge


def _no_metric(key: str) -> Forgery:
    def forge(forger: Forger, reply: Message) -> list[Message]:
        del reply.content.metric_records["metrics"][key]
        return [reply]

    return forge


BROKEN: dict[str, Forgery] = {
    # Arrays that are not those of the model
    "a missing array": _without("bias"),
    "no array": content(lambda c: RecordDict({"metrics": c["metrics"]})),
    "an empty record": content(lambda c: RecordDict({**c, "arrays": ArrayRecord()})),
    "two records": content(lambda c: RecordDict({"a": c["arrays"], "b": c["arrays"], **_rest(c)})),
    "a strange array": array("extra", lambda: Array(np.zeros(1, dtype=np.float32))),
    "a name of a megabyte": array("x" * 10**6, lambda: Array(np.zeros(1, dtype=np.float32))),
    "a name with escapes": array("\x1b[31m\n\x00", lambda: Array(np.zeros(1, dtype=np.float32))),
    "a longer array": filled(0, shape=(5,)),
    "an empty array": filled(0, shape=(0,)),
    "a scalar": filled(0, shape=()),
    "a transposed array": array("weight", lambda: Array(np.zeros((3, 4), dtype=np.float32))),
    "a negative shape": array(
        "bias", lambda: Array(dtype="float32", shape=(-4,), stype="numpy.ndarray", data=npy())
    ),
    "complex numbers": filled(0, "complex64"),
    "long complex numbers": filled(0, "complex128"),
    "texts": filled(0, "U8"),
    "truth": filled(0, "bool"),
    "dates": filled(0, "datetime64[s]"),
    "no such type": data(npy, dtype="nonsense"),
    "a type of a kilobyte": data(npy, dtype="f" * 1000),
    "a structured type": data(npy, dtype="f4,f4"),
    "a comma": data(npy, dtype=","),
    # Bytes that are no array
    "no bytes": data(lambda: b""),
    "cut off": data(lambda: npy()[:-5]),
    "bytes too many": data(lambda: npy() + b"more"),
    "random bytes": data(lambda: random.Random(0).randbytes(200)),
    "an npz": data(lambda: saved(lambda f: np.savez(f, bias=np.zeros(4)))),
    "a compressed npz": data(lambda: saved(lambda f: np.savez_compressed(f, b=np.zeros(10**6)))),
    "torch.save": data(lambda: saved(lambda f: torch.save(torch.zeros(4), f))),
    "pickled objects": data(
        lambda: saved(lambda f: np.save(f, np.array([None, {}], dtype=object), allow_pickle=True))
    ),
    "a pickle": data(lambda: b"\x80\x04N.", stype="pickle"),
    "no stype": data(npy, stype=""),
    "version 3": data(lambda: npy().replace(HEADER, b"\x93NUMPY\x03\x00")),
    "version 9": data(lambda: npy().replace(HEADER, b"\x93NUMPY\x09\x00")),
    "a terabyte declared": data(lambda: npy(shape=(2**38,))),
    "more than all memory": data(lambda: npy(shape=(2**62, 2**62))),
    "a negative size in the header": data(lambda: npy(shape=(-4,))),
    "two negative sizes": data(lambda: npy(shape=(-2, -2))),
    "a size that is no number": data(lambda: npy(shape=("4",))),
    "no shape": data(lambda: npy(shape=None)),
    "objects in the header": data(lambda: npy(descr="|O")),
    "nothing in the header": data(lambda: npy(descr="|V0")),
    "rows of a megabyte": data(lambda: npy(descr="(262144,)<f4")),
    "another type in the header": data(lambda: npy(descr="<i4")),
    "code in the header": data(lambda: npy(descr="__import__('os')")),
    "a header that is no text": data(lambda: HEADER + b"\x76\x00" + b"\xff" * 118 + bytes(16)),
    "a header of 60,000 bytes": data(lambda: HEADER + b"\x60\xea" + b" " * 60_000),
    "a nested header": data(lambda: HEADER + b"\xff\x01" + b"(" * 511),
    # Numbers that are none
    "NaN": filled(math.nan),
    "infinity": filled(math.inf),
    "minus infinity": filled(-math.inf),
    "beyond float32": filled(1e300, "float64"),
    "1e30": filled(1e30),
    "1e19": filled(1e19),
    "half a counter": counter(7.5),
    "an infinite counter": counter(math.inf),
    "a counter beyond int64": counter(np.uint64(2**64 - 1)),
    "1e30 in a counter": counter(1e30),
    # What clients say of themselves
    "no examples": _no_metric("num-examples"),
    "0 examples": metric("num-examples", 0),
    "-3 examples": metric("num-examples", -3),
    "NaN examples": metric("num-examples", math.nan),
    "infinite examples": metric("num-examples", math.inf),
    "1e13 examples": metric("num-examples", 10**13),
    "10^400 examples": metric("num-examples", 10**400),
    "a list of examples": metric("num-examples", [1, 2]),
    "examples in words": metric("num-examples", "many"),
    "0 steps": metric("num-steps", 0),
    "-100 steps": metric("num-steps", -100),
    "2.5 steps": metric("num-steps", 2.5),
    "NaN steps": metric("num-steps", math.nan),
    "1e9 steps": metric("num-steps", 10**9),
    "2^63 steps": metric("num-steps", 2**63),
    "a list of steps": metric("num-steps", [5]),
    "steps in bytes": metric("num-steps", b"5"),
    "rate 0": metric("client-lr", 0.0),
    "rate -1": metric("client-lr", -1.0),
    "rate NaN": metric("client-lr", math.nan),
    "rate 1e5": metric("client-lr", 1e5),
    "rate 1e-13": metric("client-lr", 1e-13),
    "0 gradients": metric("num-gradients", 0.0),
    "NaN gradients": metric("num-gradients", math.nan),
    "2e7 gradients": metric("num-gradients", 2e7),
    # Replies that are none
    "an error": error(2, "ValueError\nout of memory"),
    "an error of a megabyte": error(2, "\x1b[2J" * 250_000),
    "an error without a code": error(0, ""),
    "nothing": content(lambda c: RecordDict()),
    "metrics only": content(lambda c: RecordDict({"metrics": MetricRecord({"loss": 1.0})})),
    "no round": metadata("_group_id", lambda reply: "no round"),
    "an empty round": metadata("_group_id", lambda reply: ""),
    "a round of 5,000 digits": metadata("_group_id", lambda reply: "9" * 5000),
    "a round to come": metadata("_group_id", lambda r: str(int(r.metadata.group_id) + 7)),
    "a round long ago": metadata("_group_id", lambda r: str(int(r.metadata.group_id) - 30)),
    "a negative round": metadata("_group_id", lambda reply: "-1"),
    "a stranger": metadata("_src_node_id", lambda reply: 999_999),
}
"""Must not be used: whatever they are, nothing but the reply is lost."""

PLAUSIBLE: dict[str, Forgery] = {
    "update × 100": lie(lambda forger, step: 100 * step),
    "update × 1e6": lie(lambda forger, step: 1e6 * step),
    "update × -1": lie(lambda forger, step: -step),
    "update × -10": lie(lambda forger, step: -10 * step),
    "noise": lie(noise),
    "nothing learned": lie(lambda forger, step: 0 * step),
    "tiny": lie(lambda forger, step: 1e-38 * step),
    "shifted": lie(lambda forger, step: step + 5),
    "1e7 steps": metric("num-steps", 10**7),
    "1 step": metric("num-steps", 1),
    "1e-12 gradients": metric("num-gradients", 1e-12),
    "1e7 gradients": metric("num-gradients", 1e7),
    "rate 1e-12": metric("client-lr", 1e-12),
    "rate 1e4": metric("client-lr", 1e4),
    "1e12 examples": metric("num-examples", 10**12),
    "1e-12 examples": metric("num-examples", 1e-12),
    "a new name each time": told("partition-id", lambda forger: f"new {forger.number}"),
    "a number of 5,000 digits for a name": told("partition-id", lambda forger: 10**5000),
    "a name of 10,000 letters": told("partition-id", lambda forger: "x" * 10_000),
    "an empty name": told("partition-id", lambda forger: ""),
    "escapes in a name": told("partition-id", lambda f: f"\x1b[2J\n{f.number % 7}"),
    "a node's name": told("partition-id", lambda forger: "node 1003"),
    "a key's name": told("partition-id", lambda forger: "key 0123456789abcdef"),
    "NaN for a name": told("partition-id", lambda forger: math.nan),
    "a list for a name": told("partition-id", lambda forger: [1, 2]),
    "another's name": told("partition-id", lambda forger: str(forger.chance.randrange(20))),
    "a new cluster each time": metric("region", 10**6),
    "an answer twice": twice,
    "a thousand metrics": content(
        lambda c: RecordDict({**c, "more": MetricRecord({f"m{i}": float(i) for i in range(1000)})})
    ),
    "metrics that are NaN": metric("loss", math.nan),
    "metrics beyond floats": metric("loss", 10**400),
    "float64": filled(0.5, "float64"),
    "float16": filled(0.5, "float16"),
    "big-endian": filled(0.5, ">f4"),
    "whole numbers": filled(1, "int64"),
    "in Fortran's order": array("weight", lambda: Array(np.ones((4, 3), np.float32, order="F"))),
    "sizes that are truth": data(lambda: npy(shape=(True, 4))),
    "version 2": data(
        lambda: npy().replace(HEADER + b"\x76\x00", b"\x93NUMPY\x02\x00\x76\x00\x00\x00")
    ),
}
"""May be used: the model must stay near where honest clients take it."""


def _rest(given: RecordDict) -> dict[str, Any]:
    return {"metrics": given["metrics"]}
