"""Single tensor operations, as they are recorded and done again."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

_aten = torch.ops.aten
_NOT_THE_SAME_AGAIN: Final = (  # what depends on numbers, not on shapes alone, or draws some
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
    torch.Tag.nondeterministic_seeded,
)
_ZEROS: Final = (_aten.zeros, _aten.zeros_like, _aten.new_zeros)
_BY_SHAPE_ALONE: Final = (*_ZEROS, _aten.ones_like, _aten.full_like)
_UNWRITTEN: Final = (
    *(_aten.empty, _aten.empty_like, _aten.empty_strided),
    *(_aten.new_empty, _aten.new_empty_strided),
)

_SEVERAL: Final = (tuple, list)
_MISFITS: Final = (RuntimeError, TypeError, ValueError, IndexError)  # of a namesake of an operation


class UnrecordableError(Exception):
    """An operation cannot be replayed."""


class TooLargeError(Exception):
    """A recording would keep more memory than it may."""


@dataclass(frozen=True, eq=False)
class Operation:
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
        return memory_of([given.get(name) for name in changed])

    @property
    def read(self) -> set[int]:
        """What it is given."""
        return memory_of((self.args, self.kwargs))

    @property
    def made(self) -> set[int]:
        """What was not there before; nothing if the results are views."""
        return memory_of(self.results) - self.read

    @property
    def copies(self) -> bool:
        """Whether it gives what it is given: vmap multiplies by one."""
        packet = self.func.overloadpacket
        times_one = packet is _aten.mul and isinstance(self.args[1], int | float)
        return packet in (_aten.clone, _aten._to_copy) or (times_one and self.args[1] == 1)

    def again(self) -> Callable[[], object]:
        """Does it once more, on the same tensors, and leaves the results in those of then."""
        if any(isinstance(result, _SEVERAL) for result in self._as_tuple(self.results)):
            raise UnrecordableError(f"{self.func} gives lists within its results")
        if self.writes:
            return _quickest(self.func, self.args, self.kwargs)
        if self.copies:  # without torch's way around, which takes five times as long
            return partial(self.results.copy_, self.args[0])
        if self.func.overloadpacket in _ZEROS:
            return partial(self.results.zero_)
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
            if all(map(same, tried, expected)):
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


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it so
    """Writes down the operations below `vmap` and autograd, which have done their part by then."""

    def __init__(self, most_bytes: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[Operation] = []
        self._most_bytes = most_bytes
        self._bytes: dict[int, int] = {}  # by memory: what is recorded stays, and so does its place

    @property
    def bytes_kept(self) -> int:
        """How much memory the results of all operations take."""
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
            raise UnrecordableError(f"{func} depends on the numbers it is given, or draws some")
        results = func(*args, **kwargs)
        if torch.Tag.inplace_view not in func.tags:  # which change how memory is looked at
            operation = Operation(func, *_as_they_are((args, kwargs, results)))
            self.operations.append(operation)
            made = operation.made
            self._bytes |= {where: n for where, n in _bytes_by_memory(results) if where in made}
            if self.bytes_kept > self._most_bytes:
                raise TooLargeError(f"a recording would keep more than {self._most_bytes} bytes")
        return results


def to_be_repeated(
    operations: Sequence[Operation], results: Sequence[Tensor], exact: bool
) -> list[Operation]:
    """Picks the operations that results hang on and that may differ from call to call.

    Args:
        operations: All that were recorded, in their order.
        results: Of the function.
        exact: Whether bits count; else matrices may be multiplied in another order.

    Returns:
        Those to do again, in their order.
    """
    wanted, repeated = memory_of(results), []
    for op in reversed(_that_vary(operations, wanted)):
        if op.writes or op.made & wanted:
            wanted |= op.read
            repeated.append(op)
    repeated.reverse()
    return repeated if exact else _transposed_at_once(repeated, memory_of(results))


def _that_vary(operations: Sequence[Operation], results: set[int]) -> list[Operation]:
    """Those whose results are not there already: no views, nothing that goes by shapes alone."""
    # What is returned may be written to by whoever asked for it.
    written = memory_of([(op.args, op.kwargs) for op in operations if op.writes]) | results
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


def _transposed_at_once(operations: Sequence[Operation], results: set[int]) -> list[Operation]:
    """Has A^T B that is only wanted transposed, and copied so, computed as B^T A.

    As in the gradients of layers' weights, at a fifth of the cost.
    """
    readers = Counter(memory for op in operations for memory in op.read)
    products = {
        memory: op for op in operations if op.func is _aten.bmm.default for memory in op.made
    }
    replaced: dict[int, Operation | None] = {}  # by the id of the operation
    for op in operations:
        (memory,) = memory_of(op.args[:1]) if op.copies else (0,)
        product = products.get(memory)
        if product is None or readers[memory] > 1 or memory in results:
            continue
        if kind_of(op.args[0]) == kind_of(product.results.mT) and op.results.is_contiguous():
            left, right = product.args
            replaced[id(product)] = None
            replaced[id(op)] = Operation(product.func, (right.mT, left.mT), {}, op.results)
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
            if all(map(same, _tensors(ours), _tensors(theirs))):
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


def memory_of(of: object) -> set[int]:
    """Says what tensors lie in: views of one have it in common.

    Args:
        of: Tensors, and other things, within tuples, lists and dicts.
    """
    return {tensor.untyped_storage()._cdata for tensor in _tensors(of)}


def _bytes_by_memory(of: object) -> Iterable[tuple[int, int]]:
    storages = (tensor.untyped_storage() for tensor in _tensors(of))
    return ((storage._cdata, storage.nbytes()) for storage in storages)


def num_bytes(of: object) -> int:
    """Counts the bytes that tensors take, views of the same memory once.

    Args:
        of: As `memory_of`.
    """
    return sum(dict(_bytes_by_memory(of)).values())


def kind_of(value: Tensor | None) -> Hashable:
    """Says what a recording is made for.

    Args:
        value: An input; None: there is none.

    Returns:
        Shape, strides, type and device.
    """
    if value is None:
        return None
    return value.shape, value.stride(), value.dtype, value.device


def same(found: Tensor, expected: Tensor) -> bool:
    """Whether two tensors hold the same numbers, to the bit but for NaN.

    Args:
        found: The one.
        expected: The other.
    """
    return found.shape == expected.shape and torch.allclose(
        found, expected, rtol=0.0, atol=0.0, equal_nan=True
    )
