"""Any nn.Module as one float32 vector of its trainable parameters, and back.

Names and shapes live here and nowhere else: servers, tables and algorithms see vectors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from fedvarp.errors import InvalidError
from fedvarp.settings.checked import checked


@dataclass(frozen=True)
class Slot:
    """Where a parameter lies in the vector: from `start` up to `stop`."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int

    def view(self, vector: Tensor) -> Tensor:
        """The parameter in its shape, a view of the vector; of each row, if it is a matrix."""
        part = vector[..., self.start : self.stop]
        return part.view((*vector.shape[:-1], *self.shape))


class FlatModel:
    """A module whose trainable parameters can be put onto any vector of length `dim`.

    `bind(vector)` makes the parameters *views* of the vector: changing the one changes the other,
    nothing is copied, and an SGD step over all layers is one operation on the vector. Tied
    parameters take their place once; frozen ones stay in the module and never travel.

    Buffers are kept beside the vector, because no algorithm should see them: floating-point ones
    are averaged over clients, integer counters take the maximum. BatchNorm is refused.

    Args:
        module: Any module whose trainable parameters are float32.

    Raises:
        ValueError: It has a BatchNorm layer, a parameter without a shape or of another dtype, or
            nothing to train.

    >>> model = FlatModel(nn.Linear(2, 1))
    >>> model.dim
    3
    >>> w = torch.tensor([1.0, 2.0, 0.5])
    >>> model.bind(w)
    >>> model.module(torch.tensor([1.0, 1.0])).item()
    3.5
    >>> w.zero_()
    tensor([0., 0., 0.])
    >>> model.module(torch.tensor([1.0, 1.0])).item()
    0.0
    """

    @checked
    def __init__(self, module: nn.Module) -> None:
        _refuse_batch_norm(module)
        self.module = module
        self._parameters = tuple(_trainable(module).values())
        self._slots = slots_of(module)
        self._gradient: tuple[Tensor, ...] = ()
        self.dim = self._slots[-1].stop
        self.channels_last: bool | None = None  # whether it takes images so; None: not tried yet

    @property
    def names(self) -> list[str]:
        """Names of the trainable parameters in the order of the vector."""
        return [slot.name for slot in self._slots]

    def vector(self) -> Tensor:
        """The parameters as they are now, (d,), a copy."""
        return torch.cat([parameter.detach().reshape(-1) for parameter in self._parameters])

    def bind(self, vector: Tensor, gradient: Tensor | None = None) -> None:
        """Makes the parameters views of `vector`, and `gradient` the place `backward` writes to.

        Args:
            vector: (d,) float32, on any device.
            gradient: (d,) of the same kind.

        Raises:
            ValueError: One of them has another length or dtype, or is not contiguous.
        """
        for what, tensor in (("vector", vector), ("gradient", gradient)):
            if tensor is not None and (
                tuple(tensor.shape) != (self.dim,)
                or tensor.dtype != torch.float32
                or not tensor.is_contiguous()
            ):
                raise InvalidError(
                    f"The {what} is {tensor.dtype} of shape {tuple(tensor.shape)}; this model "
                    f"needs a contiguous float32 vector of {self.dim} numbers."
                )
        for slot, parameter in zip(self._slots, self._parameters, strict=True):
            parameter.data = slot.view(vector)
        self._gradient = (
            () if gradient is None else tuple(slot.view(gradient) for slot in self._slots)
        )

    def backward(self, loss: Tensor) -> None:
        """Overwrites the bound gradient with that of `loss`.

        Leaner than `loss.backward()`, which needs a zeroed gradient to add to.
        """
        parts = torch.autograd.grad(loss, self._parameters, materialize_grads=True)
        with torch.no_grad():  # in torch 2.4 the zeros of an unused parameter ask for a gradient
            for view, part in zip(self._gradient, parts, strict=True):
                view.copy_(part.to_dense() if part.is_sparse else part)

    def unflatten(self, vector: Tensor) -> dict[str, Tensor]:
        """{name: view of the vector in the parameter's shape}; of each row, if it is a matrix."""
        return {slot.name: slot.view(vector) for slot in self._slots}

    def buffers(self) -> dict[str, Tensor]:
        """The module's buffers, copied."""
        return {name: b.detach().clone() for name, b in self.module.named_buffers()}

    def load_buffers(self, buffers: Mapping[str, Tensor]) -> None:
        """Writes buffers into the module.

        Args:
            buffers: By name, as `buffers` gave them.

        Raises:
            ValueError: Their names or shapes are not those of the module's.
        """
        own = dict(self.module.named_buffers())
        if own.keys() != buffers.keys():
            raise InvalidError(
                f"The buffers {sorted(own.keys() ^ buffers.keys())} are on one side only; this "
                f"model has {sorted(own)}."
            )
        for name, buffer in own.items():
            if buffer.shape != buffers[name].shape:
                raise InvalidError(
                    f"Buffer {name!r} has shape {tuple(buffer.shape)} here, but "
                    f"{tuple(buffers[name].shape)} was given."
                )
        for name, buffer in own.items():
            buffer.copy_(buffers[name])

    def state_dict(self, vector: Tensor) -> dict[str, Tensor]:
        """The module's whole state with `vector` in place of the trainable parameters.

        Ready for `module.load_state_dict` of a module that has never heard of this package.

        Args:
            vector: (d,).

        Returns:
            Copies of all parameters and buffers, by name.
        """
        by_parameter = {
            id(parameter): slot.view(vector)
            for slot, parameter in zip(self._slots, self._parameters, strict=True)
        }
        state = {
            name: by_parameter.get(id(tensor), tensor)
            for name, tensor in self.module.state_dict(keep_vars=True).items()
        }
        return {name: tensor.detach().clone() for name, tensor in state.items()}


def average_buffers(
    replies: Sequence[Mapping[str, Tensor]], weights: Sequence[float] | None = None
) -> dict[str, Tensor]:
    """Buffers of several clients made one: floats averaged, integers and booleans the maximum.

    An average of step counters means nothing, and it would turn them into floats.

    Args:
        replies: The buffers of each client, by name.
        weights: What each client counts for; None for the same.

    Returns:
        One set of buffers, by name.

    Raises:
        ValueError: There are not as many weights as replies, or all are zero.
    """
    shares = [1.0] * len(replies) if weights is None else list(weights)
    if len(shares) != len(replies) or not sum(shares) > 0:
        raise InvalidError(f"{len(replies)} replies need as many weights, not all zero: {shares}.")
    merged = {}
    for name, first in replies[0].items():
        stacked = torch.stack([reply[name] for reply in replies])
        if first.is_floating_point():
            by_client = torch.tensor(shares, dtype=torch.float64, device=first.device)
            mean = torch.tensordot(by_client / by_client.sum(), stacked.double(), dims=1)
            merged[name] = mean.to(first.dtype)
        else:
            merged[name] = stacked.amax(dim=0)
    return merged


def _trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    trainable: dict[str, nn.Parameter] = {}
    for name, parameter in module.named_parameters():  # a tied parameter comes once
        if is_lazy(parameter):
            raise InvalidError(
                f"Parameter {name!r} has no shape yet. Run one batch through the model first."
            )
        if not parameter.requires_grad:
            continue
        if parameter.dtype != torch.float32:
            raise InvalidError(
                f"Parameter {name!r} is {parameter.dtype}; clients train in float32. Call "
                f".float() on the model, or freeze that parameter with requires_grad_(False)."
            )
        trainable[name] = parameter
    if not trainable:
        raise InvalidError("The model has no trainable parameter: there is nothing to federate.")
    return trainable


def slots_of(module: nn.Module) -> list[Slot]:
    """Where each trainable parameter of a module lies in its vector.

    Args:
        module: As for `FlatModel`.

    Returns:
        The slots, in order.

    Raises:
        ValueError: A parameter has no shape or another dtype, or there is none to train.
    """
    slots: list[Slot] = []
    start = 0
    for name, parameter in _trainable(module).items():
        slots.append(Slot(name, tuple(parameter.shape), start, start + parameter.numel()))
        start += parameter.numel()
    return slots


def _refuse_batch_norm(module: nn.Module) -> None:
    for name, layer in module.named_modules():
        if isinstance(layer, _BatchNorm):
            groups = 2 if layer.num_features % 2 == 0 else 1
            raise InvalidError(
                f"Layer {name!r} is {type(layer).__name__}. Its statistics differ from client to "
                f"client and their average belongs to nobody, which breaks training on "
                f"heterogeneous clients. Use nn.GroupNorm({groups}, {layer.num_features}) in its "
                f"place, as the paper does."
            )
