"""From a reply to an update: nothing about a reply is trusted, and each refusal has its reason."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from flwr.app import ArrayRecord, Message, RecordDict
from torch import Tensor

from fedvarp.algorithms.round_updates import MOST_STEPS
from fedvarp.flower.arrays import Layout, UnusableArraysError
from fedvarp.flower.client import CLIENT_LR, NUM_GRADIENTS, NUM_STEPS
from fedvarp.tables.largest_entries import DIVERGED_ABOVE

# Beyond these a number is a fault, not a measurement.
_MOST: Final = {NUM_STEPS: float(MOST_STEPS), NUM_GRADIENTS: float(MOST_STEPS), CLIENT_LR: 1e4}
_MOST_EXAMPLES: Final = 1e12
_LEAST: Final = 1e-12
_LONGEST_NAME: Final = 200
_LONGEST_NUMBER: Final = 30  # digits of a name that is a number
_LONGEST_REASON: Final = 300


class RefusedReplyError(Exception):
    """This reply cannot be used; the message says why. It costs nothing but itself."""


@dataclass(frozen=True, eq=False)
class Update:
    """A reply that has passed every check."""

    node: int
    round: int  # of the model it was trained from, counted from 1
    difference: Tensor  # (d,) float32, w - w_i, finite
    magnitude: float  # the largest absolute value in it
    norm: float  # ‖w - w_i‖
    buffers: dict[str, Tensor]
    num_examples: float
    num_steps: int  # as the client counts them; 1 if it does not say
    num_gradients: float  # how many gradients the difference adds up, τ_i; num_steps if not said
    client_lr: float | None  # η_c; None if the client does not say
    content: RecordDict


@dataclass(frozen=True)
class ReplyReader:
    """Checks replies against the model they answer to.

    Attributes:
        layout: The layout of the model's arrays.
        array_key: The name of the record that holds them.
        max_norm: The longest update that is believed, ‖w - w_i‖ or what is made of it; None: any.
        steps_needed: Whether a reply must say how many steps were taken.
        weighted_by: The key of the number of examples.
    """

    layout: Layout
    array_key: str
    max_norm: float | None
    steps_needed: bool
    weighted_by: str

    def read(self, reply: Message, round: int, w: Tensor, out: Tensor) -> Update:
        """Takes the update out of a reply.

        Args:
            reply: The reply, with content: `refuse_error` has let it pass.
            round: The round it answers to.
            w: (d,) float32, the model of that round.
            out: (d,) float32, memory for w - w_i; holds anything if the reply is refused.

        Returns:
            The update.

        Raises:
            RefusedReplyError: It cannot be used.
        """
        num_examples = examples_in(reply.content, self.weighted_by)
        num_steps = self._steps_in(reply.content)
        num_gradients = _positive_in(reply.content, NUM_GRADIENTS)
        client_lr = _positive_in(reply.content, CLIENT_LR)
        record = self.arrays_in(reply.content)
        try:
            self.layout.check(record)
            magnitude, norm = self.layout.difference(w, record, out)
            buffers = self.layout.read_buffers(record)
        except UnusableArraysError as error:
            raise RefusedReplyError(str(error)) from error
        _refuse_diverged(magnitude, buffers)
        self.refuse_long(norm)
        return Update(
            node=reply.metadata.src_node_id,
            round=round,
            difference=out,
            magnitude=magnitude,
            norm=norm,
            buffers=buffers,
            num_examples=num_examples,
            num_steps=num_steps,
            num_gradients=num_steps if num_gradients is None else num_gradients,
            client_lr=client_lr,
            content=reply.content,
        )

    def _steps_in(self, content: RecordDict) -> int:
        steps = _number_in(content, NUM_STEPS)
        if steps is not None:
            return _whole(NUM_STEPS, steps)
        if self.steps_needed:
            raise RefusedReplyError(
                f"it does not report {NUM_STEPS!r}, which SCAFFOLD, FedDyn and normalise_steps "
                f"need; use fedvarp.flower.LocalSteps in the client"
            )
        return 1

    def arrays_in(self, content: RecordDict) -> ArrayRecord:
        """The model in a message or a reply.

        Args:
            content: Of the message.

        Returns:
            The record under the name it should have, or the only one there is.

        Raises:
            RefusedReplyError: There is none, or it is not clear which.
        """
        records = content.array_records
        if self.array_key in records:
            return records[self.array_key]
        if len(records) != 1:
            raise RefusedReplyError(
                f"it holds {len(records)} array records, none of them called {self.array_key!r}"
            )
        return next(iter(records.values()))

    def refuse_long(self, norm: float, times: float = 1.0) -> None:
        """Refuses an update that is too long.

        Args:
            norm: ‖w − w_i‖.
            times: How much longer it is as it is used.

        Raises:
            RefusedReplyError: It is.
        """
        if self.max_norm is not None and not norm * times <= self.max_norm:
            raise RefusedReplyError(
                f"its update has norm {norm * times:.3g}, above max_update_norm={self.max_norm:g}"
            )


def _refuse_diverged(magnitude: float, buffers: dict[str, Tensor]) -> None:
    if not math.isfinite(magnitude) or not all(bool(b.isfinite().all()) for b in buffers.values()):
        raise RefusedReplyError("its arrays hold NaN or infinity: local training diverged")
    if magnitude > DIVERGED_ABOVE:
        raise RefusedReplyError(f"its update reaches {magnitude:.1e}: training diverged")


def refuse_error(reply: Message) -> None:
    """Refuses a reply without content.

    Args:
        reply: Any reply.

    Raises:
        RefusedReplyError: The client app failed, or the SuperLink answered in its place.
    """
    if reply.has_error():
        reason = str(reply.error.reason).strip() or "no reason given"
        raise RefusedReplyError(f"error {reply.error.code}: {reason.splitlines()[-1]}")
    if not reply.has_content():
        raise RefusedReplyError("it is empty")


def examples_in(content: RecordDict, key: str) -> float:
    """How many examples the client says it has, or whatever else it counts by.

    Args:
        content: Of its reply.
        key: Where it says so.

    Returns:
        Above zero; need not be a whole number, as in Flower.

    Raises:
        RefusedReplyError: It does not say, or says something absurd.
    """
    value = _positive_in(content, key)
    if value is None:
        raise RefusedReplyError(f"it does not report {key!r} as one number")
    return value


def text_in(content: RecordDict, key: str) -> str | None:
    """What a client says about itself, such as its name or its cluster.

    Args:
        content: Of its reply.
        key: What to look for in the metric and config records.

    Returns:
        A short text, whole numbers without a point; None if there is none.
    """
    told: list[object] = [record.get(key) for record in content.metric_records.values()]
    told += [record.get(key) for record in content.config_records.values()]
    for value in told:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, int) and abs(value) < 10**_LONGEST_NUMBER:
            return str(value)
        if isinstance(value, str) and 0 < len(value) <= _LONGEST_NAME:
            return value
    return None


def shown(text: str) -> str:
    """What others have written, fit for a line of a log.

    Args:
        text: Anything.

    Returns:
        Its beginning, in printable characters.
    """
    start = text[:_LONGEST_REASON]
    printable = "".join(c if c.isprintable() else "�" for c in start)
    return printable if len(text) <= _LONGEST_REASON else f"{printable}…"


def _number_in(content: RecordDict, key: str) -> float | None:
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


def _whole(key: str, value: float) -> int:
    if not (1 <= value <= _MOST[key] and value == int(value)):
        raise RefusedReplyError(f"it reports {key} = {value:g}")
    return int(value)


def _positive_in(content: RecordDict, key: str) -> float | None:
    value = _number_in(content, key)
    if value is not None and not _LEAST <= value <= _MOST.get(key, _MOST_EXAMPLES):
        raise RefusedReplyError(f"it reports {key} = {value:g}")
    return value
