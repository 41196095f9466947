"""Numbers as people read them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

BYTE_UNITS: Final = ("B", "kB", "MB", "GB", "TB", "PB")

_LARGE: Final = 1000  # from here on numbers are not shortened


def byte_unit(largest: float) -> tuple[float, str]:
    """Returns the size and the name of the unit in which so many bytes are from 1 to 1000.

    >>> byte_unit(2_080_000)
    (1000000.0, 'MB')
    """
    power = 0 if largest < 1 else min(int(math.log10(largest) / 3 + 1e-9), len(BYTE_UNITS) - 1)
    return 1000.0**power, BYTE_UNITS[power]


def in_bytes(number: float) -> str:
    """Writes bytes in powers of 1000, to three digits.

    >>> in_bytes(267_800), in_bytes(999), in_bytes(1e6), in_bytes(999_999)
    ('268 kB', '999 B', '1 MB', '1 MB')
    """
    # Rounded before the unit is chosen: 999,999 bytes are 1 MB and not 1e+03 kB.
    rounded = float(f"{number:.3g}")
    size, unit = byte_unit(rounded)
    return f"{rounded / size:.3g} {unit}"


def in_seconds(seconds: float) -> str:
    """Writes a time as short as it can be said.

    >>> in_seconds(0.042), in_seconds(9.84), in_seconds(192), in_seconds(3 * 3600 + 240)
    ('0.042 s', '9.8 s', '3 min 12 s', '3 h 04 min')
    >>> in_seconds(0.00021), in_seconds(0), in_seconds(float("inf"))
    ('0.21 ms', '0 s', 'not finite')
    """
    if not math.isfinite(seconds):
        return "not finite"
    if 0 < seconds < 0.00995:
        return f"{1000 * seconds:.2g} ms"
    if seconds < 59.95:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


def in_percent(mean: float, std: float | None) -> str:
    """Writes a share as a percentage, with its standard deviation if there is one.

    >>> in_percent(0.934, 0.0072), in_percent(0.5, None)
    ('93.4 ± 0.7 %', '50.0 %')
    """
    if not math.isfinite(mean):
        return "not finite"
    return f"{100 * mean:.1f}{'' if std is None else f' ± {100 * std:.1f}'} %"


def in_digits(mean: float, std: float | None) -> str:
    """Writes a number to three digits, its standard deviation to two.

    >>> in_digits(0.13179, 0.0042), in_digits(123.4, None), in_digits(float("nan"), None)
    ('0.132 ± 0.0042', '123', 'not finite')
    """
    if not math.isfinite(mean):
        return "not finite"
    return f"{mean:.3g}{'' if std is None else f' ± {std:.2g}'}"


def in_short(number: float) -> str:
    """Writes a setting as people do: a rate of the paper's grid is a power of ten.

    >>> in_short(0.1), in_short(10**-1.5), in_short(1 / 32), in_short(10 / 3), in_short(123456)
    ('0.1', '10^-1.5', '0.03125', '3.33', '123456')
    """
    if abs(number) >= _LARGE or math.isclose(number, float(f"{number:.5g}"), rel_tol=1e-9):
        return f"{number:g}"
    if number > 0:
        halves = round(2 * math.log10(number))
        if math.isclose(number, 10 ** (halves / 2), rel_tol=1e-9):
            return f"10^{halves / 2:g}"
    return f"{number:.3g}"


def in_short_apart(numbers: Sequence[float]) -> list[str]:
    """Writes settings as `in_short` does, but with every digit where two would read alike.

    >>> in_short_apart([0.1 / 3, 0.1]), in_short_apart([0.03333331, 0.03333332])
    (['0.0333', '0.1'], ['0.03333331', '0.03333332'])
    """
    texts = [in_short(number) for number in numbers]
    return texts if len(set(texts)) == len(set(numbers)) else [repr(number) for number in numbers]
