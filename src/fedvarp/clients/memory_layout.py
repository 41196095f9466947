"""How images lie in memory: with their channels last, unless the model cannot take them so."""

from __future__ import annotations

import torch
from torch import Tensor

from fedvarp.server.flat_model import FlatModel


def laid_out(x: Tensor, model: FlatModel) -> Tensor:
    """Lays images out with their channels last, as convolutions read them fastest.

    Args:
        x: (n, ...), the inputs; those that are no images stay as they are.
        model: What is to read them; the first call tries whether it can.

    Returns:
        The same numbers, in another order in memory where that helps.
    """
    if not _channels_last(x, model):
        return x
    return x.contiguous(memory_format=torch.channels_last)


def gathered(x: Tensor, chosen: Tensor, model: FlatModel) -> Tensor:
    """Copies some rows of inputs that are laid out, row by row, as plain indexing does not.

    Args:
        x: (n, ...), from `laid_out`.
        chosen: (k,) int64, which rows.
        model: What is to read them.

    Returns:
        (k, ...), laid out like x.
    """
    return _rows(x, chosen) if _channels_last(x, model) else x.index_select(0, chosen)


def _rows(x: Tensor, chosen: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1).index_select(0, chosen).permute(0, 3, 1, 2)


def _channels_last(x: Tensor, model: FlatModel) -> bool:
    if x.ndim != 4 or len(x) == 0:
        return False
    if model.channels_last is None:
        model.channels_last = _takes_channels_last(model, x)
    return model.channels_last


def _takes_channels_last(model: FlatModel, x: Tensor) -> bool:
    """Whether the model computes anything for such images, or nothing for plain ones either.

    `x.view(...)` on what a convolution gives fails for them, and many a model flattens its features
    so. A model that fails on both is left to training, which says whose client it was.
    """
    some = torch.arange(min(2, len(x)), device=x.device)
    return _computes(model, _rows(x, some)) or not _computes(model, x.index_select(0, some))


def _computes(model: FlatModel, x: Tensor) -> bool:
    module, was_training, buffers = model.module, model.module.training, model.buffers()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            for training in (True, False):
                module.train(training)
                module(x)
    except Exception:
        return False
    finally:
        module.train(was_training)
        model.load_buffers(buffers)
    return True
