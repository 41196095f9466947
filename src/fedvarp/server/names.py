"""The names of the server's optimisers, and how one is made by its name. No torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from fedvarp.settings.calls import parse_call
from fedvarp.settings.names import Choice, Registry
from fedvarp.settings.problems import SettingsError, explain

if TYPE_CHECKING:
    from fedvarp.server.optimizers import ServerOptimizer

SERVER_OPTIMIZERS: Final = Registry(
    "server optimiser",
    {
        "sgd": "fedvarp.server.optimizers:sgd",
        "adam": "fedvarp.server.adaptive:ServerAdam",
        "yogi": "fedvarp.server.adaptive:ServerYogi",
        "adagrad": "fedvarp.server.adaptive:ServerAdagrad",
        "exp": "fedvarp.server.extrapolation:ServerExP",
    },
)
"""One line registers an optimiser of one's own, and settings then find it by its name:
``SERVER_OPTIMIZERS["mine"] = Mine``. The options of a settings file are its parameters."""


def make_server_optimizer(given: str | Choice | ServerOptimizer, **options: Any) -> ServerOptimizer:
    """Makes a server optimiser by its name.

    >>> make_server_optimizer("adam").describe()["server_lr"]
    0.01
    >>> make_server_optimizer("adam(lr=0.03)").describe()["server_lr"]
    0.03
    >>> make_server_optimizer("adam", beta1=1.5)
    Traceback (most recent call last):
    fedvarp.settings.problems.SettingsError: server_optimizer.beta1 = 1.5 should be less than 1.

    Args:
        given: A name in `SERVER_OPTIMIZERS` or the import path of one's own, with or without
            options, as in ``adam(lr=0.03)``; a section that has it; or an optimiser, which is
            returned as it is.
        **options: Of the optimiser of that name.

    Returns:
        The optimiser.

    Raises:
        SettingsError: There is none of that name, what the name stands for is none, or an option is
            unknown or out of bounds.
    """
    from fedvarp.server.optimizers import ServerOptimizer

    if isinstance(given, ServerOptimizer):
        return given
    if isinstance(given, str):
        try:
            given = parse_call(given)
        except SettingsError as error:
            raise SettingsError(f"server_optimizer {error}") from None
    if twice := given.options.keys() & options.keys():
        raise SettingsError(f"server_optimizer has {min(twice)} twice: give it once.")
    choice = Choice(**{"name": given.name, **given.options, **options})
    try:
        made = SERVER_OPTIMIZERS.make(SERVER_OPTIMIZERS.complete(choice, "server_optimizer"))
    except ValidationError as error:
        raw = {"server_optimizer": dict(choice)}
        raise SettingsError(explain(error, Choice, raw, lambda _: "")) from None
    if not isinstance(made, ServerOptimizer):
        raise SettingsError(
            f"server_optimizer = {choice.name!r} makes a {type(made).__name__}; it must make a "
            f"fedvarp.ServerOptimizer."
        )
    return made
