"""A model and a loss are tried once, on a client's first batch, before anything is begun."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from fedvarp.clients.local_sgd import LocalSGD
from fedvarp.clients.local_training import Loss, batches, generators_kept
from fedvarp.data.federated_dataset import Examples, FederatedDataset
from fedvarp.errors import InvalidError
from fedvarp.randomness import stream


def refuse_untrainable(
    model: nn.Module, loss: Loss, dataset: FederatedDataset, local_sgd: LocalSGD, seed: int = 0
) -> None:
    """Refuses a model and a loss of which no gradient comes, in words that say what to change.

    Torch's own errors would come in the first round, and name none of what was passed. Copies are
    tried, and the batch is the one that client 0 would begin the first round with: what is taken
    here is what training takes. What cannot be copied, or loaded, is not tried.

    Args:
        model: Computes the output; on any device.
        loss: (output, targets) → mean loss of a batch.
        dataset: The clients' examples.
        local_sgd: What a client does: its batches.
        seed: The run's seed.

    Raises:
        ValueError: The output or the loss cannot be computed, or is nothing to descend.
    """
    if isinstance(loss, type):
        raise InvalidError(
            f"loss={loss.__name__} is a class: calling it with outputs and targets would make an "
            f"object, not compute a loss. Give an object of it: loss={loss.__name__}()."
        )
    device = next(model.parameters()).device
    try:
        x, y = (part.to(device) for part in _first_batch(dataset, local_sgd, seed))
        model, loss = copy.deepcopy((model, loss))
    except Exception:  # whatever it is, it is no fault of the model's or the loss's
        return
    with generators_kept(device), torch.enable_grad():
        model.train()
        try:
            output = model(x)
        except Exception as error:
            raise InvalidError(
                f"model={type(model).__name__} cannot compute an output for examples of client 0, "
                f"{_kind(x)}: {_said(error)} Does the model take examples of this shape and type?"
            ) from error
        _refuse_narrow(output, y, dataset.num_classes)
        try:
            value = loss(output, y)
        except Exception as error:
            raise InvalidError(
                f"loss={_name(loss)} cannot be computed from the model's output, {_kind(output)}, "
                f"and the targets, {_kind(y)}: {_said(error)} Is this the loss for such targets?"
            ) from error
    _refuse_no_loss(value, _name(loss))


def _first_batch(dataset: FederatedDataset, local_sgd: LocalSGD, seed: int) -> Examples:
    x, y = dataset.client(0)
    chosen = batches(local_sgd, len(x), seed, round=0, client=0)[0]
    inputs = x[chosen]
    if dataset.augment is not None:
        inputs = dataset.augment(inputs, stream(seed, "augment", 0, 0))
    return inputs, y[chosen]


def _refuse_narrow(output: object, targets: Tensor, num_classes: int | None) -> None:
    if num_classes is None or not isinstance(output, Tensor) or output.ndim != targets.ndim + 1:
        return  # accuracy says of itself what it needs, and a loss may want any other shape
    if output.shape[2:] == targets.shape[1:] and output.shape[1] < num_classes:
        raise InvalidError(
            f"The model has {output.shape[1]} outputs, and the data set num_classes={num_classes}: "
            f"give the model's last layer a number for each class, or leave num_classes out of the "
            f"data set."
        )


def _refuse_no_loss(value: object, name: str) -> None:
    if not isinstance(value, Tensor):
        raise InvalidError(
            f"loss={name} gives a {type(value).__name__}: it must give a tensor, of which "
            f"gradients can be taken. Leave out .item() or float()."
        )
    if value.ndim != 0:
        raise InvalidError(
            f"loss={name} gives numbers of shape {tuple(value.shape)}: it must give one, the mean "
            f'over the batch. Use reduction="mean", or .mean() at its end.'
        )
    if not value.requires_grad:
        raise InvalidError(
            f"loss={name} gives a number that no gradient leads back from to the model: .detach(), "
            f".argmax(), .item() or torch.no_grad() in the loss or the model cut it off."
        )


def _name(loss: Loss) -> str:
    return getattr(loss, "__name__", type(loss).__name__)


def _kind(value: object) -> str:
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    return f"{value.dtype} of shape {tuple(value.shape)}"


def _said(error: Exception) -> str:
    """What another library had to say, as a sentence."""
    words = " ".join(str(error).split()) or type(error).__name__
    return words if words[-1] in ".?!" else f"{words}."
