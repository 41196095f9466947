"""A GPU that is none: its tensors say that they are elsewhere, and are computed on the CPU.

Whatever mixes devices raises an error, as on a real one, and whatever asks for a number that a real
one would have to finish its work for is counted. `register` gives the process the device "gpu" for
good, and with it autograd's thread for such a device, which does not survive a fork: tests that
need it run in a process of their own.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_leaves, tree_map

WAITS: Final[Counter[str]] = Counter()
"""By operation: how often the host has asked for numbers, and a real GPU would be waited for."""

_aten = torch.ops.aten
_LIBRARY: Final[Any] = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
_NEEDS_NUMBERS: Final = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class _Module:
    """What torch.cuda is for "cuda"."""

    def __init__(self) -> None:
        self.seeds: list[int] = []
        self.state = torch.zeros(8, dtype=torch.uint8)

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def _is_in_bad_fork(self) -> bool:
        return False

    def get_rng_state(self, device: torch.device) -> Tensor:
        return self.state.clone()

    def set_rng_state(self, state: Tensor, device: torch.device) -> None:
        self.state = state.clone()

    def manual_seed(self, seed: int) -> None:
        self.seeds.append(seed)
        self.state = torch.full((8,), seed % 251, dtype=torch.uint8)

    def device(self, device: torch.device) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


MODULE: Final = _Module()
GPU: Final = "gpu:0"


def register() -> None:
    """Makes "gpu" a device of this process; older versions of torch cannot."""
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    _setup_privateuseone_for_python_backend("gpu", MODULE)
    # Everything else that makes tensors (zeros, arange, tensor, to) is made of these.
    _LIBRARY.impl("empty.memory_format", _empty, "PrivateUse1")
    _LIBRARY.impl("empty_strided", _empty_strided, "PrivateUse1")
    _LIBRARY.impl("_copy_from", _copy_from, "PrivateUse1")


class GpuTensor(Tensor):
    """A tensor of the fake device.

    Args:
        held: Its numbers, on the CPU.
    """

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> GpuTensor:
        made: GpuTensor = Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=torch.device(GPU),
        )
        made.held = held
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"GpuTensor({self.held})"

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func == Tensor.data.__set__:  # type: ignore[attr-defined]
            args[0].held = args[1].held
        if func is Tensor.untyped_storage:  # which the views of a tensor have in common
            return args[0].held.untyped_storage()
        if func is Tensor.tolist:  # torch has no way to do this for a class of its own
            WAITS["tolist"] += 1
            return args[0].held.tolist()
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        packet, tensors = func.overloadpacket, _tensors((args, kwargs))
        if packet is not _aten.copy_ and any(t.ndim and not isinstance(t, cls) for t in tensors):
            raise RuntimeError(f"{func} on several devices, gpu:0 and cpu")
        there = kwargs.get("device") is None or torch.device(kwargs["device"]).type == "gpu"
        if packet is _aten.copy_:
            there = isinstance(args[0], cls)
        by_mask = packet is _aten.index and any(t.dtype == torch.bool for t in tensors[1:])
        needs_numbers = packet is not _aten.index and _NEEDS_NUMBERS.intersection(func.tags)
        if not there or by_mask or needs_numbers:
            WAITS[str(packet)] += 1
        if "device" in kwargs:
            kwargs["device"] = torch.device("cpu")
        found = func(*tree_map(_held, args), **tree_map(_held, kwargs))
        if torch.Tag.inplace_view in func.tags:
            with no_dispatch():  # the outside takes the same shape
                func(*args, **kwargs)
        if _writes_to_the_first(func):
            return args[0]
        given = [kwargs[each.name] for each in func._schema.arguments if each.is_out]
        if given:
            return given[0] if len(given) == 1 else tuple(given)
        return tree_map(lambda t: cls(t) if there and isinstance(t, Tensor) else t, found)


def _tensors(tree: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _held(value: object) -> object:
    return value.held if isinstance(value, GpuTensor) else value


def _writes_to_the_first(func: Any) -> bool:
    arguments = func._schema.arguments
    alias = arguments[0].alias_info if arguments else None
    return alias is not None and alias.is_write


def _empty(size: Any, *, dtype: Any = None, memory_format: Any = None, **kwargs: Any) -> Tensor:
    layout = memory_format or torch.contiguous_format
    return GpuTensor(torch.empty(size, dtype=dtype, memory_format=layout))


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, **kwargs: Any) -> Tensor:
    return GpuTensor(torch.empty_strided(size, stride, dtype=dtype))


def _copy_from(source: Tensor, target: GpuTensor, non_blocking: bool = False) -> Tensor:
    target.held.copy_(source)
    return target
