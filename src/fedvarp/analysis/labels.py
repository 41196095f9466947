"""How groups of runs are told apart in a legend: by which settings, and in which words."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fedvarp.analysis.setting_kinds import is_of_the_method
from fedvarp.analysis.units import in_short, in_short_apart

_LONGEST_LIST: Final = 8  # that a label writes out
_HASH: Final = re.compile(r"\b(?:sha256 )?([0-9a-f]{8})(?:[0-9a-f]{4}){1,2}\b(?:, Python [\d.]+)?")


def telling_settings(apart: Sequence[str], settings: Sequence[Mapping[str, Any]]) -> Sequence[str]:
    """Of the settings in which groups differ, those that say how, if they suffice.

    Hashes do not, nor does an option of something chosen that all have who chose it, nor one of
    the task that some runs were made without, before there was such a setting.

    Args:
        apart: The names of the settings in which they differ.
        settings: Of each group.

    Returns:
        Names that tell all groups apart.

    >>> mine = [{"beta": 0.3, "code": "sha256 0123456789ab"}, {"beta": 1.0, "code": "unset"}]
    >>> telling_settings(["beta", "code"], mine)
    ['beta']
    >>> telling_settings(["server.name", "server.tau"], [{"server.name": "sgd"}, {
    ...     "server.name": "adam", "server.tau": 0.001}])
    ['server.name']
    >>> telling_settings(["model.classes", "table.rows"], [{}, {
    ...     "model.classes": 10, "table.rows": "last_layer"}])
    ['table.rows']
    """
    values = {name: [mine.get(name) for mine in settings] for name in apart}
    plain = [
        name
        for name, found in values.items()
        if not any(isinstance(value, str) and _HASH.search(value) for value in found)
        and not _comes_with_a_choice(name, found, apart)
    ]
    told_apart = {tuple(str(mine.get(name)) for name in plain) for mine in settings}
    return plain if len(told_apart) == len(settings) else apart


def _comes_with_a_choice(name: str, found: Sequence[Any], apart: Sequence[str]) -> bool:
    chosen, given = f"{name.rpartition('.')[0]}.name", [v for v in found if v is not None]
    is_choice = chosen in apart or not is_of_the_method(name)
    return is_choice and len(given) < len(found) and all(v == given[0] for v in given)


def shown_value(value: Any) -> str:
    """A setting's value as a label has it, short.

    >>> shown_value(0.1), shown_value("sha256 0123456789ab, Python 3.11"), shown_value(None)
    ('0.1', '#01234567', 'unset')
    """
    if value is None:
        return "unset"
    if isinstance(value, list) and len(value) > _LONGEST_LIST:
        return f"{len(value)} entries #{zlib.crc32(str(value).encode()):08x}"
    return in_short(value) if isinstance(value, float) else _HASH.sub(r"#\1", str(value))


def shown_values(values: Sequence[Any]) -> list[str]:
    """A setting's value in each group as a label has it, those that differ told apart.

    >>> shown_values([0.1, None]), shown_values([1.00000001, 1.00000002])
    (['0.1', 'unset'], ['1.00000001', '1.00000002'])
    """
    numbers = {value for value in values if isinstance(value, float)}
    exact = dict(zip(numbers, in_short_apart(list(numbers)), strict=True))
    return [exact[v] if isinstance(v, float) else shown_value(v) for v in values]


def sortable(value: Any) -> tuple[int, float, str]:
    """A key to sort the values of a setting by: numbers by size, then texts."""
    is_number = isinstance(value, (int, float))
    return (0, float(value), "") if is_number else (1, 0.0, str(value))
