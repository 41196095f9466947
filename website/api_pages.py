"""The API reference: one page for each room, with every name of its `__init__.pyi`.

A public name is listed in its room's stub, and nowhere else; so it appears here by itself. What a
room passes on from another (`fedvarp.FedVARP`) is a link to the page of the room that it is from.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
SOURCE: Final = ROOT / "src"
FOLDER: Final = "api"

_OF_A_ROOM: Final = {
    "members": "false",
    "show_root_heading": "false",
    "show_root_toc_entry": "false",
}


@dataclass(frozen=True)
class PublicName:
    """A name that a room offers.

    Attributes:
        room: Such as "fedvarp.tables".
        name: Such as "MemoryTable".
        target: Where it is defined, "fedvarp.tables.memory.MemoryTable".
    """

    room: str
    name: str
    target: str

    @property
    def home(self) -> str:
        """The room on whose page it is described."""
        return home_of(self.target) or self.room


def rooms() -> list[str]:
    """The rooms that have a list of public names."""
    stubs = (SOURCE / "fedvarp").rglob("__init__.pyi")
    return sorted(".".join(stub.parent.relative_to(SOURCE).parts) for stub in stubs)


def public_names(room: str) -> list[PublicName]:
    """What the room's stub lists, without the rooms below it.

    Args:
        room: Such as "fedvarp.tables".

    Returns:
        Its names in the order of the stub.
    """
    return [
        PublicName(room, name, _defined(f"{module}.{name}"))
        for module, name in _imports(room)
        if module != room
    ]


def modules(room: str) -> list[str]:
    """The modules that the room offers as a whole, such as "fedvarp.models"; rooms are none."""
    return [
        f"{room}.{name}"
        for module, name in _imports(room)
        if module == room and not _stub(f"{room}.{name}").exists()
    ]


@cache
def home_of(target: str) -> str | None:
    """The nearest room around a definition that lists it; None if only rooms elsewhere do."""
    package, _, name = target.rpartition(".")
    while package:
        if _stub(package).exists() and any(name == n for m, n in _imports(package) if m != package):
            return package
        package = package.rpartition(".")[0]
    return None


@cache
def pages() -> dict[str, str]:
    """The text of each page, by its path below docs/."""
    return {f"{FOLDER}/{room}.md": _page(room) for room in rooms()}


def _page(room: str) -> str:
    names = public_names(room)
    own = [name for name in names if name.home == room]
    passed_on = sorted((name for name in names if name.home != room), key=lambda n: n.target)
    parts = [f"# {room}\n", _directive(room, _OF_A_ROOM)]
    if passed_on:
        parts.append("Passed on from the rooms: ")
        parts.append(", ".join(f"[`{n.name}`]({n.home}.md#{n.target})" for n in passed_on) + ".\n")
    parts += [_directive(name.target, {}) for name in own]
    parts += [_directive(module, {"show_root_full_path": "true"}) for module in modules(room)]
    return "\n".join(parts)


def _directive(target: str, options: dict[str, str]) -> str:
    lines = [f"::: {target}"]
    if options:
        lines += ["    options:", *(f"      {name}: {value}" for name, value in options.items())]
    return "\n".join(lines) + "\n"


def _stub(package: str) -> Path:
    return SOURCE.joinpath(*package.split("."), "__init__.pyi")


@cache
def _imports(package: str) -> list[tuple[str, str]]:
    """(module, name) of each import in a package's stub; (package, name) for a room below it."""
    return [
        (f"{package}.{node.module}" if node.module else package, alias.name)
        for node in ast.parse(_stub(package).read_text()).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]


def _defined(target: str) -> str:
    """Where a name is defined that may be passed on by the stub of a package."""
    package, _, name = target.rpartition(".")
    if _stub(package).exists():
        for module, listed in _imports(package):
            if listed == name and module != package:
                return _defined(f"{module}.{name}")
    return target
