"""The settings reference, from the classes and functions that declare the settings.

Name, kind, bounds, default and sentence of every setting are read from its declaration when the
site is built: the page cannot be out of date, and nothing is written twice.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any, Final, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fedvarp.algorithms.names import ALGORITHMS
from fedvarp.clients.local_sgd import OPTIMIZERS
from fedvarp.clients.schedules import SCHEDULES
from fedvarp.experiments.settings import AVAILABILITIES, DATASETS, LOSSES, MODELS, Settings
from fedvarp.server.names import SERVER_OPTIMIZERS
from fedvarp.settings.names import Choice, Registry, options_of
from fedvarp.trainers.settings import TRAINERS

PAGE: Final = "settings.md"

IN_PYTHON: Final = {
    "local_sgd": "LocalSGD",
    "table": "Table",
    "trainer": "Trainer",
    "evaluation": "Evaluation",
    "recording": "Recording",
}
"""The sections that are arguments of `simulate` under the same name, and their classes."""

CHOICES: Final[dict[str, tuple[Registry, str]]] = {
    "algorithm": (ALGORITHMS, "Options are written `fedstale(beta=0.3)`, or in a section."),
    "data": (DATASETS, "Options are settings of the section `[data]`."),
    "model": (MODELS, "Options are settings of the section `[model]`."),
    "server": (SERVER_OPTIMIZERS, "Options are settings of the section `[server]`."),
    "local_sgd.schedule": (SCHEDULES, "Options are settings of `[local_sgd.schedule]`."),
    "sampling.availability": (AVAILABILITIES, "Options are settings of `[sampling.availability]`."),
}
"""What can be chosen by name, where it is chosen, and what is said about its options."""

NAMES: Final[dict[str, Registry]] = {
    "loss": LOSSES,
    "trainer.name": TRAINERS,
    "local_sgd.optimizer": OPTIMIZERS,
}
"""What can be chosen by name and has no options that this page could list."""

_HEAD: Final = "| setting | values | default | |\n|---|---|---|---|\n"

_INTRODUCTION: Final = """# Settings

Every setting of a run, as a settings file has it (`[table]`, `codec = "int8"`), as the command line
changes it (`--set table.codec=int8`) and, where a section says so, as Python passes it
(`simulate(..., table=Table(codec="int8"))`). A setting is declared once, in the class from which
this page, the checks and the messages are made. How files, presets and `--set` are laid over each
other: [rates and comparisons](how-to/sweeps.md).
"""


@cache
def page() -> str:
    """The whole page, in Markdown."""
    parts = [_INTRODUCTION, "## The run\n", _HEAD + "".join(_rows(Settings, ""))]
    for path, section in sections(Settings):
        title = f"## [{path}]\n"
        parts += [
            title,
            f"{_summary(section)}{_python(path)}\n",
            _HEAD + "".join(_rows(section, path)),
        ]
    for path, (registry, how) in CHOICES.items():
        parts += [f"## What {path} can be\n", how + "\n", _choices(path, registry)]
    for path, registry in NAMES.items():
        names = ", ".join(f"`{name}`" for name in registry)
        parts += [f"## What {path} can be\n", f"{names}; or an import path of your own.\n"]
    return "\n".join(parts)


def sections(of: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """The sections below one, by their dotted names.

    Args:
        of: The class whose fields they are.
        prefix: What stands before their names.

    Yields:
        Name and class of each; those that only name a choice are none.
    """
    for name, field in of.model_fields.items():
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel) and kind is not Choice:
                yield f"{prefix}{name}", kind
                yield from sections(kind, f"{prefix}{name}.")


def _rows(section: type[BaseModel], path: str) -> Iterator[str]:
    """A line of the table for each setting of the section itself."""
    below = {name.rpartition(".")[2] for name, _ in sections(section)}
    schema = section.model_json_schema()
    for name, field in section.model_fields.items():
        if name in below:
            continue
        dotted = f"{path}.{name}" if path else name
        place = f"#what-{dotted.replace('.', '')}-can-be"
        kind = f"[a name]({place})" if dotted in {**CHOICES, **NAMES} else values(schema, name)
        meaning = " ".join((field.description or "").split())
        yield f"| `{dotted}` | {kind} | {_default(field)} | {_cell(meaning)} |\n"


def _choices(path: str, registry: Registry) -> str:
    """What a registry names, each with its options."""
    lines = [f"| {path} | option | values | default | |\n|---|---|---|---|---|\n"]
    for name in registry:
        maker = registry.find(name)
        options = options_of(maker, but_required=path == "algorithm")
        about = _arguments(maker)
        schema = options.model_json_schema()
        lines.append(f"| `{name}` | | | | {_cell(_first_line(maker))} |\n")
        for option, field in options.model_fields.items():
            meaning = _cell(about.get(option) or " ".join((field.description or "").split()))
            lines.append(
                f"| | `{option}` | {values(schema, option)} | {_default(field)} | {meaning} |\n"
            )
    return "".join(lines)


def values(schema: dict[str, Any], name: str) -> str:
    """What a setting may be, in words: "whole number, at least 1".

    Args:
        schema: The JSON schema of its section.
        name: Its name.
    """
    wanted = schema["properties"][name]
    kinds = dict.fromkeys(_kinds(wanted, schema.get("$defs", {})))
    return _cell(" or ".join(kind for kind in kinds if kind) or "any")


def _kinds(wanted: dict[str, Any], definitions: dict[str, Any]) -> Iterator[str]:
    if "anyOf" in wanted:
        for one in wanted["anyOf"]:
            yield from _kinds(one, definitions)
    elif "$ref" in wanted:
        yield from _kinds(definitions[wanted["$ref"].rpartition("/")[2]], definitions)
    elif "enum" in wanted or "const" in wanted:
        yield ", ".join(f"`{json.dumps(v)}`" for v in wanted.get("enum", [wanted.get("const")]))
    else:
        words = {
            "integer": "whole number",
            "number": "number",
            "string": "text",
            "boolean": "`true`, `false`",
            "array": "list",
            "object": "a section",
            "null": "",
        }
        kind = words[wanted["type"]] if "type" in wanted else ""
        if wanted.get("type") == "array" and isinstance(wanted.get("items"), dict):
            kind = "list of " + " or ".join(f"{k}s" for k in _kinds(wanted["items"], definitions))
        yield ", ".join([kind, *_bounds(wanted)]) if kind else ""


def _bounds(wanted: dict[str, Any]) -> Iterator[str]:
    for keys, word in (
        (("exclusiveMinimum", "gt"), "above"),
        (("minimum", "ge"), "at least"),
        (("exclusiveMaximum", "lt"), "below"),
        (("maximum", "le"), "at most"),
    ):
        for key in keys:
            if key in wanted:
                yield f"{word} {wanted[key]:g}"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None:
        return ""
    if isinstance(value, Choice):
        value = value.name
    elif isinstance(value, BaseModel):
        value = type(value).__name__.lower()
    return f"`{json.dumps(value, ensure_ascii=False, default=str)}`"


def _python(path: str) -> str:
    if path not in IN_PYTHON:
        return ""
    name = IN_PYTHON[path]
    return f" In Python: `simulate(..., {path}=fedvarp.{name}(...))`."


def _summary(section: type[BaseModel]) -> str:
    return inspect.cleandoc(section.__doc__ or "").partition("\n\n")[0]


def _first_line(maker: Any) -> str:
    doc = inspect.getdoc(maker) if maker.__name__ != "<lambda>" else None
    return " ".join((doc or "").partition("\n\n")[0].split())


def _arguments(maker: Any) -> dict[str, str]:
    """What a docstring says of each argument."""
    found = re.search(r"^Args:\n((?: {4}.*\n?|\n)*)", inspect.getdoc(maker) or "", re.MULTILINE)
    if found is None:
        return {}
    entries = re.split(r"^ {4}(?=\w+: )", found[1], flags=re.MULTILINE)
    pairs = (entry.partition(": ") for entry in entries if entry.strip())
    return {name: " ".join(meaning.split()) for name, _, meaning in pairs}


def _cell(text: str) -> str:
    """The text in one line, with nothing in it that ends a cell."""
    return text.replace("|", "\\|").replace("\n", " ")
