"""What a local step depends on besides tensors that are written to in place."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final

from torch import Tensor, nn

from fedvarp.clients.known_layers import has_global_hooks

_PLAIN: Final = (str, float, int)  # a union written out would be made anew for each attribute
_MAPPINGS: Final = frozenset([dict, OrderedDict])


def step_state(module: nn.Module, loss: Callable[..., Tensor]) -> Hashable:
    """Says which layers there are and what they hold: a callback may change it between rounds.

    Args:
        module: The model.
        loss: A module, a function or another object that computes the loss.

    Returns:
        Something that is equal as long as layers, their attributes, hooks, buffers and frozen
        parameters are the same. What attributes that are objects hold themselves is not looked at.
    """
    parts: list[object] = [*module.modules()]
    parts += loss.modules() if isinstance(loss, nn.Module) else [loss]
    return (
        has_global_hooks(),
        tuple((type(part), _attributes(part)) for part in parts),
        tuple(map(_of_parameter, module.parameters())),
        tuple(map(_memory, module.buffers())),
    )


def _attributes(part: object) -> tuple[Hashable, ...]:
    """Names and values; parameters, buffers, layers and hooks are dicts, most of them empty."""
    held = getattr(part, "__dict__", {}).items()
    return tuple([(name, _told(v)) for name, v in held if type(v) not in _MAPPINGS or v])


def _told(value: object) -> Hashable:
    if value is None or isinstance(value, _PLAIN):
        return value
    if isinstance(value, tuple):
        return repr(value)  # it may hold what has no hash
    if isinstance(value, dict):
        return tuple(value)
    if isinstance(value, Tensor):
        return _memory(value)
    return id(value) if callable(value) else str(type(value))  # which is another than None


def _of_parameter(parameter: nn.Parameter) -> Hashable:
    """Trained ones walk; frozen ones are read where they are."""
    trained = parameter.requires_grad
    where = None if trained else _memory(parameter)
    return trained, where, bool(parameter._backward_hooks)


def _memory(tensor: Tensor) -> int:
    """Where it is read; a recording keeps that alive, so that nothing else comes to lie there."""
    return int(tensor.untyped_storage()._cdata)
