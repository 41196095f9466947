"""The optimisers of torch.optim that may take a client's steps in place of plain SGD."""

from __future__ import annotations

import inspect
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim import Optimizer

from fedvarp.clients.local_sgd import OPTIMIZERS
from fedvarp.settings.calls import written_call
from fedvarp.settings.names import Choice
from fedvarp.settings.problems import SettingsError, unknown


def make_optimizer(choice: Choice, parameters: Iterable[Tensor], rate: float) -> Optimizer:
    """Makes an optimiser, without any state: a client has a new one in every round.

    Args:
        choice: Its name and settings.
        parameters: What it changes; their gradients are where it reads them.
        rate: Its learning rate.

    Returns:
        The optimiser.
    """
    options = {n: tuple(v) if isinstance(v, list) else v for n, v in choice.options.items()}
    made: Optimizer = OPTIMIZERS.find(choice.name)(list(parameters), lr=rate, **options)
    return made


def refuse_unusable(choice: Choice, parameters: Iterable[Tensor] | None = None) -> None:
    """Tries whether an optimiser can be made and takes a step.

    Args:
        choice: Its name and settings.
        parameters: What it shall change; not changed now. None: a matrix, which all of them take.

    Raises:
        SettingsError: It cannot; the message has no subject, for the name of the setting to stand
            before it.
    """
    kind, name = OPTIMIZERS.find(choice.name), choice.name
    if not (inspect.isclass(kind) and issubclass(kind, Optimizer)):
        raise SettingsError(f"= {name!r} is no torch.optim.Optimizer, but {kind!r}")
    known = [option for option in inspect.signature(kind).parameters if option != "params"]
    for option in choice.options:
        if option == "lr":
            raise SettingsError(f"= {name!r} has its rate from local_sgd.lr: leave out its own lr")
        if option not in known:
            said = unknown(option, [each for each in known if each != "lr"], what="option of it")
            raise SettingsError(f"= {name!r}: {option} {said}")
    probe = torch.zeros(1, 1)
    probe.grad = torch.ones_like(probe)
    try:
        make_optimizer(choice, [probe], 1.0).step()
        if parameters is not None:
            make_optimizer(choice, parameters, 1.0)
    except Exception as error:  # whatever an optimiser says of its settings, or of a plain gradient
        given = written_call(name, choice.options)
        raise SettingsError(f"= {given!r} cannot be used: {error}") from error
