"""Functions and classes that refuse arguments outside the bounds of their annotations."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, Final, TypeVar, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo

from fedvarp.settings.problems import SettingsError, in_plain_words, shown, unknown

Checked = TypeVar("Checked", bound=Callable[..., Any])

# Strict: "3" is no number, and 3.5 clients are not 3.
_CONFIG: Final = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)


def checked(target: Checked) -> Checked:
    """Decorates a function or a class, so that its bounds hold in Python as in a settings file.

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
        target: Has annotations that pydantic understands; a validator in one may turn what was
            given into what is wanted, such as a list into a tensor. An example in one,
            ``Field(examples=["Table(where='disk')"])``, is shown where a value is wrong.
            Parameters without annotations, ``*args`` and ``**kwargs`` are taken as they are.

    Returns:
        The function or class, which raises a SettingsError, a ValueError, before it does anything
        with wrong arguments.
    """
    if isinstance(target, type):
        target.__init__ = _checked(target.__init__, target.__name__)  # type: ignore[misc]
        return target
    wrapped: Checked = _checked(target, target.__qualname__.removesuffix(".__init__"))
    return wrapped


def check_fields(instance: Any) -> None:
    """Checks the fields of a dataclass against their annotations, those of subclasses too.

    Args:
        instance: To be called with ``self`` in ``__post_init__``.

    Raises:
        SettingsError: A field is out of bounds.
    """
    kind: Any = type(instance)
    for name, (adapter, hint) in _field_adapters(kind).items():
        _validated(adapter, hint, kind.__name__, name, getattr(instance, name))


@functools.cache
def _field_adapters(kind: Any) -> dict[str, tuple[TypeAdapter[Any], Any]]:
    hints = get_type_hints(kind, include_extras=True)
    names = [field.name for field in dataclasses.fields(kind) if field.init]
    return {name: (_adapter(hints[name]), hints[name]) for name in names}


def _checked(function: Any, title: str) -> Any:
    signature = inspect.signature(function)
    hints = get_type_hints(function, include_extras=True)
    adapters = {
        name: _adapter(hints[name])
        for name, parameter in signature.parameters.items()
        if name in hints and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise SettingsError(f"{title}: {_misfit(error, signature, kwargs)}") from None
        for name, value in bound.arguments.items():
            if name in adapters:
                right = _validated(adapters[name], hints[name], title, name, value)
                bound.arguments[name] = right
        return function(*bound.args, **bound.kwargs)

    return call


def _validated(
    adapter: TypeAdapter[Any], hint: Any, title: str, name: str, value: object
) -> object:
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        raise SettingsError(f"{title}: {_problem(name, value, error)}{_example(hint)}.") from error


def _adapter(hint: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(hint, config=_CONFIG)
    except PydanticUserError:  # a section has its own configuration, and it is the same
        return TypeAdapter(hint)


def _problem(name: str, value: object, error: ValidationError) -> str:
    for details in error.errors():
        if details["type"] == "value_error":  # the whole sentence of a validator of ours
            return str(details["ctx"]["error"]).removesuffix(".")
    reasons = " or ".join(dict.fromkeys(map(in_plain_words, error.errors())))
    return f"{name} = {shown(value)} {reasons}"


def _misfit(error: TypeError, signature: inspect.Signature, given: dict[str, Any]) -> str:
    """What is wrong with the names or the number of the arguments."""
    strangers = [name for name in given if name not in signature.parameters]
    if strangers:
        known = [name for name in signature.parameters if name != "self"]
        return f"{strangers[0]} {unknown(strangers[0], known, what='argument')}".rstrip(".") + "."
    return f"{error}."


def _example(hint: Any) -> str:
    for about in getattr(hint, "__metadata__", ()):
        if isinstance(about, FieldInfo) and about.examples:
            return f", such as {about.examples[0]}"
    return ""
