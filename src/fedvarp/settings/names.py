"""Names for what settings choose: data sets, models, losses, algorithms, and anybody's own.

A name of a registry stands for something of this package; ``package.module:name`` for anything
that can be imported. What else may be said of a choice are the parameters of the function or class
that it names: their annotations are the bounds, their defaults the defaults.

>>> MODELS = Registry("model", {"ordered": "collections:OrderedDict"})
>>> MODELS.find("ordered").__name__
'OrderedDict'
>>> MODELS.find("fractions:Fraction").__name__
'Fraction'
>>> MODELS.find("orderd")
Traceback (most recent call last):
fedvarp.settings.problems.SettingsError: = 'orderd' is no model; did you mean ordered?
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic_core import InitErrorDetails

from fedvarp.settings.problems import SettingsError, unknown
from fedvarp.settings.section import Section

Maker = Callable[..., Any]

GIVEN: Final = frozenset({"root", "dataset", "dtype", "table"})
"""Parameters that are no settings: the program fills them in, or they are Python's alone."""


class Choice(Section):
    """A section that names something and may say more about it.

    >>> Choice(name="digits", num_clients=10).options
    {'num_clients': 10}
    """

    model_config = ConfigDict(extra="allow")

    name: str
    """What is chosen: a name, or an import path such as my_package.models:Net."""

    @property
    def options(self) -> dict[str, Any]:
        """What is said of it beside its name."""
        return {name: value for name, value in self if name != "name" and value is not None}


AnyChoice = TypeVar("AnyChoice", bound=Choice)


class _Options(Section):
    """A section made from a signature: it has no source in which pydantic could look for words."""

    model_config = ConfigDict(use_attribute_docstrings=False)


class Registry(dict[str, str | Maker]):
    """Names, and what each stands for; ``MODELS["mine"] = Net`` adds one.

    Args:
        what: What is named, for messages.
        entries: Import paths, so that nothing is loaded before it is chosen, or objects.
        fills_required: Whether the program fills in every parameter that has no default, so that
            only the others are options.
    """

    def __init__(
        self, what: str, entries: Mapping[str, str | Maker], *, fills_required: bool = False
    ) -> None:
        super().__init__(entries)
        self.what = what
        self._fills_required = fills_required

    def check(self, name: str) -> str:
        """Returns the name if it may stand for something; imports nothing.

        Raises:
            SettingsError: It is neither a name nor an import path; the message has no subject, for
                the name of the setting to stand before it.
        """
        if name in self or ":" in name:
            return name
        near = get_close_matches(name, self, n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(self)},"
        more = "" if near else " and import paths such as my_package.module:name."
        raise SettingsError(f"= {name!r} is no {self.what}{hint}{more}")

    def check_choice(self, choice: Choice) -> Choice:
        """Returns the choice if its name may stand for something; see `check`."""
        self.check(choice.name)
        return choice

    def find(self, name: str) -> Any:
        """What the name or import path stands for.

        Raises:
            SettingsError: There is no such name, or it cannot be imported.
        """
        target = self.get(self.check(name), name)
        if not isinstance(target, str):
            return target
        module, _, attributes = target.partition(":")
        _look_here_too()
        try:
            found: Any = importlib.import_module(module)
            for attribute in attributes.split("."):
                found = getattr(found, attribute)
        except (ImportError, AttributeError) as error:
            raise SettingsError(
                f"= {name!r} cannot be imported: {error}. Write package.module:name, of a module "
                f"that is installed or lies in the folder you are in."
            ) from error
        return found

    def load(self, name: str, where: str) -> Any:
        """What `find` finds; what is wrong is said of a setting.

        Args:
            name: A name, or an import path.
            where: The dotted name of the setting.

        Raises:
            ValidationError: There is no such name, or it cannot be imported; as pydantic raises it,
                so that it is explained together with where the setting was given.
        """
        try:
            return self.find(name)
        except SettingsError as error:
            raise _wrong(where, name, error) from None

    def complete(self, choice: AnyChoice, where: str) -> AnyChoice:
        """The choice with all its options, those that were left out at their defaults.

        Args:
            choice: What was chosen.
            where: The dotted name of the section, for messages.

        Raises:
            ValidationError: An option is unknown or out of bounds; as pydantic raises it, so that
                it is explained together with where the option was given.
        """
        maker = self.load(choice.name, f"{where}.name")
        if not (inspect.isclass(maker) or inspect.isroutine(maker)):
            problem = ValueError(f"= {choice.name!r} is no class and no function, but {maker!r}")
            raise _wrong(f"{where}.name", choice.name, problem)
        options = options_of(maker, but_required=self._fills_required)
        try:
            checked = options.model_validate(choice.options)
        except ValidationError as error:
            raise _below(where, error, options, choice.name) from None
        filled = {name: value for name, value in dict(checked).items() if value is not None}
        return type(choice)(name=choice.name, **filled)

    def make(self, choice: Choice, **given: Any) -> Any:
        """Calls what was chosen with its options, and with those of `given` that it takes."""
        maker = self.find(choice.name)
        taken = inspect.signature(maker).parameters
        return maker(**{n: v for n, v in given.items() if n in taken}, **choice.options)


def options_of(maker: Maker, *, but_required: bool = False) -> type[BaseModel]:
    """The settings that a function or class takes, as a section made from its signature.

    Args:
        maker: It.
        but_required: Whether parameters without a default are left out.
    """
    hints = _hints(maker.__init__ if inspect.isclass(maker) else maker)
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(maker).parameters.values():
        if parameter.name in GIVEN or parameter.kind in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            continue
        is_required = parameter.default is parameter.empty
        if is_required and but_required:
            continue
        default = ... if is_required else parameter.default
        fields[parameter.name] = (hints.get(parameter.name, Any), default)
    return create_model(maker.__qualname__, __base__=_Options, **fields)


def _hints(function: Maker) -> dict[str, Any]:
    """The types of its parameters, but for those that are no settings, which may need imports."""
    function = inspect.unwrap(getattr(function, "__func__", function))
    settings = {n: a for n, a in function.__annotations__.items() if n not in {*GIVEN, "return"}}
    annotated = type("annotated", (), {"__annotations__": settings})
    return get_type_hints(annotated, globalns=function.__globals__, include_extras=True)


def _wrong(where: str, given: object, problem: ValueError) -> ValidationError:
    details = InitErrorDetails(
        type="value_error", loc=tuple(where.split(".")), input=given, ctx={"error": problem}
    )
    return ValidationError.from_exception_data(where, [details])


def _below(
    where: str, error: ValidationError, options: type[BaseModel], chosen: str
) -> ValidationError:
    """The same problems, said of settings below `where`."""
    names = [f"{where}.{name}" for name in options.model_fields]
    details: list[InitErrorDetails] = []
    for found in error.errors():
        kind, context = found["type"], found.get("ctx", {})
        if kind == "extra_forbidden":
            name = f"{where}.{found['loc'][0]}"
            said = unknown(name, names) if names else f"is no setting: {chosen} has none"
            kind, context = "value_error", {"error": ValueError(said)}
        loc = (*where.split("."), *found["loc"])
        details.append(InitErrorDetails(type=kind, loc=loc, input=found["input"], ctx=context))
    return ValidationError.from_exception_data(where, details)


def _look_here_too() -> None:
    """Lets an installed program import what lies in the present folder, as `python -m` does."""
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
