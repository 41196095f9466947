"""What a user may add to a client app: a name that lasts, and steps that are counted.

The keys under which a client's metrics are looked for are here as well, since a client needs no
more of this package than this module.
"""

from __future__ import annotations

import io
from typing import Any, Final

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from fedvarp.errors import InvalidError

NUM_EXAMPLES: Final = "num-examples"
"""How many examples a client trained on; every reply must have it."""
NUM_STEPS: Final = "num-steps"
"""How many local steps a client took."""
CLIENT_LR: Final = "client-lr"
"""The rate η_c with which it began the round."""
NUM_GRADIENTS: Final = "num-gradients"
"""How many gradients its walk adds up in units of that rate, τ_i, if not as many as steps."""

IDENTITY_ACTION: Final = "identity"
IDENTITY_RECORD: Final = "identity"
CORRECTION_RECORD: Final = "correction"
NEEDS_GRADIENTS: Final = "needs-gradients"
"""Under which the server says that steps must be those of SGD."""
PROXIMAL: Final = "proximal-mu"
"""Under which the server sends μ, in the configuration, as Flower's own FedProx does."""


def answer_identity(app: ClientApp, *keys: str) -> None:
    """Lets the server ask who a client is, before it is drawn for the first time.

    One line beside ``app = ClientApp()``::

        answer_identity(app)                             # tells its partition-id
        answer_identity(app, "hospital", "region")       # or whatever else its node config names

    Args:
        app: The client app.
        *keys: Keys of the SuperNode's ``--node-config`` that are told; no others are.
    """
    told = keys or ("partition-id",)

    def identity(message: Message, context: Context) -> Message:
        known = {key: context.node_config[key] for key in told if key in context.node_config}
        return Message(RecordDict({IDENTITY_RECORD: ConfigRecord({**known})}), reply_to=message)

    app.query(IDENTITY_ACTION)(identity)


class LocalSteps:
    """Corrects and counts the steps of a torch optimiser: the client's part in some algorithms.

    Three lines in ``@app.train()``::

        steps = LocalSteps(msg, model, optimizer)        # before training
        ...                                              # the training loop stays as it is
        metrics = {"num-examples": n, **steps.metrics()}

    Every `optimizer.step` first adds the server's correction to the gradients, if the message
    brings one (SCAFFOLD's c − c_i, FedDyn's −h_i), and μ (w_i − w), if its configuration has a
    "proximal-mu" (FedProx, FedDyn); and is counted. A client that adds the proximal term to its
    loss itself must not use this. For SCAFFOLD and `normalise_steps` the optimiser must be SGD,
    with or without plain momentum (neither dampened nor Nesterov's); else it may be any. The
    correction travels as a record of bytes: mods that expect one record of arrays do not mind it.

    Args:
        message: The message as it came from the server.
        model: The model that is trained, as it was sent until the first step; its parameters have
            the names of the arrays that travel.
        optimizer: The optimiser whose steps are corrected and counted.

    Raises:
        ValueError: The server needs steps of SGD, and the optimiser takes others.
    """

    def __init__(
        self, message: Message, model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> None:
        if _told(message, NEEDS_GRADIENTS):
            _refuse_other_than_sgd(optimizer)
        self._corrections = _corrections(message, model)
        self._proximal = _told(message, PROXIMAL)
        self._trained = [p for p in model.parameters() if p.requires_grad]
        self._sent: list[Tensor] = []  # w, from the first step on
        self._steps = 0
        self._client_lr = 0.0
        self._gradients = 0.0
        self._repeated = 0.0
        optimizer.register_step_pre_hook(self._before_step)

    def metrics(self) -> dict[str, int | float]:
        """What the reply's MetricRecord should say about the steps.

        Returns:
            Their number, and the rate of the first of them. With momentum, or a rate that changes
            within the round, also how many gradients of that rate they add up.
        """
        told: dict[str, int | float] = {NUM_STEPS: self._steps, CLIENT_LR: self._client_lr}
        if self._gradients != self._steps:
            told[NUM_GRADIENTS] = self._gradients
        return told

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for parameter, correction in self._corrections:
            if parameter.grad is None:
                parameter.grad = correction.clone()
            else:
                parameter.grad.add_(correction)
        if self._proximal:
            self._pull_back()
        group = optimizer.param_groups[0]
        rate = float(group["lr"])
        self._client_lr = self._client_lr or rate  # a rate that warms up from 0 is no unit
        # A gradient counts by what it moves the model in all: momentum repeats it in later steps.
        self._repeated = group.get("momentum", 0.0) * self._repeated + 1
        if rate:
            self._gradients += rate / self._client_lr * self._repeated
        self._steps += 1

    @torch.no_grad()
    def _pull_back(self) -> None:
        if not self._sent:
            self._sent = [parameter.clone() for parameter in self._trained]
        for parameter, sent in zip(self._trained, self._sent, strict=True):
            way = parameter - sent
            if parameter.grad is None:
                parameter.grad = way.mul_(self._proximal)
            else:
                parameter.grad.add_(way, alpha=self._proximal)


def correction_record(correction: ArrayRecord) -> ConfigRecord:
    """A correction as it travels.

    Args:
        correction: One array for each parameter, by its name.

    Returns:
        The same as bytes.
    """
    return ConfigRecord({name: array.data for name, array in correction.items()})


def _corrections(message: Message, model: nn.Module) -> list[tuple[nn.Parameter, Tensor]]:
    record = message.content.config_records.get(CORRECTION_RECORD)
    parameters = dict(model.named_parameters())
    return [
        (parameters[name], torch.from_numpy(np.load(io.BytesIO(sent))).to(parameters[name].device))
        for name, sent in ({} if record is None else record).items()
        if name in parameters and isinstance(sent, bytes)
    ]


def _told(message: Message, key: str) -> float:
    """A number in the message's configuration; 0 if there is none."""
    told = [record.get(key) for record in message.content.config_records.values()]
    return next((float(number) for number in told if isinstance(number, int | float)), 0.0)


def _refuse_other_than_sgd(optimizer: torch.optim.Optimizer) -> None:
    plain = isinstance(optimizer, torch.optim.SGD) and not any(
        group["dampening"] or group["nesterov"] for group in optimizer.param_groups
    )
    if not plain:
        raise InvalidError(
            f"LocalSteps: the server's algorithm (SCAFFOLD, or normalise_steps=True) takes updates "
            f"for sums of gradients, and those of {type(optimizer).__name__} are none. Use "
            f"torch.optim.SGD without dampening and nesterov, or an algorithm such as FedVARP."
        )
