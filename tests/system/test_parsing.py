"""Text from outside: what is nested too deeply is refused, and never ends in a RecursionError."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedvarp.experiments.files import load_settings
from fedvarp.settings.problems import SettingsError
from fedvarp.system.parsing import is_text, parse_json, parse_number, parse_toml


def _lists(depth: int) -> str:
    return "[" * depth + "]" * depth


def _json_objects(depth: int) -> str:
    return '{"a": ' * depth + "0" + "}" * depth


def _toml_list(depth: int) -> str:
    return f"a = {_lists(depth - 1)}"  # the file itself is a level


def _toml_tables(depth: int) -> str:
    return f"[{'.'.join('a' * (depth - 1))}]\nx = 1"


WAYS = [
    (parse_json, _lists),
    (parse_json, _json_objects),
    (parse_toml, _toml_list),
    (parse_toml, _toml_tables),
]


@pytest.mark.parametrize(("parse", "nested"), WAYS)
def test_fifty_levels_are_read(
    parse: Callable[[str], object], nested: Callable[[int], str]
) -> None:
    parse(nested(50))


@pytest.mark.parametrize(("parse", "nested"), WAYS)
@pytest.mark.parametrize("depth", [51, 400, 5_000, 20_000])
def test_more_are_refused(
    parse: Callable[[str], object], nested: Callable[[int], str], depth: int
) -> None:
    """tomllib takes time in the square of the parts of a name: 20,000 of them half a second."""
    with pytest.raises(ValueError, match="50 levels"):
        parse(nested(depth))


@given(st.recursive(st.integers() | st.text() | st.none(), st.lists, max_leaves=20))
def test_json_that_is_no_deeper_is_read_as_ever(value: object) -> None:
    assert parse_json(json.dumps(value)) == value
    assert parse_json(json.dumps(value).encode()) == value


@pytest.mark.parametrize("nested", [_toml_list, _toml_tables])
@pytest.mark.parametrize("depth", [400, 5_000])
def test_a_settings_file_that_is_too_deep_is_refused_by_its_name(
    nested: Callable[[int], str], depth: int, tmp_path: Path
) -> None:
    file = tmp_path / "deep.toml"
    file.write_text('preset = "digits"\n' + nested(depth), encoding="utf-8")

    with pytest.raises(SettingsError, match=r"deep\.toml .* 50 levels"):
        load_settings(str(file))


@pytest.mark.parametrize(
    ("text", "number"), [("10^-1.5", 10**-1.5), ("2^3", 8.0), (".5", 0.5), ("1e-3", 0.001)]
)
def test_powers_are_numbers(text: str, number: float) -> None:
    assert parse_number(text) == number


@pytest.mark.parametrize(
    "text",
    [
        "10^400",
        "0^-1",
        "-1^0.5",
        "-10^-2",
        "-2^2",
        "1^nan",
        "nan^0",
        "inf^0",
        "1^inf",
        "10^",
        "^2",
        "a^2",
        "10^2^2",
    ],
)
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"too large|no power|could not convert"):
        parse_number(text)


def test_text_is_told_from_what_is_gone_or_damaged(tmp_path: Path) -> None:
    file = tmp_path / "note.txt"
    assert not is_text(file)
    file.write_text("é", encoding="utf-8")
    assert is_text(file)
    assert not is_text(file / "below-a-file.txt")
    for damaged in (b"\x8a", b"a\0b"):
        file.write_bytes(damaged)
        assert not is_text(file)
