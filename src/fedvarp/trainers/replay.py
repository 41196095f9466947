"""Tensor operations recorded once for each shape of their inputs, and replayed from then on.

The gradient of a small model is some thirty operations of a few microseconds each, and Python,
`vmap` and autograd spend several times that on finding out which thirty. They are the same in every
step, so they are written down once, with the tensors that they read and wrote: a replay copies its
inputs over those of the recording and has each operation write its results where they were. Views
and whatever depends on shapes alone are there already.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

Tensors = tuple[Tensor, ...]
Function = Callable[..., Tensors]

_RECORDED_FROM: Final = 3  # calls with the same shapes: a recording costs as much as some of them
_MOST_KINDS: Final = 64  # of shapes; clients of many sizes must not record for ever
_MOST_BYTES: Final = 2**28  # that all recordings keep

_aten = torch.ops.aten
_NOT_THE_SAME_AGAIN: Final = (  # what depends on numbers, not on shapes alone, or draws some
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
    torch.Tag.nondeterministic_seeded,
)
_BY_SHAPE_ALONE: Final = (_aten.ones_like, _aten.zeros_like, _aten.full_like)
_UNWRITTEN: Final = (
    *(_aten.empty, _aten.empty_like, _aten.empty_strided),
    *(_aten.new_empty, _aten.new_empty_strided),
)

_SEVERAL: Final = (tuple, list)
_MISFITS: Final = (RuntimeError, TypeError, ValueError, IndexError)  # of a namesake of an operation

_logger = logging.getLogger(__name__)


class _UnrecordableError(Exception):
    """An operation cannot be replayed."""


class _TooLargeError(Exception):
    """A recording would keep more memory than it may."""


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
        key = (state, *map(_kind_of, inputs))
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
        kind = self._kinds.get((state, *map(_kind_of, inputs)))
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
        if self.exact and list(map(_kind_of, copies)) != list(map(_kind_of, inputs)):
            return None, ()  # memory with gaps is added up in another order
        recorder = _Recorder(self.most_bytes - self._bytes_kept - _num_bytes(copies))
        try:
            with recorder:
                results = self.function(*copies)
        except _TooLargeError as error:
            if self.exact:
                raise _UnrecordableError(str(error)) from None
            return None, self.function(*inputs)
        operations = recorder.operations
        if any(op.written & _memory(copies) for op in operations):
            raise _UnrecordableError("it changes what it is given")
        self._bytes_kept += _num_bytes(copies) + recorder.bytes_kept
        repeated = _to_be_repeated(operations, results, self.exact)
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
            return _same(found, expected)
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


@dataclass(frozen=True, eq=False)
class _Operation:
    """One call of one of torch's own operations."""

    func: Any  # torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: Any

    @property
    def writes(self) -> bool:
        """Whether it changes one of its arguments."""
        return bool(self.func._schema.is_mutable)

    @property
    def written(self) -> set[int]:
        """What it changes."""
        arguments = self.func._schema.arguments
        given = {each.name: value for each, value in zip(arguments, self.args, strict=False)}
        given |= self.kwargs
        changed = [each.name for each in arguments if each.alias_info and each.alias_info.is_write]
        return _memory([given.get(name) for name in changed])

    @property
    def read(self) -> set[int]:
        return _memory((self.args, self.kwargs))

    @property
    def made(self) -> set[int]:
        """What was not there before; nothing if the results are views."""
        return _memory(self.results) - self.read

    @property
    def copies(self) -> bool:
        """Whether it gives what it is given: vmap multiplies by one."""
        packet = self.func.overloadpacket
        times_one = packet is _aten.mul and isinstance(self.args[1], int | float)
        return packet in (_aten.clone, _aten._to_copy) or (times_one and self.args[1] == 1)

    def again(self) -> Callable[[], object]:
        """Does it once more, on the same tensors, and leaves the results in those of then."""
        if any(isinstance(result, _SEVERAL) for result in self._as_tuple(self.results)):
            raise _UnrecordableError(f"{self.func} gives lists within its results")
        if self.writes:
            return _quickest(self.func, self.args, self.kwargs)
        if self.copies:  # without torch's way around, which takes five times as long
            return partial(self.results.copy_, self.args[0])
        return self._into_results() or self._copied

    def _into_results(self) -> Callable[[], object] | None:
        """Its version that is told where to write; None if there is none that does just that."""
        results = self._as_tuple(self.results)
        if not all(isinstance(result, Tensor) for result in results):
            return None
        # Losses are reduced in the memory of their result, which some of them resize for that.
        reduces = any(each.name == "reduction" for each in self.func._schema.arguments)
        if reduces and results[0].ndim == 0:
            return None
        with torch.no_grad():
            expected = _tensors(self.func(*self.args, **self.kwargs))
        for name in self.func.overloadpacket.overloads():
            into = getattr(self.func.overloadpacket, name)
            places = _places_for_results(self.func._schema, into._schema)
            if len(places) != len(results):
                continue
            tried = [result.clone() for result in results]
            with torch.no_grad():
                into(*self.args, **self.kwargs, **dict(zip(places, tried, strict=True)))
            # Some resize what they are given, and a few then write something else.
            if all(map(_same, tried, expected)):
                there = dict(zip(places, results, strict=True))
                return _quickest(into, self.args, {**self.kwargs, **there})
        return None

    def _copied(self) -> None:
        new = self.func(*self.args, **self.kwargs)
        for place, result in zip(self._as_tuple(self.results), self._as_tuple(new), strict=True):
            if isinstance(place, Tensor):
                place.copy_(result)

    @staticmethod
    def _as_tuple(results: Any) -> Sequence[Any]:
        """Results of an operation, one or several: `tree_leaves` takes as long as the operation."""
        return results if isinstance(results, _SEVERAL) else (results,)


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it so
    """Writes down the operations below `vmap` and autograd, which have done their part by then."""

    def __init__(self, most_bytes: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[_Operation] = []
        self._most_bytes = most_bytes
        self._bytes: dict[int, int] = {}  # by memory: what is recorded stays, and so does its place

    @property
    def bytes_kept(self) -> int:
        return sum(self._bytes.values())

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: to skip torch.compile, torch would import all 800 modules of it."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if any(tag in func.tags for tag in _NOT_THE_SAME_AGAIN):
            raise _UnrecordableError(f"{func} depends on the numbers it is given, or draws some")
        results = func(*args, **kwargs)
        if torch.Tag.inplace_view not in func.tags:  # which change how memory is looked at
            operation = _Operation(func, *_as_they_are((args, kwargs, results)))
            self.operations.append(operation)
            made = operation.made
            self._bytes |= {where: n for where, n in _bytes_by_memory(results) if where in made}
            if self.bytes_kept > self._most_bytes:
                raise _TooLargeError(f"a recording would keep more than {self._most_bytes} bytes")
        return results


def _to_be_repeated(
    operations: Sequence[_Operation], results: Tensors, exact: bool
) -> list[_Operation]:
    """Those that results hang on and that may differ from call to call, in their order."""
    wanted, repeated = _memory(results), []
    for op in reversed(_that_vary(operations, wanted)):
        if op.writes or op.made & wanted:
            wanted |= op.read
            repeated.append(op)
    repeated.reverse()
    return repeated if exact else _transposed_at_once(repeated, _memory(results))


def _that_vary(operations: Sequence[_Operation], results: set[int]) -> list[_Operation]:
    """Those whose results are not there already: no views, nothing that goes by shapes alone."""
    # What is returned may be written to by whoever asked for it.
    written = _memory([(op.args, op.kwargs) for op in operations if op.writes]) | results
    fixed: set[int] = set()  # memory with the same numbers in each call
    varying = []
    for op in operations:
        packet = op.func.overloadpacket
        if packet in _UNWRITTEN or not (op.writes or op.made):
            continue
        by_shape = packet in _BY_SHAPE_ALONE or op.read <= fixed
        if by_shape and not op.writes and not op.made & written:
            fixed |= op.made
        else:
            varying.append(op)
    return varying


def _transposed_at_once(operations: Sequence[_Operation], results: set[int]) -> list[_Operation]:
    """Has A^T B that is only wanted transposed, and copied so, computed as B^T A.

    As in the gradients of layers' weights, at a fifth of the cost.
    """
    readers = Counter(memory for op in operations for memory in op.read)
    products = {
        memory: op for op in operations if op.func is _aten.bmm.default for memory in op.made
    }
    replaced: dict[int, _Operation | None] = {}  # by the id of the operation
    for op in operations:
        (memory,) = _memory(op.args[:1]) if op.copies else (0,)
        product = products.get(memory)
        if product is None or readers[memory] > 1 or memory in results:
            continue
        if _kind_of(op.args[0]) == _kind_of(product.results.mT) and op.results.is_contiguous():
            left, right = product.args
            replaced[id(product)] = None
            replaced[id(op)] = _Operation(product.func, (right.mT, left.mT), {}, op.results)
    renewed = [replaced.get(id(op), op) for op in operations]
    return [op for op in renewed if op is not None]


def _as_they_are(tree: Any) -> Any:
    """The tensors in a tree with their shapes of now, which in-place views may change later."""
    return tree_map(lambda leaf: _aten.alias(leaf) if isinstance(leaf, Tensor) else leaf, tree)


def _quickest(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], object]:
    """Calls an operation that writes to its arguments: as Python's users do, in half the time.

    That is, by the function of that name in torch or the method of tensors, where on copies of the
    arguments it is seen to do the same.
    """
    name = func._schema.name.removeprefix("aten::")
    for function in filter(None, (getattr(where, name, None) for where in (torch, Tensor))):
        ours, theirs = (_with_copies((args, kwargs)) for _ in range(2))
        with torch.no_grad(), contextlib.suppress(*_MISFITS):
            func(*ours[0], **ours[1])
            function(*theirs[0], **theirs[1])
            if all(map(_same, _tensors(ours), _tensors(theirs))):
                return partial(function, *args, **kwargs)
    return partial(func, *args, **kwargs)


def _with_copies(tree: Any) -> Any:
    return tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, tree)


def _places_for_results(plain: Any, other: Any) -> list[str]:
    """How an operation is told where to write, if `other` is `plain` that is told so; or none."""
    where = [argument.name for argument in other.arguments if argument.is_out]
    rest = [(one.name, str(one.type)) for one in other.arguments if not one.is_out]
    return where if rest == [(one.name, str(one.type)) for one in plain.arguments] else []


def _tensors(of: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(of) if isinstance(leaf, Tensor)]


def _memory(of: object) -> set[int]:
    """What tensors lie in: views of one have it in common."""
    return {tensor.untyped_storage()._cdata for tensor in _tensors(of)}


def _bytes_by_memory(of: object) -> Iterable[tuple[int, int]]:
    storages = (tensor.untyped_storage() for tensor in _tensors(of))
    return ((storage._cdata, storage.nbytes()) for storage in storages)


def _num_bytes(of: object) -> int:
    return sum(dict(_bytes_by_memory(of)).values())


def _kind_of(value: Tensor | None) -> Hashable:
    if value is None:
        return None
    return value.shape, value.stride(), value.dtype, value.device


def _same(found: Tensor, expected: Tensor) -> bool:
    return found.shape == expected.shape and torch.allclose(
        found, expected, rtol=0.0, atol=0.0, equal_nan=True
    )
