"""Tensor operations recorded once for each shape of their inputs, and replayed from then on.

The gradient of a small model is some thirty operations of a few microseconds each, and Python,
`vmap` and autograd spend several times that on finding out which thirty. They are the same in every
step, so they are written down once, with the tensors that they read and wrote: a replay copies its
inputs over those of the recording and has each operation write its results where they were. Views
and whatever depends on shapes alone are there already.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor

from fedvarp.trainers.recorded_operations import (
    Recorder,
    TooLargeError,
    UnrecordableError,
    kind_of,
    memory_of,
    num_bytes,
    same,
    to_be_repeated,
)

Tensors = tuple[Tensor, ...]
Function = Callable[..., Tensors]

_RECORDED_FROM: Final = 3  # calls with the same shapes: a recording costs as much as some of them
_MOST_KINDS: Final = 64  # of shapes; clients of many sizes must not record for ever
_MOST_BYTES: Final = 2**28  # that all recordings keep


_logger = logging.getLogger(__name__)


@dataclass(eq=False)
class _Kind:
    """Inputs of the same shapes."""

    calls: int = 0
    recording: _Recording | None = None
    checked: bool = False


@dataclass(eq=False)
class Replay:
    """Calls one function of tensors, from its third call with the same shapes on by replaying it.

    What the function does besides tensor operations is not repeated, and Python numbers are those
    of the recording: it must depend on nothing but its inputs and `state`. The first replay is
    checked against the function itself; where they differ, or something cannot be recorded (random
    numbers, branches that depend on a tensor), one warning is given and the function is called as
    it is, always. So are inputs whose recording would keep too much memory.

    Args:
        function: Called with tensors or None, which it does not change; returns tensors that do not
            require gradients.
        exact: Whether replays must have the function's bits; else matrices may be multiplied in
            another order. Nothing is said then where it gives up, as it also does where a recording
            would keep too much.
        most_bytes: That all recordings together keep.

    Attributes:
        gave_up: Whether the function is called as it is, always.
    """

    function: Function
    exact: bool = False
    most_bytes: int = _MOST_BYTES
    gave_up: bool = field(default=False, init=False)
    _kinds: dict[Hashable, _Kind] = field(default_factory=dict, init=False)
    _bytes_kept: int = field(default=0, init=False)

    def __call__(self, *inputs: Tensor | None, state: Hashable = None) -> Tensors:
        """The function's results.

        Args:
            *inputs: What it is called with.
            state: What else it depends on; another value needs another recording.

        Returns:
            What the function returns; good until the next call.
        """
        if self.gave_up or any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
            return self.function(*inputs)  # autocast keeps what it has cast, across calls
        key = (state, *map(kind_of, inputs))
        kind = self._kinds.get(key)
        if kind is None:
            if len(self._kinds) == _MOST_KINDS:
                return self.function(*inputs)
            kind = self._kinds[key] = _Kind()
        if kind.recording is None:
            return self._recorded(kind, inputs)
        if not kind.checked:
            return self._checked(kind, kind.recording, inputs)
        return kind.recording.replayed(inputs)

    def is_ready(self, *inputs: Tensor | None, state: Hashable = None) -> bool:
        """Whether a call with inputs of these shapes would be a replay.

        Args:
            *inputs: What it would be called with.
            state: What else it depends on.

        Returns:
            Whether there is a recording that was held to the function.
        """
        kind = self._kinds.get((state, *map(kind_of, inputs)))
        return kind is not None and kind.checked

    def __getstate__(self) -> dict[str, Any]:
        """Copies record for themselves: operations are bound to the memory of their recording."""
        return {**vars(self), "_kinds": {}, "_bytes_kept": 0}

    def _recorded(self, kind: _Kind, inputs: tuple[Tensor | None, ...]) -> Tensors:
        """Calls the function, and records it if it is time to."""
        kind.calls += 1
        if kind.calls != _RECORDED_FROM:
            return self.function(*inputs)
        try:
            kind.recording, results = self._recording_of(inputs)
        except Exception as reason:  # the function's own comes again
            self._give_up(str(reason).partition("\n")[0])
            return self.function(*inputs)
        # Some operations take another way while they are recorded, to other bits.
        return self.function(*inputs) if self.exact else results

    def _recording_of(self, inputs: tuple[Tensor | None, ...]) -> tuple[_Recording | None, Tensors]:
        """Writes down what the function does, unless that is not to be kept; and its results."""
        copies = tuple(None if given is None else given.clone() for given in inputs)
        if self.exact and list(map(kind_of, copies)) != list(map(kind_of, inputs)):
            return None, ()  # memory with gaps is added up in another order
        recorder = Recorder(self.most_bytes - self._bytes_kept - num_bytes(copies))
        try:
            with recorder:
                results = self.function(*copies)
        except TooLargeError as error:
            if self.exact:
                raise UnrecordableError(str(error)) from None
            return None, self.function(*inputs)
        operations = recorder.operations
        if any(op.written & memory_of(copies) for op in operations):
            raise UnrecordableError("it changes what it is given")
        self._bytes_kept += num_bytes(copies) + recorder.bytes_kept
        repeated = to_be_repeated(operations, results, self.exact)
        return _Recording(copies, [op.again() for op in repeated], results), results

    def _checked(
        self, kind: _Kind, recording: _Recording, inputs: tuple[Tensor | None, ...]
    ) -> Tensors:
        """Holds the first replay, which has other numbers than the recording, to the function."""
        expected = self.function(*inputs)
        try:
            kind.checked = all(map(self._agree, recording.replayed(inputs), expected))
        except (RuntimeError, TypeError) as reason:
            self._give_up(str(reason).partition("\n")[0])
        else:
            if not kind.checked:
                self._give_up("it gave other numbers")
        return expected

    def _agree(self, found: Tensor, expected: Tensor) -> bool:
        if self.exact:
            return same(found, expected)
        return torch.allclose(found, expected, rtol=1e-4, atol=1e-6, equal_nan=True)

    def _give_up(self, reason: str) -> None:
        _logger.log(
            logging.DEBUG if self.exact else logging.WARNING,
            "The steps of this model cannot be recorded and replayed (%s), which would be faster. "
            "Training goes on without: the figures are the same.",
            reason,
        )
        self.gave_up = True
        self._kinds.clear()


@dataclass(frozen=True, eq=False)
class _Recording:
    """What a replay does: fills the inputs, and has every operation write its results anew."""

    inputs: tuple[Tensor | None, ...]
    operations: Sequence[Callable[[], object]]
    results: Tensors

    def replayed(self, inputs: tuple[Tensor | None, ...]) -> Tensors:
        with torch.no_grad():
            for own, given in zip(self.inputs, inputs, strict=True):
                if own is not None and given is not None:
                    own.copy_(given)
            for operation in self.operations:
                operation()
        return self.results
