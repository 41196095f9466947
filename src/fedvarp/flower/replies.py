"""From a message to an update: nothing about a reply is trusted, and each fault has its reason."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch
from flwr.app import ArrayRecord, Message, RecordDict
from torch import Tensor

from fedvarp.flower.arrays import Layout, UnusableArraysError
from fedvarp.tables.largest_entries import DIVERGED_ABOVE

NUM_EXAMPLES: Final = "num-examples"
NUM_STEPS: Final = "num-steps"
CLIENT_LR: Final = "client-lr"
# Beyond these a number is a fault, not a measurement.
MOST: Final = {NUM_EXAMPLES: 1e12, NUM_STEPS: 1e7, CLIENT_LR: 1e4}
LEAST_RATE: Final = 1e-12


class RefusedReplyError(Exception):
    """This reply cannot be used; the message says why. It costs nothing but itself."""


@dataclass(frozen=True, eq=False)
class Update:
    """A reply that has passed every check."""

    node: int
    round: int  # of the model it was trained from, counted from 1
    difference: Tensor  # (d,), w - w_i, finite
    magnitude: float  # the largest absolute value in it
    buffers: dict[str, Tensor]
    num_examples: int
    measured: dict[str, float]  # the client's own num-steps and client-lr, where it sends them
    content: RecordDict


@dataclass(frozen=True)
class ReplyReader:
    """Checks replies against the model they answer to.

    Attributes:
        layout: Of the model's arrays.
        array_key: The name of the record that holds them.
        max_norm: Longest update that is believed, ‖w - w_i‖; None: any.
        steps_needed: Whether a reply must say how many steps were taken.
    """

    layout: Layout
    array_key: str
    max_norm: float | None
    steps_needed: bool

    def read(self, reply: Message, round: int, w: Tensor, out: Tensor) -> Update:
        """The update in a reply.

        Args:
            reply: With content; see `refuse_error`.
            round: That it answers to.
            w: (d,), the model of that round.
            out: (d,), memory for w - w_i; left with anything in it if the reply is refused.

        Raises:
            RefusedReplyError: With the reason.
        """
        num_examples = examples_in(reply.content)
        measured = self._measured(reply.content)
        arrays = self._arrays(reply.content)
        try:
            self.layout.check(arrays)
            magnitude = self.layout.difference(w, arrays, out)
            buffers = self.layout.read_buffers(arrays)
        except UnusableArraysError as error:
            raise RefusedReplyError(str(error)) from error
        self._refuse_diverged(out, magnitude, buffers)
        return Update(
            reply.metadata.src_node_id,
            round,
            out,
            magnitude,
            buffers,
            num_examples,
            measured,
            reply.content,
        )

    def _measured(self, content: RecordDict) -> dict[str, float]:
        measured: dict[str, float] = {}
        steps = number_in(content, NUM_STEPS)
        if steps is not None:
            measured[NUM_STEPS] = _whole(NUM_STEPS, steps)
        elif self.steps_needed:
            raise RefusedReplyError(
                f"it does not report {NUM_STEPS!r}, which this algorithm needs; use "
                f"fedvarp.flower.LocalSteps in the client"
            )
        rate = number_in(content, CLIENT_LR)
        if rate is not None:
            if not LEAST_RATE <= rate <= MOST[CLIENT_LR]:
                raise RefusedReplyError(f"it reports {CLIENT_LR} = {rate:g}")
            measured[CLIENT_LR] = rate
        return measured

    def _arrays(self, content: RecordDict) -> ArrayRecord:
        records = content.array_records
        if self.array_key in records:
            return records[self.array_key]
        if len(records) != 1:
            raise RefusedReplyError(
                f"it holds {len(records)} array records, none of them called {self.array_key!r}"
            )
        return next(iter(records.values()))

    def _refuse_diverged(
        self, difference: Tensor, magnitude: float, buffers: dict[str, Tensor]
    ) -> None:
        if not math.isfinite(magnitude) or not all(
            bool(b.isfinite().all()) for b in buffers.values()
        ):
            raise RefusedReplyError("its arrays hold NaN or infinity: local training diverged")
        if magnitude > DIVERGED_ABOVE:
            raise RefusedReplyError(f"its update reaches {magnitude:.1e}: training diverged")
        if self.max_norm is not None:
            norm = float(torch.linalg.vector_norm(difference))
            if not norm <= self.max_norm:
                raise RefusedReplyError(
                    f"its update has norm {norm:.3g}, above max_update_norm={self.max_norm:g}"
                )


def refuse_error(reply: Message) -> None:
    """Raises RefusedReplyError if the reply has no content: the client app failed."""
    if reply.has_error():
        reason = str(reply.error.reason).strip() or "no reason given"
        raise RefusedReplyError(f"error {reply.error.code}: {reason.splitlines()[-1]}")
    if not reply.has_content():
        raise RefusedReplyError("it is empty")


def examples_in(content: RecordDict) -> int:
    """How many examples the client has.

    Raises:
        RefusedReplyError: It does not say, or says something absurd.
    """
    value = number_in(content, NUM_EXAMPLES)
    if value is None:
        raise RefusedReplyError(f"it does not report {NUM_EXAMPLES!r} as one number")
    return int(_whole(NUM_EXAMPLES, value))


def number_in(content: RecordDict, key: str) -> float | None:
    """A single number under this key in one of the metric records; None if there is none."""
    for record in content.metric_records.values():
        value = record.get(key)
        if isinstance(value, int | float):
            try:
                return float(value)
            except OverflowError:
                return math.inf
        if value is not None:
            raise RefusedReplyError(f"{key!r} is a list")
    return None


def _whole(key: str, value: float) -> float:
    if not (1 <= value <= MOST[key] and value == int(value)):
        raise RefusedReplyError(f"it reports {key} = {value:g}")
    return value
