"""Text, JSON and TOML that anybody may have written."""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path
from typing import Any, Final

_DEEPEST: Final = 50  # what we write has five levels; whoever walks through it may recurse


def parse_json(text: str | bytes) -> Any:
    """Reads JSON that is nested as deeply as it may be, and no deeper.

    Args:
        text: In UTF-8, where it is bytes.

    Returns:
        What it says.

    Raises:
        ValueError: It is no JSON, no UTF-8, or lists and objects lie too deeply within each other.
    """
    try:
        found = json.loads(text)
    except RecursionError:
        raise _too_deep() from None
    _refuse_depth(found)
    return found


def parse_toml(text: str) -> dict[str, Any]:
    """Reads TOML that is nested as deeply as it may be, and no deeper.

    Args:
        text: The whole file.

    Returns:
        What it says.

    Raises:
        ValueError: It is no TOML, or tables and arrays lie too deeply within each other.
    """
    try:
        found = tomllib.loads(text)
    except RecursionError:
        raise _too_deep() from None
    _refuse_depth(found)  # a.b.c nests without brackets
    return found


def parse_number(text: str) -> float:
    """Reads a number, or a power as papers write their grids of rates.

    >>> parse_number(".5"), parse_number("10^-2")
    (0.5, 0.01)

    Args:
        text: Such as "0.1", "3e-4" or "10^-1.5".

    Returns:
        The number.

    Raises:
        ValueError: It is none, or a power that no number can hold.
    """
    written, power, exponent = text.partition("^")
    base = float(written)
    if not power:
        return base
    raised = float(exponent)
    if not (math.isfinite(base) and math.isfinite(raised) and base >= 0):  # -10^-2 would be 0.01
        raise ValueError(f"{text} is no power of a number from 0 on to a finite one")
    try:
        return float(base**raised)
    except ArithmeticError:  # 10^400, 0^-1
        raise ValueError(f"{text} is too large, or a power of 0 to less than 0") from None


def is_text(file: Path) -> bool:
    """Whether a file is there and holds text: UTF-8, and no zeros, as a lost page has.

    Args:
        file: A small one.

    Raises:
        OSError: It is there and cannot be read.
    """
    try:
        return "\0" not in file.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError, UnicodeDecodeError):
        return False


def _refuse_depth(value: object) -> None:
    level: list[Any] = [[value]]
    for _ in range(_DEEPEST + 1):
        within = (v.values() if isinstance(v, dict) else v for v in level)
        level = [v for values in within for v in values if isinstance(v, dict | list)]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> ValueError:
    return ValueError(f"something in it is nested more than {_DEEPEST} levels deep")
