"""model.safetensors carries a digest of all that it holds, so that a flipped bit is noticed.

The format has a header in JSON, with the places of tensors and free texts, and then their bytes.
The digest is one of those texts; it is taken over the header without it, and the bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from fedvarp.system.parsing import parse_json

_ABOUT: Final = "__metadata__"
_DIGEST: Final = "sha256"
_LONGEST_HEADER: Final = 100_000_000  # what safetensors itself takes
_ALIGNMENT: Final = 8


class DamagedModelError(Exception):
    """The file is not what was written; says how."""


def with_digest(written: bytes, about: Mapping[str, str]) -> bytes:
    """Adds texts and the digest to a model.

    Args:
        written: In the safetensors format.
        about: Texts to note, by name.

    Returns:
        The same model with them.
    """
    header, tensors = _parts(written)
    texts = {**header.pop(_ABOUT, {}), **about}
    texts[_DIGEST] = _digest({_ABOUT: texts, **header}, tensors)
    text = json.dumps({_ABOUT: texts, **header}).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text + tensors


def read_about(file: Path) -> dict[str, str]:
    """Reads the texts of a model, and holds it to its digest.

    Args:
        file: In the safetensors format.

    Returns:
        What was noted; without a digest among it where an earlier version wrote the file.

    Raises:
        DamagedModelError: It is not what was written.
    """
    header, tensors = _parts(file.read_bytes())
    texts = header.get(_ABOUT, {})
    if not isinstance(texts, dict):
        raise DamagedModelError("its header holds no texts")
    if _DIGEST in texts:
        without = {name: text for name, text in texts.items() if name != _DIGEST}
        if _digest({**header, _ABOUT: without}, tensors) != texts[_DIGEST]:
            raise DamagedModelError("its digest does not match")
    return texts


def sha256_of(file: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _parts(written: bytes) -> tuple[dict[str, Any], bytes]:
    length = int.from_bytes(written[:8], "little")
    if len(written) < 8 or length > min(len(written) - 8, _LONGEST_HEADER):
        raise DamagedModelError("it was cut off, or is no safetensors file")
    try:
        header = parse_json(written[8 : 8 + length])
    except ValueError as error:
        raise DamagedModelError(f"its header cannot be read ({error})") from error
    if not isinstance(header, dict):
        raise DamagedModelError("its header is none")
    return header, written[8 + length :]


def _digest(header: Mapping[str, Any], tensors: bytes) -> str:
    text = json.dumps(header, sort_keys=True).encode()
    return hashlib.sha256(len(text).to_bytes(8, "little") + text + tensors).hexdigest()
