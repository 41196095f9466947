"""The gradient of a batch as one compiled function of the flat vector."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value

from fedvarp.flat_model import FlatModel

_logger = logging.getLogger(__name__)


class CompiledGradient:
    """Loss and gradient of a batch, compiled once for all clients.

    The parameters are an argument, not part of the module, so that nothing about a client enters
    the compiled code; and batches of another size than the first are left to the caller, so that
    the odd sizes of clients' last batches do not compile one graph each. The figures agree with
    the eager ones to float tolerance, not bit for bit.
    """

    def __init__(self, model: FlatModel, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        self._model = model
        self._loss = loss
        self._of_batch = torch.compile(self._eager, dynamic=False, fullgraph=True)
        self._worked = self._gave_up = False

    def __call__(self, w: Tensor, x: Tensor, y: Tensor, *, out: Tensor) -> Tensor:
        """The loss of the batch at w; its gradient, (d,), is written to `out`."""
        if self._gave_up:
            return self._plain(w, x, y, out)
        try:
            value, gradient = self._of_batch(w, x, y)
        except Exception as reason:
            if self._worked:
                raise
            _logger.warning(
                "torch.compile does not work for this model here (%s). Training goes on without. "
                "A missing C++ compiler and a model that changes its own buffers are the usual "
                "causes; compile = false stops the attempt.",
                " ".join(str(reason).split())[:300],
            )
            self._gave_up = True
            return self._plain(w, x, y, out)
        self._worked = True
        out.copy_(gradient)
        return value.detach()

    def _plain(self, w: Tensor, x: Tensor, y: Tensor, out: Tensor) -> Tensor:
        """Takes any model, unlike the functional form, which may change no buffers."""
        self._model.bind(w, out)
        value = self._loss(self._model.module(x), y)
        self._model.backward(value)
        return value.detach()

    def _eager(self, w: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        def loss_of(parameters: dict[str, Tensor]) -> Tensor:
            return self._loss(functional_call(self._model.module, parameters, (x,)), y)

        gradients, value = grad_and_value(loss_of)(self._model.unflatten(w))
        return value, torch.cat([part.reshape(-1) for part in gradients.values()])
