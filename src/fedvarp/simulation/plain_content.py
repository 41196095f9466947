"""Numbers, texts, tensors and generators of random numbers, as a file can keep them."""

from __future__ import annotations

import enum
import hashlib
import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from fedvarp.simulation.code_content import content_hash, full_name

LONGEST_LIST: Final = 64  # numbers written out; longer tensors are named by their hash
_LONGEST_TEXT: Final = 200  # characters
_MOST_LEAVES: Final = 40  # of one description; what is larger is summed up by hashes


def number_or_text(value: Any) -> Any:
    """A number, a text or a member of an enumeration; long texts by hash."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__qualname__}.{value.name}"
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # NaN would not equal itself
    if isinstance(value, str) and len(value) > _LONGEST_TEXT:
        return f"{len(value)} characters, {content_hash(value)}"
    return value


def generator_content(generator: torch.Generator | np.random.Generator) -> dict[str, Any]:
    """By its seed, which follows the run's; by its state as well once numbers were drawn."""
    if isinstance(generator, torch.Generator):
        seed: Any = generator.initial_seed()
        fresh = torch.Generator(generator.device).manual_seed(seed).get_state().tolist()
        state: Any = generator.get_state().tolist()
    else:
        bits: Any = generator.bit_generator
        seed = _without_arrays(getattr(bits.seed_seq, "entropy", None))
        fresh, state = (_without_arrays(each.state) for each in (type(bits)(bits.seed_seq), bits))
    told: dict[str, Any] = {"kind": full_name(type(generator)), "seed": seed}
    return told if state == fresh else told | {"state": content_hash(state)}


def numbers(values: Tensor | np.ndarray[Any, Any]) -> Any:
    """The numbers of a tensor or array, nested as they stand; of a long one how many, and a hash.

    Their dtype stands beside them unless it is the one that such numbers have by default.
    """
    told = values.detach().cpu() if isinstance(values, Tensor) else torch.tensor(values)
    dtype = str(told.dtype).removeprefix("torch.")
    if told.numel() <= LONGEST_LIST and not told.is_complex() and bool(told.isfinite().all()):
        usual = ("float32" if isinstance(values, Tensor) else "float64", "int64", "bool")
        return told.tolist() if dtype in usual else {dtype: told.tolist()}
    flat = told.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    digest = hashlib.sha256(f"{told.dtype} {tuple(told.shape)}".encode() + flat).hexdigest()
    return f"{told.numel()} numbers, sha256 {digest[:12]}"


def readable(told: Any) -> Any:
    """Sums up a description that is too long to read: its parts, or all of it, by hashes."""
    if not isinstance(told, Mapping) or _leaves(told) <= _MOST_LEAVES:
        return told
    short = {
        name: f"{part.get('kind', 'entries')}, {content_hash(part)}"
        if isinstance(part, Mapping)
        else part
        for name, part in told.items()
    }
    kind = told.get("kind", "entries")
    return short if len(short) <= _MOST_LEAVES else {"kind": kind, "content": content_hash(told)}


def _without_arrays(state: Any) -> Any:
    if isinstance(state, Mapping):
        return {name: _without_arrays(part) for name, part in state.items()}
    return state.tolist() if isinstance(state, np.ndarray) else state


def _leaves(told: Any) -> int:
    return sum(map(_leaves, told.values())) if isinstance(told, Mapping) else 1
