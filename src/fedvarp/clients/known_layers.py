"""Layers and losses of which it is known that they do the same every time they are called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.module import _has_any_global_hook

from fedvarp.models import LogisticRegression, Quadratic, quadratic_loss

# What these make of a row of their inputs, which have two or more dimensions, depends on no other.
_DENSE_LAYERS: Final = (
    *(nn.Sequential, nn.Identity, nn.Flatten, nn.Linear, LogisticRegression, Quadratic),
    *(nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Tanh, nn.Softplus),
)
# Whose forward pass is a function of tensors and of plain attributes, the same in every step.
_LAYERS: Final = (
    *_DENSE_LAYERS,
    *(nn.Unflatten, nn.Conv1d, nn.Conv2d, nn.LayerNorm, nn.GroupNorm),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d),
    *(nn.CrossEntropyLoss, nn.MSELoss, nn.L1Loss, nn.NLLLoss),
)
_LOSSES: Final = (
    *(functional.cross_entropy, functional.mse_loss, functional.l1_loss, functional.nll_loss),
    quadratic_loss,
)


def are_known(module: nn.Module, loss: Callable[..., Tensor]) -> bool:
    """Whether a loss is known to be a function of tensors alone, which draws and counts nothing.

    Args:
        module: The model.
        loss: (output, targets) → mean loss of a batch.

    Returns:
        False unless layers and loss are among the common ones of torch or this package's, without
        buffers and hooks: what others write may count its calls, or draw random numbers.
    """
    layers = [*module.modules()]
    if isinstance(loss, nn.Module):
        layers.append(loss)
    elif not any(loss is known for known in _LOSSES):
        return False
    return not has_global_hooks() and not any(map(_may_do_more, layers))


def are_dense(module: nn.Module) -> bool:
    """Whether a model is known to treat each row of its inputs by itself.

    Args:
        module: The model, of which `are_known` says that it does nothing else.

    Returns:
        False for all others, for layers that could take rows for channels, and for those that make
        one of several rows.
    """
    return all(
        type(layer) in _DENSE_LAYERS and not (isinstance(layer, nn.Flatten) and layer.start_dim < 1)
        for layer in module.modules()
    )


def has_global_hooks() -> bool:
    """Whether something is done whenever any layer of any model is called.

    Returns:
        Whether torch knows of such hooks.
    """
    return bool(_has_any_global_hook())  # type: ignore[no-untyped-call]  # torch leaves it so


def _may_do_more(layer: nn.Module) -> bool:
    """Whether a layer is not known, or was changed: it has buffers, hooks or its own forward."""
    return (
        type(layer) not in _LAYERS
        or "forward" in vars(layer)
        or any(value and name.endswith("_hooks") for name, value in vars(layer).items())
        or any(True for _ in layer.buffers())
        or any(parameter._backward_hooks for parameter in layer.parameters())
    )
