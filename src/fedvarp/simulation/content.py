"""The content of whatever is passed as an object, as a plain description that a file can keep.

Two things with the same content have the same description, in every process; two things with
different content have different ones. Plain fields stay readable, so that a refusal can name the
difference and a legend can show it; code and long tensors are named by their hashes.
"""

from __future__ import annotations

import copyreg
import dataclasses
import enum
import functools
from collections.abc import Mapping, Sequence
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from fedvarp.runs.identity import without_none
from fedvarp.settings.problems import SettingsError
from fedvarp.settings.section import Section
from fedvarp.simulation.code_content import (
    attributes_read,
    closure,
    code_hash,
    code_of,
    content_hash,
    defaults,
    full_name,
    functions_of,
    globals_of,
    is_c_function,
    is_found_by_its_name,
    is_generated,
    is_of_a_library,
)
from fedvarp.simulation.plain_content import (
    LONGEST_LIST,
    generator_content,
    number_or_text,
    numbers,
    readable,
)

_OF_EVERY_MODULE: Final = frozenset(vars(nn.Module()))
_WRITTEN_BY_DATACLASS: Final = frozenset(
    {"__init__", "__repr__", "__eq__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__"}
    | {"__setattr__", "__delattr__", "__replace__", "__getstate__", "__setstate__"}
)


def content(thing: object, name: str, *, initial_weights: bool = True) -> Any:
    """Describes an object by what it holds and does.

    Args:
        thing: Anything: numbers, tensors, sections, functions, classes, modules of torch, objects.
        name: What to call it where it cannot be described.
        initial_weights: Whether trainable parameters count by their values; else by their shapes,
            as those of the model to be trained do.

    Returns:
        A number, a text, or a mapping of such, as TOML can hold it; None only for None.

    Raises:
        SettingsError: It, or something in it, cannot be described, as an open file cannot.

    >>> content(nn.CrossEntropyLoss(label_smoothing=0.5), "loss")["label_smoothing"]
    0.5
    """
    return readable(_Describer(initial_weights).describe(thing, name))


class _Describer:
    """Walks through one thing and all it holds; knows where it has been."""

    def __init__(self, initial_weights: bool) -> None:
        self._initial_weights = initial_weights
        self._path: list[str] = []
        self._open: set[int] = set()  # what is being described, should it hold itself
        self._done: dict[int, tuple[object, Any]] = {}  # with the object, lest its id is reused

    def describe(self, thing: Any, name: str) -> Any:
        """A description of a thing that its owner calls `name`."""
        if thing is None or isinstance(thing, (bool, int, str, float, np.generic, enum.Enum)):
            return number_or_text(thing)
        if id(thing) in self._open:
            return "the same again"
        if id(thing) not in self._done:
            self._open.add(id(thing))
            self._path.append(name)
            try:
                self._done[id(thing)] = (thing, self._described(thing))
            finally:
                self._path.pop()
                self._open.remove(id(thing))
        return self._done[id(thing)][1]

    def _described(self, thing: Any) -> Any:
        if isinstance(thing, Section):
            return self._section(thing)
        if isinstance(thing, Tensor):
            return self._tensor(thing)
        if isinstance(thing, np.ndarray):
            is_numeric = thing.dtype.kind in "iuf"
            return (
                numbers(torch.tensor(thing).double()) if is_numeric else self._list(thing.tolist())
            )
        if type(thing) in (list, tuple, range):
            return self._list(thing)
        if isinstance(thing, (set, frozenset)):
            return sorted(content_hash(self.describe(each, "an entry")) for each in thing)
        if isinstance(thing, (bytes, bytearray)):
            return f"{len(thing)} bytes, {content_hash(bytes(thing).hex())}"
        if isinstance(thing, Mapping) and is_of_a_library(type(thing)):
            return self._mapping(thing)
        if isinstance(thing, (nn.Module, torch.Generator, np.random.Generator)):
            return self._module(thing) if isinstance(thing, nn.Module) else generator_content(thing)
        if isinstance(thing, (type, FunctionType, MethodType, functools.partial)):
            return self._callable(thing)
        if isinstance(thing, (ModuleType, BuiltinFunctionType)) or is_c_function(thing):
            return full_name(thing)
        return self._object(thing)

    # Numbers and collections

    def _section(self, section: Section) -> dict[str, Any]:
        told = {name: self.describe(part, name) for name, part in section.as_toml().items()}
        for name, part in section:
            if callable(part) and not isinstance(part, Section):  # a file has no more than its name
                described = self.describe(part, name)
                told[name] |= described if isinstance(described, dict) else {"kind": described}
        return told

    def _tensor(self, tensor: Tensor) -> Any:
        if tensor.requires_grad and isinstance(tensor, nn.Parameter) and not self._initial_weights:
            return f"trainable {tensor.dtype} {tuple(tensor.shape)}"
        return numbers(tensor)

    def _list(self, values: Sequence[Any]) -> Any:
        if all(type(x) in (int, float) for x in values):
            return numbers(torch.tensor(values, dtype=torch.float64))
        told = [self.describe(value, str(i)) for i, value in enumerate(values)]
        if len(told) > LONGEST_LIST:
            return f"{len(told)} entries, {content_hash(told)}"
        plain = [without_none(each) if isinstance(each, dict) else each for each in told]
        return ["None" if each is None else each for each in plain]  # TOML knows no null

    def _mapping(self, mapping: Mapping[Any, Any]) -> Any:
        entries = {str(key): self.describe(value, str(key)) for key, value in mapping.items()}
        if all(isinstance(key, str) for key in mapping):
            return entries
        return f"{len(entries)} entries, {content_hash(entries)}"

    # Functions and classes

    def _callable(self, thing: Any) -> Any:
        if isinstance(thing, type):
            return full_name(thing) if is_of_a_library(thing) else self._own_class(thing)
        if isinstance(thing, MethodType):
            of = self.describe(thing.__self__, "of")
            return {"kind": "method", "name": thing.__name__, "of": of}
        if isinstance(thing, functools.partial):
            given = self.describe({**_numbered(thing.args), **thing.keywords}, "with")
            return {"kind": "partial", "function": self.describe(thing.func, "of"), "with": given}
        if is_of_a_library(thing):
            if is_found_by_its_name(thing):
                return full_name(thing)
            kept = {n: self.describe(cell, n) for n, cell in closure(thing).items()}
            return {"kind": full_name(thing), "with": kept}
        code, given = self._own_function(thing)
        given = {n: self.describe(value, n) for n, value in defaults(thing).items()} | given
        return {"kind": thing.__name__, "code": code_hash(code)} | (
            {"with": given} if given else {}
        )

    def _own_function(self, function: FunctionType) -> tuple[list[Any], dict[str, Any]]:
        """What it does, and the values that it does it with, by their names."""
        given = {name: self.describe(value, name) for name, value in closure(function).items()}
        code, read = [code_of(function)], attributes_read(function)
        for name, value in globals_of(function).items():
            if isinstance(value, ModuleType) and not is_of_a_library(value):
                values = {n: v for n, v in vars(value).items() if n in read}
                given |= {f"{name}.{n}": self._described_if_can_be(v) for n, v in values.items()}
            elif isinstance(value, (ModuleType, type)) or callable(value):
                told = self._described_if_can_be(value)
                if isinstance(told, str):  # a name of a library's, of interest to nobody
                    code.append([name, told])
                else:
                    given[name] = told
            else:
                given[name] = self._described_if_can_be(value)
        return code, given

    def _described_if_can_be(self, value: Any) -> Any:
        """Of a global name, which may stand for anything, such as a log: else its class alone."""
        try:
            return self.describe(value, "global")
        except SettingsError:
            return full_name(type(value))

    def _own_class(self, kind: type) -> dict[str, Any]:
        """A class of one's own: the code of its methods, and what it and they are given."""
        shown: dict[str, Any] = {}
        given: dict[str, Any] = {}
        code: list[Any] = []
        for base in reversed(kind.__mro__):
            if is_of_a_library(base):
                code.append(full_name(base))
                continue
            for name, member in sorted(vars(base).items()):
                for function in functions_of(member):
                    if name in _WRITTEN_BY_DATACLASS and is_generated(base, function):
                        continue
                    does, its_given = self._own_function(function)
                    code.append([name, does, self._described_if_can_be(defaults(function))])
                    given |= its_given
                if not name.startswith("_") and isinstance(member, (bool, int, float, str)):
                    shown[name] = number_or_text(member)
                elif not name.startswith("__") and not functions_of(member) and name != "_abc_impl":
                    code.append([name, self._described_if_can_be(member)])
        told = {"kind": kind.__name__, "code": code_hash(code), **shown}
        return told | ({"with": given} if given else {})

    # Objects

    def _class_of(self, thing: object) -> dict[str, Any]:
        kind = self.describe(type(thing), "class")
        return dict(kind) if isinstance(kind, Mapping) else {"kind": kind}

    def _module(self, module: nn.Module) -> dict[str, Any]:
        module = getattr(module, "_orig_mod", module)  # what torch.compile wraps
        told = self._class_of(module)
        own = not is_of_a_library(type(module))
        for name, value in vars(module).items():
            if name in _OF_EVERY_MODULE or (name.startswith("_") and not own):
                continue
            if own and not name.startswith("_"):
                told[name] = self.describe(value, name)
            else:
                told[name] = self._described_if_can_be(value)
        for parts in (module._parameters, module._buffers, module._modules):
            told |= {name: self.describe(part, name) for name, part in parts.items()}
        return told

    def _object(self, thing: Any) -> dict[str, Any]:
        told = self._class_of(thing)
        own = not is_of_a_library(type(thing))
        describe = getattr(thing, "describe", None)
        if callable(describe) and (own or type(thing).__module__.startswith("fedvarp.")):
            described = self.describe(describe(), "describe()")
            return told | (described if isinstance(described, dict) else {"is": described})
        if (wrapped := getattr(thing, "__wrapped__", None)) is not None:  # as lru_cache does
            return told | {"wraps": self.describe(wrapped, "wraps")}
        fields = dataclasses.fields(thing) if dataclasses.is_dataclass(thing) else ()
        state = {field.name: getattr(thing, field.name) for field in fields}
        if own or not fields:
            state |= self._state(thing)
        return told | {name: self.describe(value, name) for name, value in state.items()}

    def _state(self, thing: Any) -> dict[str, Any]:
        """What another process would need to make the object again, as pickling would have it."""
        try:
            reduced = thing.__reduce_ex__(2)
        except Exception as error:  # whatever it raises, it has no state to show
            raise self._refusal(thing) from error
        if isinstance(reduced, str):
            return {"name": reduced}
        make, arguments, state, items, entries = (*reduced, None, None, None)[:5]
        if make is getattr(copyreg, "__newobj__", None):
            arguments = arguments[1:]  # the first is the class
        held: dict[str, Any] = {"arguments": list(arguments)} if arguments else {}
        for part in state if isinstance(state, tuple) else (state,):
            held |= part if isinstance(part, dict) else {} if part is None else {"state": part}
        if items is not None:
            held["items"] = list(items)
        if entries is not None:
            held["entries"] = dict(entries)
        return held

    def _refusal(self, thing: object) -> SettingsError:
        kind = type(thing).__name__
        return SettingsError(
            f"{'.'.join(self._path)} is an object of {kind}, whose content cannot be described. A "
            f"recorded run is known by the content of what it was given, so that nothing else is "
            f"taken for it when it is resumed or compared. Give whatever holds it a method "
            f"`describe()` that returns its settings as a dictionary, or a function or class of a "
            f"module in its place; without `recording` nothing needs to be described."
        )


def _numbered(values: tuple[Any, ...]) -> dict[str, Any]:
    return {str(i): value for i, value in enumerate(values)}
