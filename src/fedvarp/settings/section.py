"""A section of settings: one frozen class, from which all else about them is derived.

A field is a setting. Its annotation has the bounds, its value the default, and the text below it
says what it means: in the settings reference and wherever it is missing or wrong. The same class
checks what Python passes and what a file says, and refuses it with the same sentence.

>>> class Batches(Section):
...     size: int = 10
>>> Batches(size="3")
Traceback (most recent call last):
fedvarp.settings.problems.SettingsError: Batches: size = '3' should be a whole number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from fedvarp.settings.problems import SettingsError, explain, shown

if TYPE_CHECKING:  # type checkers know the constructors that this metaclass gives
    from pydantic._internal._model_construction import ModelMetaclass as _Sentences
else:

    class _Sentences(type(BaseModel)):
        """Turns what pydantic says of a wrong call into our own error; nested it stays its own."""

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            if args:
                first = next(iter(cls.model_fields))
                raise SettingsError(
                    f"{cls.__name__}: settings are given by name, as in "
                    f"{cls.__name__}({first}={shown(args[0])})."
                )
            try:
                return super().__call__(**kwargs)
            except ValidationError as error:
                name = f"{cls.__name__}: "
                raise SettingsError(explain(error, cls, kwargs, lambda _: name)) from None


class Section(BaseModel, metaclass=_Sentences):
    """Settings that belong together: frozen, and closed to names that are not declared."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,  # "3" is no number, and 3.5 rounds are not 3
        allow_inf_nan=False,
        arbitrary_types_allowed=True,
        use_attribute_docstrings=True,
    )

    def replace(self, **changes: Any) -> Self:
        """A copy with other values, checked as if it were made anew."""
        return type(self)(**{**dict(self), **changes})

    def as_toml(self) -> dict[str, Any]:
        """What a file holds of the section; reading it back gives an equal one."""
        return self.model_dump(mode="json", exclude_none=True)
