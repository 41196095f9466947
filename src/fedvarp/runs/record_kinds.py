"""What the record of a round may hold: anybody may have edited the file that it was read from."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

from fedvarp.runs.figures import MEASURED_ON

_TOO_MANY: Final = 2**63  # rounds, clients, bytes, seconds: NumPy counts them as int64
_LARGEST: Final = sys.float_info.max  # JSON has longer whole numbers, which no float can take
_COUNTS: Final = frozenset(
    (
        *("bytes_up", "bytes_down", "server_bytes"),
        *("num_steps", "num_refused", "num_replies"),
        "seconds",
    )
)
_RANGES: Final[Mapping[str, tuple[float, float]]] = {
    **dict.fromkeys(("round", *_COUNTS), (0, _TOO_MANY - 1)),
    "num_clients": (1, _TOO_MANY - 1),
    **dict.fromkeys(("test_accuracy", "validation_accuracy"), (0, 1)),
}
_ANY_NUMBER: Final = (-_LARGEST, _LARGEST)
_OF_EACH: Final = frozenset(("by_cluster", "by_client"))
_KINDS_OF_FIGURES: Final = frozenset((int, float, type(None)))


def refuse_other_kinds(record: Mapping[str, Any]) -> None:
    """Refuses values that no run writes, before somebody calculates with them.

    Args:
        record: Of a round, as it was read.

    Raises:
        ValueError: A number is out of range, or a client appears twice.
        TypeError: Something is of another kind.
        KeyError: It has no round.
    """
    if type(record["round"]) is not int or type(record.get("num_clients", 1)) is not int:
        raise TypeError("round or num_clients is no whole number")
    _refuse_other_clients(record.get("clients", []))
    refused = record.get("refused", {})
    if not isinstance(refused, dict) or not all(isinstance(why, str) for why in refused.values()):
        raise TypeError("refused holds no reasons")
    if not isinstance(record.get("refused_because", ""), str):
        raise TypeError("refused_because is no reason")
    for name, value in record.items():
        kind = type(value)
        if kind is int or kind is float:
            least, most = _RANGES.get(name, _ANY_NUMBER)
            if not least <= value <= most:  # NaN is in none
                raise ValueError(f"{name} is out of range")
        elif name in _COUNTS or (value is not None and name.startswith(MEASURED_ON)):
            raise TypeError(f"{name} is no number")
    for name in _OF_EACH & record.keys():
        of_each = record[name]
        if not isinstance(of_each, dict) or not all(map(_are_figures, of_each.values())):
            raise TypeError(f"{name} holds no lists of numbers")


def refuse_other_place(
    record: Mapping[str, Any], first: Mapping[str, Any], before: Mapping[str, Any]
) -> None:
    """Refuses a record that cannot follow those before it.

    Args:
        record: As `refuse_other_kinds` lets it pass; so are the others.
        first: The first of the run.
        before: The one before this.

    Raises:
        ValueError: Its round does not come later, or it names a client that there is not.
    """
    if record["round"] <= before["round"]:
        raise ValueError("its round does not come after that of the line before")
    if max(record.get("clients") or [0]) >= first.get("num_clients", _TOO_MANY):
        raise ValueError("it names a client beyond num_clients of the first line")


def _refuse_other_clients(clients: object) -> None:
    if not isinstance(clients, list):
        raise TypeError("clients is no list")
    # By whole lists: a file has thousands of them.
    if clients and not (
        set(map(type, clients)) == {int} and min(clients) >= 0 and max(clients) < _TOO_MANY
    ):
        raise ValueError("clients are no whole numbers")
    if len(set(clients)) < len(clients):
        raise ValueError("a client appears twice")


def _are_figures(values: object) -> bool:
    return (
        isinstance(values, list)
        and set(map(type, values)) <= _KINDS_OF_FIGURES
        and all(-_LARGEST <= value <= _LARGEST for value in values if value is not None)
    )
