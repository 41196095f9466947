"""LocalSGD: the settings of what a client does (Algorithm 1). No torch.

`fedvarp.clients.local_training` carries it out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

from pydantic import BeforeValidator, model_validator

from fedvarp.clients.schedules import Constant, ScheduleSetting
from fedvarp.errors import InvalidError
from fedvarp.settings.bounds import Count, Decay, Momentum, NotNegative, Positive, Rate
from fedvarp.settings.calls import parse_call
from fedvarp.settings.names import Choice, Registry
from fedvarp.settings.section import Section

OPTIMIZERS: Final = Registry(
    "optimiser",
    {
        kind.lower(): f"torch.optim:{kind}"
        for kind in (
            *("SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "Adagrad", "Adadelta"),
            *("Adafactor", "RMSprop", "Rprop", "ASGD", "Muon"),
        )
    },
)
"""Those of torch.optim that take a step from one gradient."""


def _chosen(given: Any) -> Any:
    """An optimiser by its name, a call or a section that names it; None for plain SGD."""
    if isinstance(given, str):
        given = parse_call(given)
    if isinstance(given, Mapping):
        given = Choice.model_validate(
            {n: list(v) if isinstance(v, tuple) else v for n, v in given.items()}
        )
    if isinstance(given, Choice):
        OPTIMIZERS.check_choice(given)
        return None if given.name == "sgd" and not given.options else given
    return given


if TYPE_CHECKING:
    OptimizerSetting = Any  # a Choice or None once it is set; a name or a mapping will do
else:
    OptimizerSetting = Annotated[Choice | None, BeforeValidator(_chosen)]


class LocalSGD(Section):
    """Algorithm 1 and its settings; all but the first three are off in the paper.

    Exactly one of `epochs` and `steps` is given. The last, smaller batch of an epoch is kept.

    >>> LocalSGD(lr=0.1, batch_size=64, epochs=5).batch_sizes(num_examples=70)[:3]
    [64, 6, 64]
    """

    lr: Rate
    """The client learning rate η_c; --set client_lr=… for short."""
    batch_size: Count
    """Examples in a batch (paper: 64)."""
    epochs: Count | None = None
    """Passes over the client's data, so that its steps follow from its size; or give steps."""
    steps: Count | None = None
    """Steps, the same number at every client, which may take several passes; or give epochs."""
    weight_decay: NotNegative = 0.0
    """λ: adds λ w to each gradient."""
    momentum: Momentum = 0.0
    """Heavy-ball momentum, from zero in each round."""
    clip_norm: Positive | None = None
    """The longest gradient of a batch; longer ones are shortened to it."""
    schedule: ScheduleSetting = Constant()
    """How the rate changes from round to round: constant, exponential, cosine, or your own."""
    step_decay: Decay = 1.0
    """Multiplies the rate after each step within a round."""
    optimizer: OptimizerSetting = None
    """What takes the steps: sgd, or another of torch.optim by its name (adam, adamw, rmsprop, …) or
    import path, with its settings, as in adam(eps=1e-3). Each client has a new one in every round;
    its rate is lr."""
    normalise_steps: bool = False
    """Whether an update is divided by the client's number of steps (FedNova), so that each client
    counts the same; if not, clients count by their steps, as in FedAvg."""

    @model_validator(mode="after")
    def _epochs_or_steps(self) -> Self:
        if (self.epochs is None) == (self.steps is None):
            raise InvalidError("give one of epochs and steps")
        return self

    @model_validator(mode="after")
    def _of_plain_sgd(self) -> Self:
        if self.optimizer is None:
            return self
        name = self.optimizer.name
        if self.momentum:
            raise InvalidError(
                f"momentum = {self.momentum:g} is that of plain SGD; optimizer = {name!r} has "
                f"settings of its own"
            )
        if self.normalise_steps:
            raise InvalidError(
                f"normalise_steps = true divides updates by how many gradients they add up, which "
                f"those of optimizer = {name!r} do not; leave one of the two out"
            )
        return self

    def rate(self, round: int) -> float:
        """The client rate η_c(t) with which a round begins.

        Args:
            round: t, from 0.
        """
        return self.lr * self.schedule(round)

    def num_gradients(self, num_steps: int) -> float:
        """How many gradients a walk of some steps adds up, in units of η_c(t): τ_i in the paper.

        Momentum repeats a gradient in later steps, and `step_decay` shortens them; a gradient then
        counts by what it moves the model in all (FedNova's ‖a_i‖₁). Without either it is the number
        of steps.

        >>> LocalSGD(lr=0.1, batch_size=64, epochs=5).num_gradients(20)
        20.0
        >>> LocalSGD(lr=0.1, batch_size=64, steps=2, momentum=0.5).num_gradients(2)  # 1 + 1.5
        2.5

        Args:
            num_steps: How many steps the client takes.
        """
        total, repeated, decay = 0.0, 0.0, 1.0
        for _ in range(num_steps):
            repeated = self.momentum * repeated + 1
            total += decay * repeated
            decay *= self.step_decay
        return total

    def batch_sizes(self, num_examples: int) -> list[int]:
        """How many examples each of a client's steps reads."""
        full, rest = divmod(num_examples, self.batch_size)
        epoch = [self.batch_size] * full + [rest] * (rest > 0)
        if self.steps is None:
            return epoch * (self.epochs or 0)
        return (epoch * -(-self.steps // len(epoch)))[: self.steps]
