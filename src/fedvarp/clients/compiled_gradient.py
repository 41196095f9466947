"""The gradient of a batch as one compiled function of the flat vector."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value

from fedvarp.clients.local_training import generators_kept
from fedvarp.server.flat_model import FlatModel

_logger = logging.getLogger(__name__)


class CompiledGradient:
    """Loss and gradient of a batch, compiled once for all clients.

    The parameters are an argument, not part of the module, so that nothing about a client enters
    the compiled code; and batches of another shape than the first are trained as they are, so that
    clients' odd last batches and texts of many lengths do not compile one graph each. The figures
    agree with the eager ones to float tolerance, not bit for bit. A model that cannot be compiled,
    or that changes its own buffers, is trained without, with one warning.

    Args:
        model: Computes the output.
        loss: (output, targets) → mean loss of a batch.
    """

    full_batches_only = True

    def __init__(self, model: FlatModel, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        self._model = model
        self._loss = loss
        self._of_batch = torch.compile(self._eager, dynamic=False, fullgraph=True)
        self._kind: object = None  # shapes and dtypes of the batches it is compiled for
        self._worked = self._gave_up = False

    def __call__(self, w: Tensor, x: Tensor, y: Tensor, *, out: Tensor) -> Tensor:
        """Computes the loss of a batch and its gradient.

        Args:
            w: (d,), the parameters.
            x: (n, ...), the inputs.
            y: (n, ...), the targets.
            out: (d,), where the gradient is written.

        Returns:
            The loss, ().
        """
        kind = (x.shape, x.dtype, y.shape, y.dtype)
        if self._kind is None:
            self._kind = kind
            if self._changes_buffers(w, x, y, out):
                self._give_up("it changes its own buffers")
        if self._gave_up or kind != self._kind:
            return self._plain(w, x, y, out)
        try:
            value, gradient = self._of_batch(w, x, y)
        except Exception as reason:
            if self._worked:
                raise
            self._give_up(" ".join(str(reason).split())[:300])
            return self._plain(w, x, y, out)
        self._worked = True
        out.copy_(gradient)
        return value.detach()

    def _give_up(self, reason: str) -> None:
        _logger.warning(
            "torch.compile does not work for this model here (%s). Training goes on without. "
            "A missing C++ compiler and a model that changes its own buffers are the usual "
            "causes; compile = false stops the attempt.",
            reason,
        )
        self._gave_up = True

    def _changes_buffers(self, w: Tensor, x: Tensor, y: Tensor, out: Tensor) -> bool:
        """Whether a step leaves traces beside the parameters, which a compiled one would lose."""
        before = self._model.buffers()
        if not before:
            return False
        with generators_kept(x.device):
            self._plain(w, x, y, out)
        after = self._model.buffers()
        self._model.load_buffers(before)
        return any(not torch.equal(before[name], after[name]) for name in before)

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
