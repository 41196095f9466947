"""Output for terminals and pipes that cannot show every letter: ± becomes +-, σ becomes sigma.

What was measured for hours is printed in the end, and must not be lost to a terminal's encoding.
"""

from __future__ import annotations

import codecs
import io
import sys
import unicodedata
from typing import Final

_NAME: Final = "fedvarp_ascii"
_IN_ASCII: Final = {
    "±": "+-", "²": "^2", "³": "^3", "×": "x", "·": "*", "…": "...", "−": "-", "–": "-", "—": "-",
    "≤": "<=", "≥": ">=", "→": "->", "←": "<-", "∇": "grad ", "‖": "|", "√": "sqrt", "Σ": "sum",
    "∈": "in", "≈": "~", "•": "*", "‘": "'", "’": "'", "“": '"', "”": '"', "█": "#", "∞": "inf",
}  # fmt: skip


def print_whatever_the_encoding() -> None:
    """Lets standard output and standard error stand in ASCII for what they cannot encode."""
    codecs.register_error(_NAME, _stand_in)
    codecs.register(_ascii_by_another_name)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            is_ascii = codecs.lookup(stream.encoding).name == "ascii"
            stream.reconfigure(encoding=_NAME if is_ascii else None, errors=_NAME)


def in_ascii(letter: str) -> str:
    """What stands for a letter where only ASCII can be shown.

    >>> [in_ascii(letter) for letter in "±σ²é│"]
    ['+-', 'sigma', '^2', 'e', '|']

    Args:
        letter: One character.

    Returns:
        One ASCII character or a few; "?" if nothing resembles it.
    """
    if letter in _IN_ASCII:
        return _IN_ASCII[letter]
    name = unicodedata.name(letter, "")
    if name.startswith("GREEK "):
        return name.rpartition(" ")[2].lower()
    if name.startswith("BOX DRAWINGS "):
        return "+" if " AND " in name else "|" if name.endswith("VERTICAL") else "-"
    plain = unicodedata.normalize("NFKD", letter).encode("ascii", "ignore").decode()
    return plain or "?"


def _ascii_by_another_name(name: str) -> codecs.CodecInfo | None:
    """ASCII, which typer would take for a mistake if it were called so, and write UTF-8."""
    if name != _NAME:
        return None
    known = codecs.lookup("ascii")
    return codecs.CodecInfo(
        known.encode,
        known.decode,
        known.streamreader,
        known.streamwriter,
        known.incrementalencoder,
        known.incrementaldecoder,
        _NAME,
    )


def _stand_in(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(in_ascii, error.object[error.start : error.end])), error.end
