"""Tensor operations recorded once for each shape of their inputs, and replayed from then on.

The gradient of a small model is some thirty operations of a few microseconds each, and Python,
`vmap` and autograd spend several times that on finding out which thirty. They are the same in every
step, so they are written down once.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

Tensors = tuple[Tensor, ...]
Function = Callable[..., Tensors]

_RECORDED_FROM: Final = 3  # calls with the same shapes: a recording costs as much as some of them
_MOST_KINDS: Final = 64  # of shapes; clients of many sizes must not record for ever

_aten = torch.ops.aten
_NOT_THE_SAME_AGAIN: Final = (  # what depends on numbers, not on shapes alone, or draws some
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
    torch.Tag.nondeterministic_seeded,
)
_OTHER_VIEWS: Final = (_aten.view, _aten._unsafe_view, _aten.expand, _aten.detach, _aten.alias)
_BY_SHAPE_ALONE: Final = (_aten.ones_like, _aten.zeros_like, _aten.full_like)

_logger = logging.getLogger(__name__)


class _UnrecordableError(Exception):
    """An operation cannot be replayed."""


@dataclass(eq=False)
class _Kind:
    """Inputs of the same shapes."""

    calls: int = 0
    recording: Function | None = None
    checked: bool = False


@dataclass(eq=False)
class Replay:
    """Calls one function of tensors, from its third call with the same shapes on by replaying it.

    What the function does besides tensor operations is not repeated, and Python numbers are those
    of the recording: it must depend on nothing but its inputs and `state`. The first replay is
    checked against the function itself; where they differ, or something cannot be recorded (random
    numbers, branches that depend on a tensor), one warning is given and the function is called as
    it is, always.

    Args:
        function: Called with tensors or None; returns tensors that do not require gradients.
    """

    function: Function
    _kinds: dict[Hashable, _Kind] = field(default_factory=dict, init=False)
    _gave_up: bool = field(default=False, init=False)

    def __call__(self, *inputs: Tensor | None, state: Hashable = None) -> Tensors:
        """The function's results.

        Args:
            *inputs: What it is called with.
            state: What else it depends on; another value needs another recording.

        Returns:
            What the function returns.
        """
        if self._gave_up:
            return self.function(*inputs)
        kind = self._kinds.setdefault((state, *map(_kind_of, inputs)), _Kind())
        if kind.recording is None:
            return self._recorded(kind, inputs)
        with torch.no_grad():
            results = kind.recording(*inputs)
        return results if kind.checked else self._checked(kind, inputs, results)

    def _recorded(self, kind: _Kind, inputs: tuple[Tensor | None, ...]) -> Tensors:
        """Calls the function, and records it if it is time to."""
        kind.calls += 1
        if kind.calls < _RECORDED_FROM or len(self._kinds) > _MOST_KINDS:
            return self.function(*inputs)
        recorder = _Recorder(inputs)
        try:
            with recorder:
                results = self.function(*inputs)
            kind.recording = recorder.finished(results)
        except _UnrecordableError as reason:
            self._give_up(str(reason))
            return self.function(*inputs)
        return results

    def _checked(self, kind: _Kind, inputs: tuple[Tensor | None, ...], found: Tensors) -> Tensors:
        """Holds the first replay, which has other numbers than the recording, to the function."""
        expected = self.function(*inputs)
        kind.checked = all(map(_close, found, expected))
        if not kind.checked:
            self._give_up("it gave other numbers")
        return expected

    def _give_up(self, reason: str) -> None:
        _logger.warning(
            "The steps of this model cannot be recorded and replayed (%s), which would be faster. "
            "Training goes on without: the figures are the same.",
            reason,
        )
        self._gave_up = True
        self._kinds.clear()


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it so
    """Writes down the operations below `vmap` and autograd, which have done their part by then."""

    def __init__(self, inputs: tuple[Tensor | None, ...]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._graph = fx.Graph()
        self._nodes: dict[int, fx.Node] = {}  # by the id of the tensor, which is kept alive
        self._values: dict[fx.Node, Any] = {}
        self._kept: list[Tensor] = []
        self._constants: dict[str, Tensor] = {}
        self._writes = False
        for position, value in enumerate(inputs):
            node = self._graph.placeholder(f"input_{position}")
            if value is not None:
                self._note(node, value)

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
        result = func(*args, **kwargs)
        self._writes |= func._schema.is_mutable
        if func.overloadpacket in _OTHER_VIEWS and _is_the_same(args[0], result):
            self._note(self._node(args[0]), result)
            return result
        node = self._graph.call_function(
            func, tree_map(self._node, args), tree_map(self._node, kwargs)
        )
        self._note(node, result)
        if isinstance(result, tuple | list):
            for place, part in enumerate(result):
                self._note(self._graph.call_function(operator.getitem, (node, place)), part)
        return result

    def finished(self, results: Tensors) -> Function:
        """The recording as a function of the inputs; nothing in it is computed twice."""
        self._graph.output(tuple(map(self._node, results)))
        if not self._writes:
            self._fold()
            self._graph.eliminate_dead_code()
        replayed: Function = fx.GraphModule(self._constants, self._graph).forward
        return replayed

    def _fold(self) -> None:
        """Replaces what depends on shapes alone by what it came to."""
        folded: set[fx.Node] = set()
        for node in list(self._graph.nodes):
            value = self._values.get(node)
            packet = getattr(node.target, "overloadpacket", None)
            if node.op != "call_function" or not isinstance(value, Tensor):
                continue
            if packet is _aten.mul and node.args[1] == 1 and self._dtype(node) == value.dtype:
                node.replace_all_uses_with(node.args[0])
            elif packet in _BY_SHAPE_ALONE or (
                node.all_input_nodes and folded.issuperset(node.all_input_nodes)
            ):
                folded.add(node)
        for node in folded:
            if not folded.issuperset(node.users):
                with self._graph.inserting_before(node):
                    constant = self._constant(self._values[node])
                node.replace_all_uses_with(constant)

    def _dtype(self, node: fx.Node) -> torch.dtype | None:
        """Of what an operation is given first."""
        given = self._values.get(node.all_input_nodes[0])
        return given.dtype if isinstance(given, Tensor) else None

    def _note(self, node: fx.Node, value: Any) -> None:
        self._values.setdefault(node, value)
        if isinstance(value, Tensor):
            self._nodes[id(value)] = node
            self._kept.append(value)  # or its id would be another tensor's

    def _node(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if id(value) not in self._nodes:
            self._note(self._constant(value), value)
        return self._nodes[id(value)]

    def _constant(self, value: Tensor) -> fx.Node:
        name = f"constant_{len(self._constants)}"
        self._constants[name] = value
        return self._graph.get_attr(name)


def _kind_of(value: Tensor | None) -> Hashable:
    if value is None:
        return None
    return value.shape, value.stride(), value.dtype, value.device


def _is_the_same(before: Tensor, after: Tensor) -> bool:
    """Whether a view shows what it is taken of."""
    return (
        before.shape == after.shape
        and before.stride() == after.stride()
        and before.dtype == after.dtype
        and before.storage_offset() == after.storage_offset()
    )


def _close(found: Tensor, expected: Tensor) -> bool:
    return torch.allclose(found, expected, rtol=1e-4, atol=1e-6, equal_nan=True)
