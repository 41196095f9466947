"""Flower's named arrays as one float32 vector and buffers beside it, and back."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from flwr.common.constant import SType
from torch import Tensor

from fedvarp.tables.blocks import blocks

_RUNNING_STATISTICS: Final = ("running_mean", "running_var")
_VERSION_1: Final = b"\x93NUMPY\x01\x00"
_LONGEST_HEADER: Final = 512  # bytes; beyond that it is nothing a model has

NumpyArray = np.ndarray[Any, np.dtype[Any]]


class UnusableArraysError(ValueError):
    """These arrays are not those of the model; the message says what is wrong."""


@dataclass(frozen=True)
class Slot:
    """One named array: its place in the vector, or a buffer if it has none."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    start: int | None  # in the vector; None for a buffer
    size: int

    def part(self, vector: Tensor) -> Tensor:
        """This parameter's stretch of the vector, flat; a view."""
        assert self.start is not None
        return vector[self.start : self.start + self.size]


@dataclass(frozen=True)
class Layout:
    """Names, shapes and dtypes of a model's arrays; every other file sees vectors.

    Floating-point arrays are parameters. Integers, booleans and the running statistics of
    normalisation layers are buffers: no algorithm sees them, floats are averaged over the clients
    and counters take the maximum, as in `fedvarp.FlatModel`.
    """

    slots: tuple[Slot, ...]

    @classmethod
    def of(cls, arrays: ArrayRecord) -> Layout:
        """The layout of a model, such as ``ArrayRecord(model.state_dict())``."""
        slots: list[Slot] = []
        start = 0
        for name, array in arrays.items():
            size = int(np.prod(array.shape, dtype=np.int64))
            is_float = np.dtype(array.dtype).kind == "f"
            trained = is_float and not name.endswith(_RUNNING_STATISTICS)
            place = start if trained else None
            slots.append(Slot(name, tuple(array.shape), array.dtype, place, size))
            start += size if trained else 0
        if start == 0:
            raise ValueError(
                "The initial arrays hold no floating-point number: there is nothing to train. "
                "Pass ArrayRecord(model.state_dict())."
            )
        return cls(tuple(slots))

    @property
    def parameters(self) -> list[Slot]:
        """The arrays that make up the vector, in its order."""
        return [slot for slot in self.slots if slot.start is not None]

    @property
    def buffers(self) -> list[Slot]:
        """The arrays beside the vector."""
        return [slot for slot in self.slots if slot.start is None]

    @property
    def dim(self) -> int:
        """d, the length of the vector."""
        return sum(slot.size for slot in self.parameters)

    @property
    def has_running_statistics(self) -> bool:
        """Whether the model seems to have BatchNorm layers."""
        return any(slot.name.endswith(_RUNNING_STATISTICS) for slot in self.buffers)

    @property
    def digest(self) -> str:
        """Tells models with other arrays apart."""
        described = json.dumps([(s.name, s.shape, s.dtype) for s in self.slots])
        return hashlib.sha256(described.encode()).hexdigest()[:16]

    def check(self, arrays: Mapping[str, Array]) -> None:
        """Raises UnusableArraysError unless names, shapes and dtypes are those of the model."""
        if arrays.keys() != {slot.name for slot in self.slots}:
            names = {slot.name for slot in self.slots}
            missing, strange = sorted(names - arrays.keys()), sorted(arrays.keys() - names)
            raise UnusableArraysError(f"arrays missing: {missing[:3]}, not known: {strange[:3]}")
        for slot in self.slots:
            array = arrays[slot.name]
            if tuple(array.shape) != slot.shape:
                raise UnusableArraysError(
                    f"array {slot.name!r} has shape {tuple(array.shape)}, not {slot.shape}"
                )
            if array.dtype != slot.dtype:
                raise UnusableArraysError(f"array {slot.name!r} is {array.dtype}, not {slot.dtype}")

    def vector(self, arrays: Mapping[str, Array]) -> Tensor:
        """The parameters as one float32 vector, (d,)."""
        vector = torch.empty(self.dim)
        for slot in self.parameters:
            slot.part(vector).numpy()[:] = _flat(arrays[slot.name], slot)
        return vector

    def difference(self, w: Tensor, arrays: Mapping[str, Array], out: Tensor) -> float:
        """out = w − the parameters in `arrays`, (d,), in one pass and without a copy of them.

        Returns:
            The largest absolute value in `out`; NaN if there is one.
        """
        extremes: list[np.float32] = []
        for slot in self.parameters:
            theirs = _flat(arrays[slot.name], slot)
            ours, difference = slot.part(w).numpy(), slot.part(out).numpy()
            for here in blocks(slot.size):
                part = difference[here]
                with np.errstate(all="ignore"):  # NaN and infinity show in the extremes
                    np.subtract(ours[here], theirs[here], out=part, casting="same_kind")
                    extremes += [part.min(), part.max()]
        return float(np.abs(extremes).max())

    def read_buffers(self, arrays: Mapping[str, Array]) -> dict[str, Tensor]:
        """The buffers in `arrays`, copied."""
        return {
            slot.name: torch.tensor(_flat(arrays[slot.name], slot)).view(slot.shape)
            for slot in self.buffers
        }

    def record(self, vector: Tensor, buffers: Mapping[str, Tensor]) -> ArrayRecord:
        """The model as Flower sends it."""
        record = ArrayRecord()
        for slot in self.slots:
            if slot.start is None:
                record[slot.name] = Array(buffers[slot.name].numpy())
            else:
                record[slot.name] = Array(_as_numpy(slot, vector))
        return record

    def parameter_record(self, vector: Tensor) -> ArrayRecord:
        """A vector of the parameters' size, such as a correction, by their names."""
        return ArrayRecord({slot.name: Array(_as_numpy(slot, vector)) for slot in self.parameters})


def _as_numpy(slot: Slot, vector: Tensor) -> NumpyArray:
    numbers: NumpyArray = slot.part(vector).view(slot.shape).numpy()
    return numbers.astype(slot.dtype, copy=False)


def _flat(array: Array, slot: Slot) -> NumpyArray:
    """The numbers of a serialised array without copying them, once they are what they claim."""
    try:
        numbers = _without_copy(array)
    except Exception as error:  # whatever a client managed to send; it costs that reply only
        raise UnusableArraysError(f"array {slot.name!r} cannot be read: {error}") from error
    if numbers.size != slot.size or numbers.dtype != np.dtype(slot.dtype):
        raise UnusableArraysError(
            f"array {slot.name!r} holds {numbers.size} numbers of {numbers.dtype}, "
            f"but claims to be {slot.dtype} of shape {slot.shape}"
        )
    return numbers.reshape(-1)


def _without_copy(array: Array) -> NumpyArray:
    """What `Array.numpy` returns; of the usual kind of array, a read-only view of its bytes."""
    if array.stype != SType.NUMPY:
        raise UnusableArraysError(f"serialised as {array.stype!r}")
    start = 10 + int.from_bytes(array.data[8:10], "little")  # of the numbers, in version 1.0
    if array.data[:8] != _VERSION_1 or start > _LONGEST_HEADER:
        return array.numpy()
    shape, in_fortran_order, dtype = _header(array.data[:start])
    if in_fortran_order or dtype.hasobject or not dtype.isnative:
        return array.numpy()
    count = int(np.prod(shape, dtype=np.int64))
    return np.frombuffer(array.data, dtype=dtype, count=count, offset=start)


@lru_cache(maxsize=4096)
def _header(raw: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and dtype; the same few headers come with every reply."""
    stream = io.BytesIO(raw)
    np.lib.format.read_magic(stream)
    header: tuple[tuple[int, ...], bool, np.dtype[Any]]
    header = np.lib.format.read_array_header_1_0(stream)
    return header
