"""Says what is wrong with settings: which one, where it was given, and what would be right."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError

from fedvarp.errors import InvalidError

_ALSO_CALLED: Final = {
    "learning_rate": "lr",
    "client_learning_rate": "lr",
    "dtype": "codec",
}
_LONGEST_VALUE: Final = 80  # characters of a wrong value in a message
_RENAMED: Final = {
    "evaluate_every": "evaluation.every",
    "server_lr": "server.lr",
    "server_optimizer": "server.name",
    "workers": "trainer.workers",
    "device": "trainer.device",
    "clusters": "table.clusters",
}


class SettingsError(InvalidError):
    """The settings cannot be used."""


def explain(
    error: ValidationError,
    section: type[BaseModel],
    raw: Mapping[str, Any],
    origin: Callable[[str], str],
) -> str:
    """One line for each wrong setting.

    Args:
        error: What pydantic found.
        section: The class whose settings they are.
        raw: The nested values that it looked at.
        origin: Where the setting of a dotted name was given, as the beginning of a line.

    Returns:
        The lines.
    """
    problems: dict[str, list[str]] = {}
    for details in error.errors():
        name = ".".join(_path(details, raw))
        problem = _problem(name, details, section)
        if problem not in problems.setdefault(name, []):
            problems[name].append(problem)
    lines = []
    for name, found in problems.items():
        line = f"{origin(name)}{name} {' or '.join(found)}".strip()
        lines.append(line if line.endswith(("?", ".")) else f"{line}.")
    return "\n".join(lines)


def fields_of(section: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str | None]]:
    """The dotted names of all settings of a section and of those below it, and what they mean."""
    for key, field in section.model_fields.items():
        yield prefix + key, field.description
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from fields_of(kind, f"{prefix}{key}.")


def _path(details: Any, raw: Any) -> Iterator[str]:
    """The keys that lead to the setting, without the names of types in between."""
    *_, last = details["loc"] or ("",)
    for part in details["loc"]:
        if isinstance(raw, Mapping) and part in raw:
            yield str(part)
            raw = raw[part]
        elif part == last and details["type"] == "missing":
            yield str(part)


def _problem(name: str, details: Any, section: type[BaseModel]) -> str:
    """The end of a sentence that begins with the name."""
    kind, given = details["type"], details["input"]
    context = details.get("ctx", {})
    if kind == "extra_forbidden":
        return unknown(name, [known for known, _ in fields_of(section)])
    if kind == "missing":
        meaning = next((text for known, text in fields_of(section) if known == name and text), "")
        return f"is missing: {meaning}".rstrip(":. ")
    if kind == "literal_error":
        allowed = context["expected"]
        near = get_close_matches(str(given), _unquoted(allowed), n=1)
        suggestion = f"; did you mean {near[0]}?" if near else ""
        return f"= {shown(given)} is not one of {allowed.replace(chr(39), '')}{suggestion}"
    if kind == "value_error":
        return str(context["error"])
    if kind in ("model_type", "model_attributes_type"):
        inside = [known for known, _ in fields_of(section) if known.startswith(f"{name}.")]
        return f"= {shown(given)} should be a section, [{name}]: set {' or '.join(inside[:3])}"
    return f"= {shown(given)} {in_plain_words(details)}"


def in_plain_words(details: Any) -> str:
    """What pydantic says of a value, as the end of a sentence: "should be at least 1"."""
    message: str = details["msg"]
    for pydantic_says, we_say in (
        ("Input should be", "should be"),
        ("a valid dictionary or instance of ", "a "),
        ("an instance of ", "a "),
        ("callable", "a function"),
        ("a valid integer", "a whole number"),
        ("a valid boolean", "true or false"),
        ("a valid", "a"),
        ("a string", "a text"),
        ("a tuple", "a list"),
        ("greater than or equal to", "at least"),
        ("less than or equal to", "at most"),
    ):
        message = message.replace(pydantic_says, we_say)
    return re.sub(r"\b1(0{7,})\b", lambda zeros: f"1e{len(zeros[1])}", message)


def shown(value: object) -> str:
    """What was given, short enough for a sentence."""
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 2]} …"


def unknown(name: str, known: Iterable[str], what: str = "setting") -> str:
    """Says of a setting that there is none of that name, and which is nearest.

    The one that is called so in another section; else what is near in its own section, and then
    anywhere, by the last part alone.

    Args:
        name: The dotted name that was given.
        known: The dotted names there are.
        what: What they are names of.

    Returns:
        The end of a sentence that begins with the name.
    """
    names = sorted(set(known))
    if _RENAMED.get(name) in names:
        return f"is no {what}; did you mean {_RENAMED[name]}?"
    own, _, last = name.rpartition(".")
    elsewhere = [n for n in names if n.rpartition(".")[2] == last]
    if len(elsewhere) == 1:
        return f"is no {what}; did you mean {elsewhere[0]}?"
    siblings = {n.rpartition(".")[2]: n for n in names if n.rpartition(".")[0] == own}
    anywhere = {n.rpartition(".")[2]: n for n in reversed(names)}
    for places in (siblings, anywhere):
        near = get_close_matches(_ALSO_CALLED.get(last, last), places, n=1)
        if near:
            return f"is no {what}; did you mean {places[near[0]]}?"
    return f"is no {what}" + (f"; there are {', '.join(siblings.values())}" if siblings else "")


def _unquoted(listing: str) -> list[str]:
    return [word.strip("' ") for word in listing.replace(" or ", ", ").split(",")]
