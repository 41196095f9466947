"""Reads settings from presets, config files and --set key=value, and says what is wrong with them.

Later sources win: a preset, then the file that names it, which may be named by another in turn,
then each --set. Three rules make
overriding do what one means:

- a section that chooses something starts anew when the choice changes (``data = "digits"`` forgets
  the options of CIFAR-10), and the name may stand for it: ``model = "resnet18"``;
- ``steps`` replaces ``epochs`` and the other way round;
- ``--set key=none`` goes back to the default.

>>> load_settings("digits", ["algorithm=mifa", "client_lr=0.1"]).local_sgd.lr
0.1
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError

from fedvarp.algorithms.names import ALGORITHMS
from fedvarp.experiments.settings import (
    CHOICES,
    DATASETS,
    LOSSES,
    MODELS,
    ServerStep,
    Settings,
)
from fedvarp.runs.identity import nested
from fedvarp.server.names import SERVER_OPTIMIZERS
from fedvarp.settings.calls import parse_call
from fedvarp.settings.problems import SettingsError, explain, fields_of
from fedvarp.system.parsing import parse_number, parse_toml
from fedvarp.trainers.settings import TRAINERS

SHORT_NAMES: Final = {"client_lr": "local_sgd.lr"}
"""The one setting that everybody changes, by the paper's name for it."""

_ALTERNATIVES: Final = {
    "local_sgd.epochs": "local_sgd.steps",
    "local_sgd.steps": "local_sgd.epochs",
}
_DEFAULT_NAMES: Final = {"server.name": ServerStep().name}
_UNSET: Final = object()


def load_settings(source: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Settings:
    """The settings of a preset or a config file, changed by ``key=value`` texts.

    Args:
        source: The name of a preset, or a TOML file, which may build on one: ``preset = "digits"``;
            or on a file beside it: ``preset = "common.toml"``.
        overrides: Such as ``"algorithm=fedavg"`` or ``"local_sgd.batch_size=32"``.

    Raises:
        SettingsError: A setting is unknown, missing or wrong; names it and where it was given.
    """
    layers = _Layers()
    if str(source) in preset_names():
        layers.add({"name": str(source)}, f"preset {source}")
        layers.add(_parse(preset_text(str(source)), f"preset {source}"), f"preset {source}")
    else:
        path = _existing(Path(source))
        for page, given in _inherited(path):
            layers.add(given, page)
        layers.add({"name": path.stem} | _page(path)[1], str(path))
    layers.add_overrides(overrides)
    return layers.settings()


def _page(path: Path) -> tuple[str | None, dict[str, Any]]:
    """What a file says, and what it builds on."""
    given = _parse(_text(path), str(path))
    preset = given.pop("preset", None)
    if preset is not None and not isinstance(preset, str):
        raise SettingsError(
            f"{path}: preset = {preset!r} should be the name of one, as in "
            f'preset = "digits", or a file of your own, as in preset = "common.toml".'
        )
    return preset, given


def _inherited(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """The pages that a file builds on, from the first to the last, but for itself."""
    pages: list[tuple[str, dict[str, Any]]] = []
    seen = [path.resolve()]
    preset, _ = _page(path)
    while preset is not None:
        if preset in preset_names():
            where = f"preset {preset}"
            return [(where, _parse(preset_text(preset), where)), *pages]
        if not preset.endswith(".toml"):
            preset_text(preset)  # which says what presets there are
        path = path.parent / preset  # beside the file that names it, wherever one is
        if not path.is_file():
            raise SettingsError(f"{seen[-1]}: preset = {preset!r} is no file: {path} is not there.")
        if path.resolve() in seen:
            names = " → ".join(one.name for one in [*seen, path])
            raise SettingsError(f"{path} builds on itself: {names}. Take one `preset` out.")
        seen.append(path.resolve())
        where = str(path)
        preset, given = _page(path)
        pages.insert(0, (where, given))
    return pages


def settings_of_run(config: Mapping[str, Any], where: str, overrides: Sequence[str]) -> Settings:
    """Reads the settings that a run directory recorded.

    Args:
        config: What config.toml holds.
        where: The file, for messages.
        overrides: ``key=value`` texts that change them.

    Returns:
        The settings.

    Raises:
        SettingsError: They cannot be used, or are known to a Python program alone.
    """
    if "data" not in config:
        raise SettingsError(
            f"{where} was written by a Python program that called simulate(); its data and model "
            f"are known to that program alone. Go on there, with resume=True."
        )
    layers = _Layers()
    layers.add(config, where)
    layers.add_overrides(overrides)
    return layers.settings()


def setting_named(name: str) -> str | None:
    """The dotted name of a setting, by that name, its short one, or the last part of it.

    >>> setting_named("rounds"), setting_named("batch_size"), setting_named("foo")
    ('rounds', 'local_sgd.batch_size', None)

    Args:
        name: What somebody calls it.

    Returns:
        Its name; None if there is none, or more than one.
    """
    known = [dotted for dotted, _ in fields_of(Settings)]
    if name in known or name in SHORT_NAMES:
        return name
    found = [dotted for dotted in known if dotted.endswith(f".{name}")]
    return found[0] if len(found) == 1 else None


def setting_choices(name: str) -> list[str]:
    """The words that a setting may be; none for numbers and free texts.

    >>> setting_choices("table.where")
    ['memory', 'disk']

    Args:
        name: Its dotted name.

    Returns:
        The words, as far as they are known without the code behind them.
    """
    registries = {
        "algorithm": ALGORITHMS,
        "data": DATASETS,
        "model": MODELS,
        "loss": LOSSES,
        "trainer": TRAINERS,
        "server": SERVER_OPTIMIZERS,
    }
    section: Any = Settings
    *sections, last = name.split(".")
    if name.removesuffix(".name") in registries:
        return list(registries[name.removesuffix(".name")])
    for part in sections:
        kinds = section.model_fields[part].annotation if part in section.model_fields else None
        if not (isinstance(kinds, type) and issubclass(kinds, BaseModel)):
            return []
        section = kinds
    field = section.model_fields.get(last)
    kinds = () if field is None else (field.annotation, *get_args(field.annotation))
    words = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
    return words + (["true", "false"] if bool in kinds else [])


def preset_names() -> list[str]:
    """The presets that come with the package."""
    pages = resources.files("fedvarp.experiments.presets").iterdir()
    return sorted(page.name.removesuffix(".toml") for page in pages if page.name.endswith(".toml"))


def preset_text(name: str) -> str:
    """The page of a preset."""
    if name not in preset_names():
        raise SettingsError(
            f"There is no preset called {name!r}. {_nearest(name)}"
            f"There are {', '.join(preset_names())}."
        )
    return (resources.files("fedvarp.experiments.presets") / f"{name}.toml").read_text(
        encoding="utf-8"
    )


def preset_summary(name: str) -> str:
    """The first line of a preset's page."""
    return preset_text(name).splitlines()[0].removeprefix("#").strip()


@dataclass
class _Layers:
    """Settings by their dotted names, and where each was given last."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)

    def add(self, layer: Mapping[str, Any], origin: str) -> None:
        flat = _by_dotted_name(layer, origin)
        for name, value in flat.items():
            section = name.removesuffix(".name")
            before = self.values.get(name, _DEFAULT_NAMES.get(name))
            if section in CHOICES and section != name and before != value:
                self._forget(section)
            if name in _ALTERNATIVES and _ALTERNATIVES[name] not in flat:
                self._forget(_ALTERNATIVES[name])
        for name, value in flat.items():
            self._forget(name)
            if value is not _UNSET:
                self.values[name] = value
            self.origins[name] = origin

    def add_overrides(self, overrides: Sequence[str]) -> None:
        told: dict[str, str] = {}
        for text in overrides:
            layer = _by_dotted_name(_override(text), f"--set {text}")
            for name in (name for name, value in layer.items() if value is not _UNSET):
                told[name] = text
                other = told.get(_ALTERNATIVES.get(name, ""))
                if other is not None:
                    raise SettingsError(
                        f"--set {other} --set {text}: a client takes so many epochs or so many "
                        f"steps. Give one of the two; it replaces the other."
                    )
            self.add(layer, f"--set {text}")

    def settings(self) -> Settings:
        raw = nested(self.values)
        try:
            return Settings.model_validate(raw).completed()
        except ValidationError as error:
            raise SettingsError(explain(error, Settings, raw, self._origin)) from error

    def _origin(self, name: str) -> str:
        """Where the setting was given; for a section, where something in it was given last."""
        below = [known for known in self.origins if known == name or known.startswith(f"{name}.")]
        return f"{self.origins[below[-1]]}: " if name and below else ""

    def _forget(self, name: str) -> None:
        """What stands at that name, below it, and where it would stand below: 3 is no section."""
        inside = [n for n in self.values if n == name or n.startswith(f"{name}.")]
        above = [n for n in self.values if name.startswith(f"{n}.")]
        for gone in inside + above:
            del self.values[gone], self.origins[gone]


def _by_dotted_name(table: Mapping[str, Any], origin: str, prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        name = SHORT_NAMES.get(prefix + key, prefix + key)
        if name in (*CHOICES, "trainer") and isinstance(value, str):
            try:
                choice = parse_call(value)
            except SettingsError as error:
                raise SettingsError(f"{origin}: {name} {error}.") from None
            value = {"name": choice.name, **choice.options}
        inside = isinstance(value, Mapping)
        found = _by_dotted_name(value, origin, f"{name}.") if inside else {name: value}
        for again in flat.keys() & found.keys():
            raise SettingsError(f"{origin} gives {again} twice, once by its short name.")
        flat |= found
    return flat


def _override(text: str) -> dict[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise SettingsError(f"--set {text}: write key=value, such as --set rounds=100.")
    return {key.strip(): _UNSET if value.strip() == "none" else _value(value.strip())}


def _value(text: str) -> Any:
    """A TOML value, or a number that TOML would write otherwise (.5, 10^-1.5), or just the text."""
    try:
        parsed = parse_toml(f"value = {text}")
        if set(parsed) == {"value"}:
            return parsed["value"]
    except ValueError:
        pass
    try:
        return parse_number(text)
    except ValueError:
        return text


def _parse(text: str, where: str) -> dict[str, Any]:
    try:
        return parse_toml(text)
    except ValueError as error:
        raise SettingsError(
            f"{where} cannot be read as TOML: {error}. Texts need quotes there, as in "
            f'algorithm = "fedvarp".'
        ) from error


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SettingsError(
            f"{path} is no text in UTF-8, as TOML is ({error.reason} at byte {error.start}). Is it "
            f"another file than you meant? Else save it as UTF-8."
        ) from error


def _existing(path: Path) -> Path:
    if path.is_file():
        return path
    if (path / "config.toml").is_file():
        raise SettingsError(
            f"{path} is the directory of a run. `fedvarp resume {path}` goes on with it; to run "
            f"the same settings elsewhere, use {path / 'config.toml'} and --out."
        )
    raise SettingsError(
        f"There is no config file {str(path)!r}, and no preset of that name. "
        f"{_nearest(path.name)}`fedvarp presets` lists the presets."
    )


def _nearest(name: str) -> str:
    near = get_close_matches(name, preset_names(), n=1, cutoff=0.5)
    return f"Did you mean {near[0]}? " if near else ""
