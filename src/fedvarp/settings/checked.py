"""Functions that refuse arguments outside the bounds of their annotations."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from fedvarp.settings.problems import SettingsError, in_plain_words

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

# Strict: "3" is no number, and 3.5 clients are not 3.
_CONFIG: Final = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)


def checked(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorates a function, so that its bounds hold in Python as they do in a settings file.

    >>> from fedvarp.settings.bounds import Count
    >>> @checked
    ... def split(examples: int, num_clients: Count = 2) -> int:
    ...     return examples // num_clients
    >>> split(9)
    4
    >>> split(9, 0)
    Traceback (most recent call last):
    fedvarp.settings.problems.SettingsError: split: num_clients = 0 should be at least 1.

    Args:
        function: Has annotations that pydantic understands.

    Returns:
        The function, which raises a ValueError before it does anything with wrong arguments.
    """
    signature = inspect.signature(function)
    hints = get_type_hints(function, include_extras=True)
    types: dict[str, TypeAdapter[object]] = {
        name: TypeAdapter(hints[name], config=_CONFIG) for name in signature.parameters
    }

    @functools.wraps(function)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            try:
                types[name].validate_python(value)
            except ValidationError as error:
                reasons = " or ".join(dict.fromkeys(map(in_plain_words, error.errors())))
                raise SettingsError(
                    f"{function.__name__}: {name} = {value!r} {reasons}."
                ) from error
        return function(*args, **kwargs)

    return call
