"""Flower's named arrays as one float32 vector and buffers beside it, and back."""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from flwr.common.constant import SType
from torch import Tensor

from fedvarp.errors import InvalidError
from fedvarp.server.flat_model import Slot
from fedvarp.tables.blocks import blocks
from fedvarp.tables.norms import norm

_RUNNING_STATISTICS: Final = ("running_mean", "running_var")
_VERSIONS: Final = {b"\x93NUMPY\x01\x00": 2, b"\x93NUMPY\x02\x00": 4}  # bytes of a header's length
_LONGEST_HEADER: Final = 512  # bytes; beyond that it is nothing a model has

NumpyArray = np.ndarray[Any, np.dtype[Any]]


class UnusableArraysError(ValueError):
    """These arrays are not those of the model; the message says what is wrong."""


@dataclass(frozen=True)
class NamedArray:
    """One array of the model: a parameter with its slot in the vector, or a buffer without."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    slot: Slot | None

    @property
    def size(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """Names, shapes and dtypes of a model's arrays; every other module sees vectors.

    Floating-point arrays are parameters. Integers, booleans and the running statistics of
    normalisation layers are buffers: no algorithm sees them, floats are averaged over the clients
    and counters take the maximum, as in `fedvarp.FlatModel`.

    Attributes:
        arrays: The arrays in the order in which they travel.
    """

    arrays: tuple[NamedArray, ...]

    @classmethod
    def of(cls, record: ArrayRecord) -> Layout:
        """Reads the layout of a model.

        Args:
            record: The model, such as ``ArrayRecord(model.state_dict())``.

        Returns:
            Its layout.

        Raises:
            ValueError: It holds no floating-point number.
        """
        arrays: list[NamedArray] = []
        start = 0
        for name, array in record.items():
            shape = tuple(array.shape)
            stop = start + math.prod(shape)
            is_float = np.dtype(array.dtype).kind == "f"
            slot = None
            if is_float and not name.endswith(_RUNNING_STATISTICS):
                slot, start = Slot(name, shape, start, stop), stop
            arrays.append(NamedArray(name, shape, array.dtype, slot))
        if start == 0:
            raise InvalidError(
                "The initial arrays hold no floating-point number: there is nothing to train. "
                "Pass ArrayRecord(model.state_dict())."
            )
        return cls(tuple(arrays))

    @property
    def parameters(self) -> list[tuple[NamedArray, Slot]]:
        """The arrays that make up the vector, in its order, each with its place."""
        return [(array, array.slot) for array in self.arrays if array.slot is not None]

    @property
    def buffers(self) -> list[NamedArray]:
        """The arrays beside the vector."""
        return [array for array in self.arrays if array.slot is None]

    @property
    def dim(self) -> int:
        """d, the length of the vector."""
        return self.parameters[-1][1].stop

    @property
    def has_running_statistics(self) -> bool:
        """Whether the model seems to have BatchNorm layers."""
        return any(array.name.endswith(_RUNNING_STATISTICS) for array in self.buffers)

    @property
    def digest(self) -> str:
        """A short hash that tells models with other arrays apart."""
        described = json.dumps([(a.name, a.shape, a.dtype) for a in self.arrays])
        return hashlib.sha256(described.encode()).hexdigest()[:16]

    def check(self, record: Mapping[str, Array]) -> None:
        """Checks what arrays claim to be, without reading their numbers.

        Args:
            record: Arrays as a client sent them.

        Raises:
            UnusableArraysError: Names, shapes or dtypes are not those of the model.
        """
        names = {array.name for array in self.arrays}
        if record.keys() != names:
            missing, strange = sorted(names - record.keys()), sorted(record.keys() - names)
            raise UnusableArraysError(f"arrays missing: {missing[:3]}, not known: {strange[:3]}")
        for own in self.arrays:
            theirs = record[own.name]
            if tuple(theirs.shape) != own.shape:
                raise UnusableArraysError(
                    f"array {own.name!r} has shape {tuple(theirs.shape)}, not {own.shape}"
                )
            if theirs.dtype != own.dtype and not _converts(theirs.dtype, own.dtype):
                raise UnusableArraysError(f"array {own.name!r} is {theirs.dtype}, not {own.dtype}")

    def vector(self, record: Mapping[str, Array]) -> Tensor:  # (d,) float32
        """The parameters of a model as one vector.

        Args:
            record: The model's arrays.

        Returns:
            (d,) float32, a copy.

        Raises:
            UnusableArraysError: An array cannot be read.
        """
        vector = torch.empty(self.dim)
        for array, slot in self.parameters:
            vector[slot.start : slot.stop].numpy()[:] = _flat(record[array.name], array)
        return vector

    def difference(
        self, w: Tensor, record: Mapping[str, Array], out: Tensor
    ) -> tuple[float, float]:
        """Writes w minus a client's parameters into `out`, in one pass and without a copy of them.

        Args:
            w: (d,) float32, the model that was sent.
            record: The client's arrays, which have passed `check`.
            out: (d,) float32, memory for the difference.

        Returns:
            The largest absolute value in `out`, and its norm; NaN if there is one.

        Raises:
            UnusableArraysError: An array is not what it claims to be.
        """
        extremes: list[np.float32] = []
        squares: list[float] = []
        with np.errstate(all="ignore"):  # NaN and infinity show in what is measured
            for array, slot in self.parameters:
                theirs = _flat(record[array.name], array)
                ours = w[slot.start : slot.stop].numpy()
                difference = out[slot.start : slot.stop].numpy()
                for here in blocks(array.size):
                    part = difference[here]
                    np.subtract(ours[here], theirs[here], out=part, casting="same_kind")
                    extremes += [part.min(), part.max()]  # while the block is in the cache
                    squares.append(float(np.dot(part, part)))
        return float(np.abs(extremes).max()), norm(out, squares)

    def read_buffers(self, record: Mapping[str, Array]) -> dict[str, Tensor]:
        """The buffers of a model by name, copied.

        Args:
            record: The model's arrays.

        Returns:
            {name: tensor}.

        Raises:
            UnusableArraysError: An array is not what it claims to be.
        """
        return {
            array.name: torch.tensor(_converted(_flat(record[array.name], array), array)).view(
                array.shape
            )
            for array in self.buffers
        }

    def record(self, vector: Tensor, buffers: Mapping[str, Tensor]) -> ArrayRecord:
        """The model as Flower sends it.

        Args:
            vector: (d,) float32, its parameters.
            buffers: Its buffers, by name.

        Returns:
            All arrays in the order of the layout.
        """
        beside = {name: Array(buffer.numpy()) for name, buffer in buffers.items()}
        everything = {**self.parameter_record(vector), **beside}
        return ArrayRecord({array.name: everything[array.name] for array in self.arrays})

    def parameter_record(self, vector: Tensor) -> ArrayRecord:
        """A vector of the parameters' size, such as a correction, by their names.

        Args:
            vector: (d,) float32.

        Returns:
            One array for each parameter, in its own dtype.
        """
        return ArrayRecord(
            {
                array.name: Array(slot.view(vector).numpy().astype(array.dtype, copy=False))
                for array, slot in self.parameters
            }
        )


def _flat(sent: Array, array: NamedArray) -> NumpyArray:
    """The numbers of a serialised array without copying them, once they are what they claim."""
    try:
        numbers = _without_copy(sent)
    except Exception as error:  # whatever a client managed to send; it costs that reply only
        raise UnusableArraysError(f"array {array.name!r} cannot be read: {error}") from error
    if numbers.size != array.size or numbers.dtype != np.dtype(sent.dtype):
        raise UnusableArraysError(
            f"array {array.name!r} holds {numbers.size} numbers of {numbers.dtype}, "
            f"but claims to be {sent.dtype} of shape {array.shape}"
        )
    return numbers


def _converts(theirs: str, own: str) -> bool:
    """Whether numbers of one type can be taken for another: whole numbers may come as floats."""
    try:
        return np.dtype(theirs).kind in "fiu" and np.dtype(own).kind in "fiu"
    except Exception:  # there is no such type; NumPy says so in several ways
        return False


def _converted(numbers: NumpyArray, array: NamedArray) -> NumpyArray:
    """The numbers in the array's own type; a counter that is no whole number is none."""
    own = np.dtype(array.dtype)
    with np.errstate(all="ignore"):  # what is too large is another number afterwards
        converted = numbers.astype(own)
    if own.kind in "iu" and numbers.dtype != own and not np.array_equal(converted, numbers):
        raise UnusableArraysError(f"array {array.name!r} must hold whole numbers ({own})")
    return converted


def _without_copy(array: Array) -> NumpyArray:  # one-dimensional
    """The numbers of `Array.numpy`, which trusts what it reads: a read-only view of the bytes.

    There are as many as the header says, or none are read: nothing is allocated on a client's word.
    """
    if array.stype != SType.NUMPY:
        raise UnusableArraysError(f"serialised as {array.stype!r}")
    if array.data[:8] not in _VERSIONS:
        raise UnusableArraysError("it is no NumPy array of a usual version")
    width = _VERSIONS[array.data[:8]]
    start = 8 + width + int.from_bytes(array.data[8 : 8 + width], "little")
    if start > _LONGEST_HEADER:
        raise UnusableArraysError(f"a header of {start} bytes")
    shape, in_fortran_order, dtype = _header(array.data[:start])
    count = math.prod(shape)
    if dtype.hasobject or min(shape, default=0) < 0:
        raise UnusableArraysError(f"{dtype} of shape {shape}")
    if count * dtype.itemsize != len(array.data) - start:
        raise UnusableArraysError(f"{len(array.data) - start} bytes for {dtype} of shape {shape}")
    numbers = np.frombuffer(array.data, dtype=dtype, count=count, offset=start)
    return numbers.reshape(shape, order="F").reshape(-1) if in_fortran_order else numbers


@lru_cache(maxsize=4096)
def _header(raw: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and dtype; the same few headers come with every reply."""
    stream = io.BytesIO(raw)
    version = np.lib.format.read_magic(stream)
    read = {(1, 0): np.lib.format.read_array_header_1_0}.get(
        version, np.lib.format.read_array_header_2_0
    )
    header: tuple[tuple[int, ...], bool, np.dtype[Any]] = read(stream)
    return header
