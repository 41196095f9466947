"""Says what is wrong with settings: which one, where it was given, and what would be right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError

from fedvarp.experiments.settings import Settings

_ALSO_CALLED: Final = {"learning_rate": "lr", "client_learning_rate": "lr"}


class SettingsError(ValueError):
    """The settings cannot be used."""


def explain(error: ValidationError, raw: Mapping[str, Any], origins: Mapping[str, str]) -> str:
    """One line for each wrong setting.

    Args:
        error: What pydantic found.
        raw: The nested settings it looked at.
        origins: Where each dotted name was given.
    """
    problems: dict[str, list[str]] = {}
    for details in error.errors():
        name = ".".join(_path(details, raw))
        if name == "model" and details["type"] == "missing":
            continue  # it follows from the data, which are wrong then, and reported
        problem = _problem(name, details)
        if problem not in problems.setdefault(name, []):
            problems[name].append(problem)
    lines = []
    for name, found in problems.items():
        line = f"{_origin(name, origins)}{name} {' or '.join(found)}".strip()
        lines.append(line if line.endswith("?") else f"{line}.")
    return "\n".join(lines)


def all_names() -> list[str]:
    """The dotted names of all settings, of every kind of section."""
    return sorted({name for name, _ in _fields(Settings)})


def _path(details: Any, raw: Any) -> Iterator[str]:
    """The keys that lead to the setting, without the names of kinds and types in between."""
    *_, last = details["loc"] or ("",)
    for part in details["loc"]:
        if isinstance(raw, Mapping) and part in raw:
            yield str(part)
            raw = raw[part]
        elif part == last and details["type"] == "missing":
            yield str(part)


def _origin(name: str, origins: Mapping[str, str]) -> str:
    """Where the setting was given; for a section, where something in it was given last."""
    below = [known for known in origins if known == name or known.startswith(f"{name}.")]
    return f"{origins[below[-1]]}: " if name and below else ""


def _problem(name: str, details: Any) -> str:
    """The end of a sentence that begins with the name."""
    kind, given = details["type"], details["input"]
    context = details.get("ctx", {})
    if kind == "extra_forbidden":
        return f"is no setting{_nearest_setting(name)}"
    if kind == "missing":
        return f"is missing: {_meaning(name)}".rstrip(":. ")
    if kind in ("literal_error", "union_tag_invalid"):
        allowed = context.get("expected") or context["expected_tags"]
        given = context.get("tag", given)
        near = get_close_matches(str(given), _unquoted(allowed), n=1)
        suggestion = f"; did you mean {near[0]}?" if near else ""
        return f"= {given!r} is not one of {allowed.replace(chr(39), '')}{suggestion}"
    if kind == "union_tag_not_found":
        return "lacks its name, which says of what kind it is"
    if kind == "value_error":
        return str(context["error"])
    if kind == "model_type":
        return f"= {given!r} should be a section, [{name}]"
    if kind == "string_pattern_mismatch":
        if name == "clusters":
            return f"= {given!r} is not one of own, labels, auto:K and auto:K:updates, K from 1 on"
        return f"= {given!r} becomes part of a directory's name and may hold no slash"
    return f"= {given!r} {_in_plain_words(details['msg'])}"


def _in_plain_words(message: str) -> str:
    for pydantic_says, we_say in (
        ("Input should be", "should be"),
        ("a valid integer", "a whole number"),
        ("a valid boolean", "true or false"),
        ("a valid", "a"),
        ("a string", "a text"),
        ("a tuple", "a list"),
        ("greater than or equal to", "at least"),
        ("less than or equal to", "at most"),
    ):
        message = message.replace(pydantic_says, we_say)
    return message


def _nearest_setting(name: str) -> str:
    """In its own section if something is near there, else anywhere, by the last part alone."""
    names = all_names()
    section, _, last = name.rpartition(".")
    siblings = {n.rpartition(".")[2]: n for n in names if n.rpartition(".")[0] == section}
    anywhere = {known.rpartition(".")[2]: known for known in reversed(names)}
    for known in (siblings, anywhere):
        near = get_close_matches(_ALSO_CALLED.get(last, last), known, n=1)
        if near:
            return f"; did you mean {known[near[0]]}?"
    return f"; there are {', '.join(siblings.values())}" if siblings else ""


def _meaning(name: str) -> str:
    return next((text for known, text in _fields(Settings) if known == name and text), "")


def _fields(section: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str | None]]:
    for key, field in section.model_fields.items():
        yield prefix + key, field.description
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from _fields(kind, f"{prefix}{key}.")


def _unquoted(listing: str) -> list[str]:
    return [word.strip("' ") for word in listing.replace(" or ", ", ").split(",")]
