"""A choice and its options in one text, as a call writes them: ``fedstale(beta=0.3)``.

One text is what a legend shows, a directory is named after, a sweep lists and a run is recorded by.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from fedvarp.settings.names import Choice
from fedvarp.settings.problems import SettingsError
from fedvarp.system.parsing import parse_toml

_WORD: Final = re.compile(r"[A-Za-z_][\w.:/*-]*")
_BARE_WORD: Final = re.compile(rf"=\s*(?!(?:true|false|inf|nan)\b)({_WORD.pattern})")
_COMMA_OUTSIDE: Final = re.compile(r",(?![^()]*\))")


def parse_call(text: str) -> Choice:
    """Reads a name and its options.

    >>> parse_call("fedvarp_adaptive(beta=one, memory=0.9)").options
    {'beta': 'one', 'memory': 0.9}

    Args:
        text: A name, or ``name(option=value, …)``; words need no quotes.

    Returns:
        The choice.

    Raises:
        SettingsError: It is no such text; the message has no subject, for the name of the setting
            to stand before it.
    """
    name, opened, rest = text.strip().partition("(")
    if not opened:
        return Choice(name=name)
    try:
        if not rest.endswith(")"):
            raise ValueError
        inside = _BARE_WORD.sub(r'="\1"', rest[:-1])
        options = parse_toml(f"options = {{{inside}}}")["options"]
        if "name" in options:
            raise ValueError
        return Choice(**{"name": name.strip(), **options})
    except ValueError:
        raise SettingsError(
            f"= {text!r} cannot be read; options are written as in {name.strip()}(beta=0.5)"
        ) from None


def written_call(name: str, options: dict[str, Any]) -> str:
    """Writes what `parse_call` reads.

    >>> written_call("fedstale", {"beta": 0.3}), written_call("fedavg", {})
    ('fedstale(beta=0.3)', 'fedavg')

    Args:
        name: What is chosen.
        options: What is said of it.

    Returns:
        The text.
    """
    told = ", ".join(f"{option}={_written(value)}" for option, value in options.items())
    return f"{name}({told})" if told else name


def split_calls(text: str) -> list[str]:
    """Splits a list at its commas, but for those between parentheses.

    >>> split_calls("fedavg, fedvarp_mixed(beta=one, memory=0.9)")
    ['fedavg', 'fedvarp_mixed(beta=one, memory=0.9)']

    Args:
        text: Calls separated by commas.

    Returns:
        The calls.
    """
    return [part.strip() for part in _COMMA_OUTSIDE.split(text) if part.strip()]


def _written(value: Any) -> str:
    if isinstance(value, str) and _WORD.fullmatch(value):
        return value
    return json.dumps(value)
