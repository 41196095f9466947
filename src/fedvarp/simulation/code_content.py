"""The code of functions and classes of one's own, as something that can be compared.

Code is known by its bytecode, not by its text: comments, blank lines and the file it stands in make
no difference, and a lambda in a notebook has some too. Bytecode is one Python version's own, so the
version stands beside the hash. `docs/decisions/content-of-a-run.md` has the reasons.
"""

from __future__ import annotations

import contextlib
import dataclasses
import dis
import functools
import hashlib
import importlib.util
import json
import sys
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

_PYTHON: Final = f"Python {sys.version_info.major}.{sys.version_info.minor}"
_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})
_REACH_ANYTHING: Final = {each.__name__: each for each in (globals, eval, exec, __import__)}
_WRITTEN_BY_DATACLASS: Final = frozenset(
    {"__init__", "__repr__", "__eq__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__"}
    | {"__setattr__", "__delattr__", "__replace__", "__getstate__", "__setstate__"}
)


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


def values_read(function: FunctionType, held: Mapping[str, Any]) -> dict[str, Any]:
    """What a function, and those within it, may read by names that are not local.

    Args:
        function: Of one's own.
        held: What it has besides, by name, as from `closure`.

    Returns:
        That, and the values of global names. In the place of modules of one's own, also of those it
        imports when it runs, there are the attributes that it may read of them.
    """
    known = _REACH_ANYTHING | function.__globals__
    found, attributes = dict(held), set[str]()
    for code in _with_inner(function.__code__):
        attributes |= set(code.co_names)
        steps = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
        for i, step in enumerate(steps):
            if step.opname == "IMPORT_NAME":  # after its dots, and the names that come from it
                for name in ("", *(steps[i - 1].argval or ())):
                    whole = "." * steps[i - 2].argval + f"{step.argval}.{name}".strip(".")
                    found |= _imported(whole, known.get("__package__"))
            elif step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                found |= {name: known[name] for name in {step.argval} & known.keys()}
    return dict(sorted(_through_modules(found, attributes, set())))


def reaches_anything(thing: object) -> bool:
    """Whether it is a function by which code can read what its names do not show."""
    return any(thing is each for each in _REACH_ANYTHING.values())


def closure(function: FunctionType) -> dict[str, Any]:
    """The values that were bound to a function, by name: by the one that made it, as attributes."""
    held: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # not set yet
            held[name] = cell.cell_contents
    held.pop("__class__", None)  # that `super()` needs; the class is described where it is used
    attributes = {n: v for n, v in vars(function).items() if not n.startswith("__")}
    return held | {f"{function.__name__}.{name}": value for name, value in attributes.items()}


def defaults(function: FunctionType) -> dict[str, Any]:
    """The defaults of a function's parameters, by name."""
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    values = function.__defaults__ or ()
    last = names[len(names) - len(values) :]
    return {**dict(zip(last, values, strict=True)), **(function.__kwdefaults__ or {})}


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


def parts_of(kind: type) -> Iterator[tuple[str, Any]]:
    """What the attributes of a class are made of, apart from what Python writes itself.

    Args:
        kind: The class; its bases are left to the caller.

    Yields:
        Names in their order, each with the functions and values behind it.
    """
    for name, member in sorted(vars(kind).items()):
        if isinstance(member, property):
            parts: tuple[Any, ...] = (member.fget, member.fset, member.fdel)
        elif isinstance(member, functools.partialmethod):
            parts = (member.func, member.args, member.keywords)
        elif isinstance(member, functools.cached_property):
            parts = (member.func,)
        else:
            parts = (getattr(member, "__func__", member),)
        for part in parts:
            if isinstance(part, FunctionType):
                if not (name in _WRITTEN_BY_DATACLASS and _is_generated(kind, part)):
                    yield name, part
            elif not name.startswith("__") and name != "_abc_impl":
                yield name, part


def is_c_function(thing: object) -> bool:
    """Whether it is a function that was not written in Python, or a method of such a type."""
    return callable(thing) and type(thing).__module__ == "builtins" and hasattr(thing, "__name__")


def _is_generated(kind: type, function: FunctionType) -> bool:
    """Whether a method was written by `dataclass` from the fields, which are described anyway."""
    return dataclasses.is_dataclass(kind) and function.__code__.co_filename == "<string>"


def _imported(name: str, package: str | None) -> dict[str, ModuleType]:
    """A module of one's own and its topmost package, by name; nothing if it is a library's."""
    try:
        whole = importlib.util.resolve_name(name, package)
        spec = None if whole in sys.modules else importlib.util.find_spec(whole)
        if spec is not None and _INSTALLED.isdisjoint(Path(spec.origin or "").parts):
            importlib.import_module(whole)
    except ImportError:  # it is no module; or the function is prepared for it, or says so itself
        return {}
    loaded = {n: sys.modules[n] for n in (whole, whole.partition(".")[0]) if n in sys.modules}
    return {n: module for n, module in loaded.items() if not is_of_a_library(module)}


def _through_modules(
    values: Mapping[str, Any], attributes: Set[str], seen: Set[str]
) -> Iterator[tuple[str, Any]]:
    """The values, and in the place of a module of one's own those of its attributes."""
    for name, value in values.items():
        if not isinstance(value, ModuleType) or is_of_a_library(value):
            yield name, value
        elif value.__name__ not in seen:
            read = {f"{name}.{n}": v for n, v in vars(value).items() if n in attributes}
            yield from _through_modules(read, attributes, {*seen, value.__name__})


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
