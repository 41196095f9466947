"""The gradient of a batch of a small model, by operations that were recorded once."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

import torch
from torch import Tensor

from fedvarp.clients.known_layers import are_known
from fedvarp.clients.local_training import Loss
from fedvarp.server.flat_model import FlatModel
from fedvarp.trainers.replay import Replay, Tensors
from fedvarp.trainers.step_state import step_state

_MOST_BYTES: Final = 2**20  # of what a step computes; a larger one hides what Python costs


class ReplayedGradient:
    """Loss and gradient of a batch to the bits of `FlatModel.backward`, in two thirds of the time.

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
        self._safe = False

    @classmethod
    def where_safe(cls, model: FlatModel, loss: Loss) -> ReplayedGradient | None:
        """Makes one if steps are known to be functions of tensors, and are not too large.

        Args:
            model: The model.
            loss: The loss.

        Returns:
            None unless layers and loss are among the common ones of torch or this package's, on the
            CPU and without buffers and hooks: what others write may count its calls, or ask Python
            for random numbers.
        """
        on_cpu = all(part.device.type == "cpu" for part in model.module.parameters())
        small = 8 * model.dim <= _MOST_BYTES  # w and the gradient alone
        return cls(model, loss) if on_cpu and small and are_known(model.module, loss) else None

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
        if w is not self._walking:  # another client, before which a callback may change a layer
            before, self._walking = self._state, w
            self._state = step_state(self._model.module, self._loss)
            if self._state != before:
                self._safe = are_known(self._model.module, self._loss)
        if self._replay.gave_up or not self._safe:
            return self._of_batch(x, y)
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
