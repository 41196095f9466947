"""The gradient of a batch of a small model, by operations that were recorded once."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

import torch
from torch import Tensor, nn

from fedvarp.clients.local_training import Loss
from fedvarp.server.flat_model import FlatModel
from fedvarp.trainers.replay import Replay, Tensors

_MOST_BYTES: Final = 2**20  # of what a step computes; a larger one hides what Python costs
_WITHOUT_A_MIND: Final = ("torch.nn.", "fedvarp.models")  # where forward is a function of tensors


class ReplayedGradient:
    """Loss and gradient of a batch to the bits of `FlatModel.backward`, in half the time or less.

    Python and autograd take longer to find out which operations a small step consists of than these
    do. Models that are not small are differentiated as ever, and those that draw random numbers.

    Args:
        model: Computes the output; see `where_safe`.
        loss: (output, targets) → mean loss of a batch.
    """

    full_batches_only = False

    def __init__(self, model: FlatModel, loss: Loss) -> None:
        self._model = model
        self._loss = loss
        self._replay = Replay(self._to_be_recorded, exact=True, most_bytes=_MOST_BYTES)
        self._walking: Tensor | None = None
        self._state: Hashable = None

    @classmethod
    def where_safe(cls, model: FlatModel, loss: Loss) -> ReplayedGradient | None:
        """Makes one if forward passes are known to be functions of tensors, alike in every step.

        Args:
            model: The model.
            loss: The loss.

        Returns:
            None unless all layers and the loss are torch's own or this package's, on the CPU and
            without buffers and hooks: what others write may count its calls, or ask Python for
            random numbers. None also for models that are too large to gain anything.
        """
        judged = [*model.module.modules()] + ([loss] if isinstance(loss, nn.Module) else [])
        safe = (
            all(_is_known(type(layer)) and not _has_hooks(layer) for layer in judged)
            and (isinstance(loss, nn.Module) or _is_known(loss))
            and not any(True for layer in judged for _ in layer.buffers())
            and all(part.device.type == "cpu" for part in model.module.parameters())
            and 8 * model.dim <= _MOST_BYTES  # w and the gradient alone
        )
        return cls(model, loss) if safe else None

    def __call__(self, w: Tensor, x: Tensor, y: Tensor, *, out: Tensor) -> Tensor:
        """Computes the loss of a batch and its gradient.

        Args:
            w: (d,), the parameters; the model is bound to them when a client begins.
            x: (n, ...), the inputs.
            y: (n, ...), the targets.
            out: (d,), where the gradient is written, and the model is bound to write it.

        Returns:
            The loss, (); good until the next call.
        """
        if self._replay.gave_up:
            return self._of_batch(x, y)
        if w is not self._walking:  # another client, between which a schedule may change a layer
            self._walking, self._state = w, plain_attributes(self._model.module, self._loss)
        value, gradient = self._replay(w, x, y, state=self._state)
        out.copy_(gradient)
        if self._replay.gave_up:
            self._model.bind(w, out)  # for the batches of this client that are left
        return value

    def _to_be_recorded(self, w: Tensor, x: Tensor, y: Tensor) -> Tensors:
        gradient = torch.empty_like(w)
        self._model.bind(w, gradient)
        return self._of_batch(x, y), gradient

    def _of_batch(self, x: Tensor, y: Tensor) -> Tensor:
        """The loss; the gradient is written to where the model is bound."""
        value = self._loss(self._model.module(x), y)
        self._model.backward(value)
        return value.detach()


def plain_attributes(*objects: object) -> Hashable:
    """What modules and losses hold beside tensors: a schedule may change it between rounds.

    Args:
        *objects: Modules, and functions or objects that compute a loss.

    Returns:
        Something that is equal as long as they hold the same texts and numbers.
    """
    parts = [
        m for each in objects for m in (each.modules() if isinstance(each, nn.Module) else [each])
    ]
    return tuple(
        value
        for part in parts
        for value in getattr(part, "__dict__", {}).values()
        if isinstance(value, str | float | int)
    )


def _is_known(what: object) -> bool:
    return str(getattr(what, "__module__", "")).startswith(_WITHOUT_A_MIND)


def _has_hooks(layer: nn.Module) -> bool:
    return any(
        value and name.endswith(("_hooks", "_pre_hooks")) for name, value in vars(layer).items()
    )
