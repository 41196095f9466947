"""Reads the original CIFAR-10 python batches from their archive or folder, trusting neither.

The batches are pickles, and a pickle can run anything. So each file must have the official checksum
before it is looked into, and even then only the three NumPy names that its arrays need may be used.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import hashlib
import io
import lzma
import pickle
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, BinaryIO, Final

import numpy as np
import torch
from torch import Tensor

from fedvarp.data.federated_dataset import DataError
from fedvarp.data.locate import first_existing

FOLDER: Final = "cifar-10-batches-py"
ARCHIVES: Final = (f"{FOLDER}.tar.gz", "cifar-10-python.tar.gz")
OFFICIAL_MD5: Final[Mapping[str, str]] = MappingProxyType(
    {
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
        "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
    }
)
_MOST_BYTES: Final = 2**28  # that the archive unpacks to; the official one has 186 million
_COMPRESSIONS: Final[Mapping[bytes, Callable[[BinaryIO], Any]]] = MappingProxyType(
    {
        b"\x1f\x8b": gzip.open,
        b"BZh": bz2.open,
        b"\xfd7zXZ": lzma.open,
        b"\x5d\x00\x00\x80": lzma.open,
    }
)  # by what their files begin with
_DAMAGE: Final = (
    tarfile.TarError,
    EOFError,
    OSError,
    zlib.error,
    lzma.LZMAError,
    ValueError,  # of numbers in headers
    RecursionError,  # of headers that announce headers
)
_DOWNLOAD: Final = "download_cifar10"
_AGAIN: Final = f"fedvarp.data.download.{_DOWNLOAD}(folder) fetches a fresh copy."


@dataclass(frozen=True, eq=False)
class Cifar10Images:
    """All images as they are stored, 184 MB; scaling them to floats would take four times that."""

    train_pixels: Tensor  # (50000, 3, 32, 32) uint8
    train_labels: Tensor  # (50000,) int64
    test_pixels: Tensor  # (10000, 3, 32, 32) uint8
    test_labels: Tensor  # (10000,) int64
    label_names: tuple[str, ...]  # 10


def read_cifar10(root: Path, md5: Mapping[str, str] = OFFICIAL_MD5) -> Cifar10Images:
    """Reads the batches below ``root``: the archive, the extracted folder, or a folder with either.

    Args:
        root: A folder or an archive. An archive is read as it is, in one pass, not extracted.
        md5: The checksum of each file inside; the outer archive's own does not matter.

    Returns:
        All training and test images with their labels.

    Raises:
        DataError: Nothing is there, or it is incomplete, damaged, or not the official data.
    """
    source = first_existing(root, ("data_batch_1", FOLDER, *ARCHIVES), download=_DOWNLOAD)
    if source.name == "data_batch_1":
        source = source.parent
    files = _files_of_folder(source, md5) if source.is_dir() else _files_of_archive(source, md5)
    contents: dict[str, dict[bytes, Any]] = {}
    for name, raw in files:
        found = hashlib.md5(raw, usedforsecurity=False).hexdigest()
        if found != md5[name]:
            raise DataError(
                f"{name} in {source} has the md5 {found}, not {md5[name]}: it is damaged or not "
                f"the original CIFAR-10 file. {_AGAIN}"
            )
        contents[name] = unpickle_batch(raw, f"{name} in {source}")
    missing = [name for name in md5 if name not in contents]
    if missing:
        raise DataError(f"{source} has no {', '.join(missing)}. {_AGAIN}")

    train = [_images(contents[name], name) for name in sorted(contents) if "data_batch" in name]
    test_pixels, test_labels = _images(contents["test_batch"], "test_batch")
    return Cifar10Images(
        train_pixels=torch.cat([pixels for pixels, _ in train]),
        train_labels=torch.cat([labels for _, labels in train]),
        test_pixels=test_pixels,
        test_labels=test_labels,
        label_names=tuple(n.decode("ascii") for n in contents["batches.meta"][b"label_names"]),
    )


def unpickle_batch(raw: bytes, whose: str) -> dict[bytes, Any]:
    """Unpickles a dictionary of lists, bytes, numbers and NumPy arrays, and nothing else.

    Args:
        raw: The pickle.
        whose: What it is, for messages.

    Returns:
        The dictionary.

    Raises:
        DataError: The pickle is broken, asks for anything else, or holds something else.
    """
    try:
        content = _ArraysOnly(io.BytesIO(raw), encoding="bytes").load()
    except Exception as error:  # a broken pickle may raise anything
        raise DataError(f"{whose} cannot be unpickled safely: {error}. {_AGAIN}") from error
    if not isinstance(content, dict):
        raise DataError(f"{whose} holds a {type(content).__name__}, not a dictionary. {_AGAIN}")
    return content


class _ArraysOnly(pickle.Unpickler):
    """Looks up no global but the ones in a pickled array of protocol 2."""

    # Taken from a live array: the module they are defined in has changed its name since 2009.
    _ALLOWED: Final[Mapping[tuple[str, str], Any]] = MappingProxyType(
        {
            ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
        }
    )

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        try:
            return self._ALLOWED[module_name, global_name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"it asks for {module_name}.{global_name}, which no CIFAR-10 batch needs"
            ) from None


def _files_of_folder(folder: Path, wanted: Mapping[str, str]) -> Iterator[tuple[str, bytes]]:
    for name in wanted:
        if (folder / name).is_file():
            yield name, (folder / name).read_bytes()


class _UnpackedBytes(io.RawIOBase):
    """What an archive unpacks to, as far as CIFAR-10 may be long: reading on is refused.

    tarfile reads long names whole before anybody sees how long they are, so that checking its
    members comes too late.
    """

    def __init__(self, archive: Path, unpacked: BinaryIO) -> None:
        self._archive = archive
        self._unpacked = unpacked
        self._left = _MOST_BYTES

    def read(self, size: int = -1, /) -> bytes:
        most = self._left + 1  # the one byte more tells that the archive goes on
        found = self._unpacked.read(most if size < 0 else min(size, most))
        self._left -= len(found)
        if self._left < 0:
            raise DataError(
                f"{self._archive} unpacks to more than {_MOST_BYTES:,} bytes, which CIFAR-10 "
                f"does not: it is another file. {_AGAIN}"
            )
        return found


def _files_of_archive(archive: Path, wanted: Mapping[str, str]) -> Iterator[tuple[str, bytes]]:
    remaining = set(wanted)
    try:
        with (
            archive.open("rb") as packed,
            _unpacked(packed) as unpacked,
            tarfile.open(fileobj=_UnpackedBytes(archive, unpacked), mode="r|") as tar,
        ):
            for member in tar:
                name = PurePosixPath(member.name).name
                file = tar.extractfile(member) if member.isfile() and name in remaining else None
                if file is not None:
                    remaining.remove(name)
                    yield name, file.read()
                if not remaining:
                    return
    except _DAMAGE as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's, and nothing that the archive holds
        size = archive.stat().st_size
        raise DataError(
            f"{archive} ({size:,} bytes) ends early or is damaged: {error}. This usually means an "
            f"interrupted download or copy. {_AGAIN}"
        ) from error


def _unpacked(packed: BinaryIO) -> Any:
    """The archive as it was before it was compressed, if it was."""
    first = packed.read(max(map(len, _COMPRESSIONS)))
    packed.seek(0)
    known = (unpack for begins, unpack in _COMPRESSIONS.items() if first.startswith(begins))
    return next(known, contextlib.nullcontext)(packed)


def _images(content: Mapping[bytes, Any], name: str) -> tuple[Tensor, Tensor]:
    pixels, labels = content.get(b"data"), content.get(b"labels")
    if not (
        isinstance(pixels, np.ndarray)
        and pixels.dtype == np.uint8
        and isinstance(labels, list)
        and pixels.shape == (len(labels), 3 * 32 * 32)
    ):
        raise DataError(f"{name} does not hold 32 x 32 colour images and their labels. {_AGAIN}")
    return torch.from_numpy(pixels).view(-1, 3, 32, 32), torch.tensor(labels, dtype=torch.int64)
