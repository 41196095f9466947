"""How the client learning rate changes over the rounds. The paper keeps it constant. No torch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol

from pydantic import BeforeValidator, PlainSerializer

from fedvarp.errors import InvalidError
from fedvarp.settings.bounds import Count, Decay
from fedvarp.settings.names import Choice, Registry
from fedvarp.settings.section import Section


class Schedule(Protocol):
    """A factor for the client learning rate, a pure function of the round.

    >>> halving = Exponential(decay=0.5)
    >>> [halving(round) for round in range(3)]
    [1.0, 0.5, 0.25]
    """

    def __call__(self, round: int) -> float:
        """What the rate is multiplied by in that round, counted from 0."""


class Constant(Section):
    """The paper's choice."""

    def __call__(self, round: int) -> float:
        """One, always."""
        return 1.0


class Exponential(Section):
    """decay^round."""

    decay: Decay
    """What the rate is multiplied by after each round, such as 0.999."""

    def __call__(self, round: int) -> float:
        """The factor of that round."""
        return self.decay**round


class Cosine(Section):
    """From 1 down to `floor` along half a cosine over `rounds`, then flat."""

    rounds: Count
    """Over how many rounds the rate falls; a number of its own, so that rounds may grow later."""
    floor: Decay = 0.01
    """What is left of the rate in the end; above 0, for updates are divided by the rate."""

    def __call__(self, round: int) -> float:
        """The factor of that round."""
        done = min(round / self.rounds, 1.0)
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * done)) / 2


SCHEDULES: Final = Registry(
    "schedule", {"constant": Constant, "exponential": Exponential, "cosine": Cosine}
)


def _made(given: Any) -> Any:
    """A schedule by its name, or by a section that names it; others as they are."""
    if isinstance(given, str):
        given = {"name": given}
    if isinstance(given, Mapping):
        choice = Choice.model_validate(given)
        kind = SCHEDULES.find(choice.name)
        if isinstance(kind, type) and issubclass(kind, Section):
            return kind.model_validate(choice.options)
        return kind(**choice.options) if isinstance(kind, type) else kind
    if not callable(given):
        raise InvalidError(f"= {given!r} is no schedule: a function of the round, or a name")
    return given


def _described(schedule: Any) -> dict[str, Any]:
    """Its name, or the path it can be imported by, and its constants."""
    kind = schedule if hasattr(schedule, "__qualname__") else type(schedule)
    names = [name for name, known in SCHEDULES.items() if known is kind]
    name = names[0] if names else f"{kind.__module__}:{kind.__qualname__}"
    if isinstance(schedule, Section):
        return {"name": name, **schedule.as_toml()}
    if dataclasses.is_dataclass(schedule) and not isinstance(schedule, type):
        return {"name": name, **dataclasses.asdict(schedule)}
    return {"name": name}


if TYPE_CHECKING:
    ScheduleSetting = Schedule
else:
    ScheduleSetting = Annotated[Any, BeforeValidator(_made), PlainSerializer(_described)]
