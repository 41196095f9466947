"""The code of functions and classes of one's own, as something that can be compared.

Code is known by its bytecode, not by its text: comments, blank lines and the file it stands in make
no difference, and a lambda in a notebook has some too. Bytecode is one Python version's own, so the
version stands beside the hash. `docs/decisions/content-of-a-run.md` has the reasons.
"""

from __future__ import annotations

import dataclasses
import dis
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final

_PYTHON: Final = f"Python {sys.version_info.major}.{sys.version_info.minor}"
_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})


def is_of_a_library(thing: Any) -> bool:
    """Whether a function or class has a name that says it all: of Python, of what is installed.

    Args:
        thing: A function, a class or a module.

    Returns:
        Whether it belongs to Python, to this package or to an installed one; False if its code is
        somebody's own and may change from day to day.

    >>> is_of_a_library(json.dumps)
    True
    """
    module = str(getattr(thing, "__module__", None) or getattr(thing, "__name__", ""))
    top = module.partition(".")[0]
    if top == "fedvarp" or top in sys.stdlib_module_names:
        return True
    if top == "__main__" or module not in sys.modules:  # a script, a notebook, code that was typed
        return False
    file = getattr(sys.modules[module], "__file__", None)
    return file is None or not _INSTALLED.isdisjoint(Path(file).parts)  # None: it is built in


def full_name(thing: Any) -> str:
    """Module and name of a function or class of a library; of this package, the name alone.

    >>> full_name(json.dumps)
    'json.dumps'
    """
    name = str(getattr(thing, "__qualname__", thing.__name__))
    module = getattr(thing, "__module__", None)
    return name if module is None or module.startswith("fedvarp.") else f"{module}.{name}"


def is_found_by_its_name(function: Any) -> bool:
    """Whether a module has this very function under its name: it is no product of another one."""
    found: Any = sys.modules.get(str(function.__module__))
    for part in function.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is function


def code_of(function: FunctionType) -> list[Any]:
    """What a function does, without what it is called or where it stands: as JSON can hold it."""
    return _plain(function.__code__, function.__doc__)


def globals_of(function: FunctionType) -> dict[str, Any]:
    """The values of the global names that a function and the functions within it read."""
    names = {
        instruction.argval
        for code in _with_inner(function.__code__)
        for instruction in dis.get_instructions(code)
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }
    return {n: function.__globals__[n] for n in sorted(names) if n in function.__globals__}


def attributes_read(function: FunctionType) -> set[str]:
    """All names that may be attributes where a function says ``module.name``."""
    return {name for code in _with_inner(function.__code__) for name in code.co_names}


def code_hash(parts: object) -> str:
    """A hash of code that says which Python made it, as JSON-able parts give it."""
    return f"{content_hash(parts)}, {_PYTHON}"


def content_hash(parts: object) -> str:
    """A short hash of anything that JSON can hold, the order of keys aside.

    >>> content_hash({"a": 1, "b": 2}) == content_hash({"b": 2, "a": 1})
    True
    """
    text = json.dumps(parts, sort_keys=True, default=str)
    return f"sha256 {hashlib.sha256(text.encode()).hexdigest()[:12]}"


def closure(function: FunctionType) -> dict[str, Any]:
    """The values that a function has from the one that made it, by name."""
    held: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            held[name] = cell.cell_contents
        except ValueError:  # not set yet
            continue
    held.pop("__class__", None)  # that `super()` needs; the class is described where it is used
    return held


def defaults(function: FunctionType) -> dict[str, Any]:
    """The defaults of a function's parameters, by name."""
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    values = function.__defaults__ or ()
    last = names[len(names) - len(values) :]
    return {**dict(zip(last, values, strict=True)), **(function.__kwdefaults__ or {})}


def functions_of(member: Any) -> list[FunctionType]:
    """The functions that a class attribute is made of: a method, a property, a cached one."""
    if isinstance(member, property):
        parts: list[Any] = [member.fget, member.fset, member.fdel]
    else:
        inner = getattr(member, "__func__", None) or getattr(member, "func", None)
        parts = [inner or member]
    return [part for part in parts if isinstance(part, FunctionType)]


def is_generated(kind: type, function: FunctionType) -> bool:
    """Whether a method was written by `dataclass` from the fields, which are described anyway."""
    return dataclasses.is_dataclass(kind) and function.__code__.co_filename == "<string>"


def is_c_function(thing: object) -> bool:
    """Whether it is a function that was not written in Python, or a method of such a type."""
    return callable(thing) and type(thing).__module__ == "builtins" and hasattr(thing, "__name__")


def _plain(code: CodeType, doc: str | None = None) -> list[Any]:
    constants = list(code.co_consts)
    if doc is not None and constants and constants[0] == doc:
        constants[0] = None  # what is said of a function is no part of what it does
    return [
        code.co_code.hex(),
        code.co_exceptiontable.hex(),
        [code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags],
        list(code.co_names),
        list(code.co_freevars),
        [_constant(each) for each in constants],
    ]


def _constant(value: object) -> Any:
    if isinstance(value, CodeType):
        return _plain(value)
    if isinstance(value, frozenset):  # has no order of its own
        return ["frozenset", sorted(repr(each) for each in value)]
    if isinstance(value, tuple):
        return [_constant(each) for each in value]
    return repr(value)  # a number, a text, None: none of them tells an address


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)
