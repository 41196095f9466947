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
from types import FunctionType, MethodType, ModuleType, NoneType
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from fedvarp.algorithms.aggregator import Aggregator
from fedvarp.runs.identity import without_none
from fedvarp.settings.problems import SettingsError
from fedvarp.settings.section import Section
from fedvarp.simulation.code_content import (
    closure,
    code_hash,
    code_of,
    content_hash,
    defaults,
    full_name,
    is_c_function,
    is_found_by_its_name,
    is_of_a_library,
    parts_of,
    reaches_anything,
    values_read,
)
from fedvarp.simulation.plain_content import (
    LONGEST_LIST,
    generator_content,
    number_or_text,
    numbers,
    readable,
)

_OF_EVERY_MODULE: Final = frozenset(vars(nn.Module()))
_HOOKS: Final = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


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
            return numbers(thing) if thing.dtype.kind in "biuf" else self._list(thing.tolist())
        if type(thing) in (list, tuple, range):
            return self._list(thing)
        if isinstance(thing, (set, frozenset)):
            return sorted(content_hash(self.describe(each, "an entry")) for each in thing)
        if isinstance(thing, (bytes, bytearray)):
            return f"{len(thing)} bytes, {content_hash(bytes(thing).hex())}"
        if isinstance(thing, Mapping) and is_of_a_library(type(thing)):
            return self._mapping(thing)
        if isinstance(thing, (torch.Generator, np.random.Generator)):
            return generator_content(thing)
        if isinstance(thing, functools.partial):
            given = self.describe({**_numbered(thing.args), **thing.keywords}, "with")
            return {"kind": "partial", "function": self.describe(thing.func, "of"), "with": given}
        if isinstance(thing, type):
            return full_name(thing) if is_of_a_library(thing) else self._own_class(thing)
        if isinstance(thing, (ModuleType, FunctionType, MethodType)) or is_c_function(thing):
            return self._code(thing)
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
        told = [self.describe(value, str(i)) for i, value in enumerate(values)]
        if len(told) > LONGEST_LIST:
            return f"{len(told)} entries, {content_hash(told)}"
        plain = [without_none(each) if isinstance(each, dict) else each for each in told]
        return ["None" if each is None else each for each in plain]  # TOML knows no null

    def _mapping(self, mapping: Mapping[Any, Any]) -> Any:
        if all(isinstance(key, str) for key in mapping):
            return {key: self.describe(value, key) for key, value in mapping.items()}
        entries = [self.describe(list(entry), str(entry[0])) for entry in mapping.items()]
        return f"{len(entries)} entries, {content_hash(sorted(map(content_hash, entries)))}"

    # Functions and classes

    def _code(self, thing: Any) -> Any:
        if reaches_anything(thing):
            raise self._refusal("can read whatever has a name")
        of = getattr(thing, "__self__", None)
        if isinstance(thing, MethodType) or not isinstance(of, (ModuleType, type, NoneType)):
            told = self.describe(of, "of")
            return {"kind": "method", "name": thing.__name__, "of": told}
        if not isinstance(thing, FunctionType):
            return full_name(thing)
        if is_of_a_library(thing):
            if is_found_by_its_name(thing):
                return full_name(thing)
            kept = {n: self.describe(value, n) for n, value in closure(thing).items()}
            return {"kind": full_name(thing), "with": kept}
        says = self._says(thing)
        held = {**defaults(thing), **closure(thing)} if says is None else {}
        code, given = self._own_function(thing, held, named=says is not None)
        told = {"kind": thing.__name__, "code": code_hash(code)}
        return _beside(told | ({"with": given} if given else {}), says or {})

    def _own_function(
        self, function: FunctionType, held: Mapping[str, Any], *, named: bool
    ) -> tuple[list[Any], dict[str, Any]]:
        """What it does, and the values that it does it with, by their names.

        Where its owner says itself what it is (`named`), what cannot be described counts by class.
        """
        code: list[Any] = [code_of(function)]
        given: dict[str, Any] = {}
        for name, value in values_read(function, held).items():
            try:
                told = self.describe(value, name)
            except SettingsError:
                if not named:
                    raise
                told = full_name(type(value))
            if isinstance(told, str) and (callable(value) or isinstance(value, ModuleType)):
                code.append([name, told])  # a name of a library's, of interest to nobody
            else:
                given[name] = told
        return code, given

    def _own_class(self, kind: type) -> dict[str, Any]:
        """A class of one's own: the code of its methods, and what it and they are given."""
        shown: dict[str, Any] = {}
        given: dict[str, Any] = {}
        code: list[Any] = []
        for base in reversed(kind.__mro__):
            if is_of_a_library(base):
                code.append(full_name(base))
                continue
            for name, part in parts_of(base):
                if isinstance(part, FunctionType) and not is_of_a_library(part):
                    named = "describe" in vars(kind)
                    does, its = self._own_function(part, closure(part), named=named)
                    # Methods may have other values under the same name: one is shown, all count.
                    others = {n: v for n, v in its.items() if given.get(n, v) != v}
                    code.append([name, does, others, self.describe(defaults(part), name)])
                    given = its | given
                elif isinstance(part, (bool, int, float, str)) and not name.startswith("_"):
                    shown[name] = number_or_text(part)
                else:
                    code.append([name, self.describe(part, name)])
        told = {"kind": kind.__name__, "code": code_hash(code), **shown}
        return told | ({"with": given} if given else {})

    # Objects

    def _object(self, thing: Any) -> dict[str, Any]:
        """Its class, and what it says of itself or else would be made again from.

        What `describe()` says stands for all that an object holds if its own class has the method:
        an inherited one knows nothing of what a class of one's own, or an aggregator, has besides.
        """
        if isinstance(thing, nn.Module):
            thing = getattr(thing, "_orig_mod", thing)  # what torch.compile wraps
        kind = self.describe(type(thing), "class")
        told = dict(kind) if isinstance(kind, Mapping) else {"kind": kind}
        says = self._says(thing)
        knows_all = is_of_a_library(type(thing)) and not isinstance(thing, Aggregator)
        if says is not None and (knows_all or "describe" in vars(type(thing))):
            held = {**thing._parameters, **thing._modules} if isinstance(thing, nn.Module) else {}
        elif isinstance(thing, nn.Module):
            held = self._held_by_module(thing)
        elif knows_all and dataclasses.is_dataclass(thing):
            held = {field.name: getattr(thing, field.name) for field in dataclasses.fields(thing)}
        else:
            held = self._state(thing)
        parts = {name: self.describe(value, name) for name, value in held.items()}
        return _beside(told, {**(says or {}), **parts})

    def _says(self, thing: Any) -> dict[str, Any] | None:
        """What a `describe()` of one's own or of this package says; None without any."""
        describe = getattr(thing, "describe", None)
        whose = str(getattr(describe, "__module__", ""))
        if not callable(describe) or (
            is_of_a_library(describe) and not whose.startswith("fedvarp.")
        ):
            return None
        said = describe()
        if not isinstance(said, (Mapping, str)):
            raise self._refusal(f"has a describe() that gives {said!r}, which says nothing")
        told = self.describe({"is": said} if isinstance(said, str) else dict(said), "describe()")
        return told if isinstance(told, dict) else {"is": told}

    def _held_by_module(self, module: nn.Module) -> dict[str, Any]:
        own = not is_of_a_library(type(module))
        held = {
            name: value
            for name, value in self._state(module).items()
            if name not in _OF_EVERY_MODULE and (own or not name.startswith("_"))
        }
        for name in _HOOKS:
            if hooks := list(getattr(module, name).values()):
                held[name] = hooks
        if self._initial_weights and not module.training:  # the mode of a model that trains changes
            held["training"] = False
        return {**held, **module._parameters, **module._buffers, **module._modules}

    def _state(self, thing: Any) -> dict[str, Any]:
        """What another process would need to make the object again, as pickling would have it."""
        try:
            reduced = thing.__reduce_ex__(2)
        except Exception as error:  # whatever it raises, it has no state to show
            kind = type(thing).__name__
            raise self._refusal(f"is an object of {kind}, whose content is not known") from error
        if isinstance(reduced, str):
            return {"name": reduced, "wraps": getattr(thing, "__wrapped__", None)}  # lru_cache's
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

    def _refusal(self, why: str) -> SettingsError:
        return SettingsError(
            f"{'.'.join(self._path)} {why}: it cannot be described. A recorded run is known by the "
            f"content of what it was given, so that nothing else is taken for it when it is "
            f"resumed or compared. Give whatever holds or uses it a method `describe()` that "
            f"returns its settings as a dictionary, or a name as a text; a function takes one as "
            f"well, by `loss.describe = lambda: ...`. Without `recording` nothing needs to be "
            f"described."
        )


def _beside(told: Mapping[str, Any], held: Mapping[str, Any]) -> dict[str, Any]:
    """Adds what an object holds to what its class is, whatever the names it is held by."""
    taken = ("kind", "code", "with")
    return {**told, **{f"its {n}" if n in taken else n: value for n, value in held.items()}}


def _numbered(values: tuple[Any, ...]) -> dict[str, Any]:
    return {str(i): value for i, value in enumerate(values)}
