"""What a local step depends on besides tensors that are written to in place."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Final

from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

_PLAIN: Final = (str, float, int)  # a union written out would be made anew for each attribute


def step_state(module: nn.Module, loss: Callable[..., Tensor]) -> Hashable:
    """Says which layers there are and what they hold: a callback may change it between rounds.

    Args:
        module: The model.
        loss: A module, a function or another object that computes the loss.

    Returns:
        Something that is equal as long as layers, their attributes, hooks and frozen parameters
        are the same. What attributes that are objects hold themselves is not looked at.
    """
    parts: list[object] = [*module.modules()]
    parts += loss.modules() if isinstance(loss, nn.Module) else [loss]
    return (
        has_global_hooks(),
        tuple((type(part), tuple(_attributes(part))) for part in parts),
        tuple(map(_of_parameter, module.parameters())),
    )


def has_global_hooks() -> bool:
    """Whether something is done whenever any layer of any model is called.

    Returns:
        Whether torch knows of such hooks.
    """
    return bool(_has_any_global_hook())  # type: ignore[no-untyped-call]  # torch leaves it so


def _attributes(part: object) -> Iterator[Hashable]:
    for name, value in getattr(part, "__dict__", {}).items():
        if value is None or isinstance(value, _PLAIN):
            yield name, value
        elif isinstance(value, tuple):
            yield name, repr(value)  # it may hold what has no hash
        elif isinstance(value, dict):  # parameters, buffers, layers and hooks
            if value:
                yield name, tuple(value)
        elif callable(value):
            yield name, id(value)


def _of_parameter(parameter: nn.Parameter) -> Hashable:
    """Trained ones walk; frozen ones are read where they are."""
    trained = parameter.requires_grad
    where = None if trained else parameter.untyped_storage()._cdata
    return trained, where, bool(parameter._backward_hooks)
