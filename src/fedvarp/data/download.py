"""Fetches data sets from their official addresses: checked, resumable, never half a file.

A download grows in ``<name>.part``, survives dropped connections and restarts there, and takes its
real name only when it is whole and its contents have been verified.
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import os
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final
from urllib.parse import urlsplit

from filelock import FileLock

from fedvarp.data.federated_dataset import DataError
from fedvarp.errors import InvalidError
from fedvarp.version import __version__

Verify = Callable[[Path], None]  # raises DataError if the file is not what was wanted
Progress = Callable[[int, int | None], None]  # bytes so far, bytes in all if known

CIFAR10_URL: Final = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
CIFAR10_MD5: Final = "c58f30108f718f92721af3b95e74349a"
# The edition LEAF uses; it stood in old/ before Gutenberg moved it to old/old/. No checksum of it
# has been published: the CRC in the zip file and the counts of plays and roles stand in for one.
SHAKESPEARE_URL: Final = "https://www.gutenberg.org/files/100/old/old/1994-01-100.zip"

_MOST_UNPACKED: Final = 2**28  # bytes; all of Shakespeare has 5.6 million
_CHUNK: Final = 1 << 18
_PASSING: Final = (408, 425, 429, 500, 502, 503, 504)  # HTTP answers worth asking again
_DROPPED: Final = (
    http.client.HTTPException,
    urllib.error.URLError,
    ConnectionError,
    TimeoutError,
)
_DISK_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


def download_cifar10(folder: str | os.PathLike[str], *, progress: Progress | None = None) -> Path:
    """Downloads the CIFAR-10 python batches (170 MB) for `fedvarp.data.cifar10`.

    Args:
        folder: Where the archive is put.
        progress: Called with the bytes so far and the bytes in all.

    Returns:
        The archive.

    Raises:
        DataError: It cannot be had, is not the right one, or the disk is full.
    """
    target = Path(folder) / "cifar-10-python.tar.gz"
    return fetch(CIFAR10_URL, target, verify=has_md5(CIFAR10_MD5), progress=progress)


def download_shakespeare(
    folder: str | os.PathLike[str], *, progress: Progress | None = None
) -> Path:
    """Downloads the text for `fedvarp.data.shakespeare`.

    The text is not in the public domain: (c) World Library, Inc., free for personal use only, and
    not to be distributed or used commercially.

    Args:
        folder: Where the text is put, in a folder of its own.
        progress: Called with the bytes so far and the bytes in all.

    Returns:
        The archive with the text.

    Raises:
        DataError: It cannot be had, is not the right one, or the disk is full.
    """
    target = Path(folder) / "shakespeare" / "1994-01-100.zip"
    return fetch(SHAKESPEARE_URL, target, verify=is_sound_zip, progress=progress)


def fetch(
    url: str,
    target: Path,
    *,
    verify: Verify,
    progress: Progress | None = None,
    attempts: int = 5,
    backoff: float = 1.0,
    timeout: float = 30.0,
) -> Path:
    """Downloads ``url`` to ``target``, or leaves it alone if a verified copy is there already.

    Args:
        url: An http or https address.
        target: Where the file belongs. Two processes may ask for it at once; one waits.
        verify: Raises DataError unless the file is whole and right.
        progress: Called with the bytes so far and the bytes in all.
        attempts: How many connections in a row may fail without bringing a single byte.
        backoff: Seconds before the second attempt; each further wait is twice as long.
        timeout: Seconds of silence after which a connection counts as dropped.

    Returns:
        The target.

    Raises:
        DataError: The file cannot be had, is not the right one, or the disk is full.
        ValueError: The address is none of http or https.
    """
    if urlsplit(url).scheme not in ("https", "http"):
        raise InvalidError(f"{url!r} is not an http or https address.")
    if target.exists() and _is_right(target, verify):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    with FileLock(target.with_name(target.name + ".lock")):
        if target.exists() and _is_right(target, verify):
            return target  # another process was faster
        if part.is_symlink():
            raise DataError(
                f"{part} is a link to {part.readlink()}, and a download would write there. Remove "
                f"the link."
            )
        resumed = _size(part) > 0
        _complete(url, part, progress, attempts, backoff, timeout)
        if resumed and not _is_right(part, verify):
            # Begun against an older file of the server, perhaps: the two halves do not fit.
            part.unlink()
            _complete(url, part, progress, attempts, backoff, timeout)
        try:
            verify(part)
        except DataError as error:
            part.unlink()
            raise DataError(f"What {url} sent is not the expected file: {error}") from error
        part.replace(target)
    return target


def has_md5(expected: str) -> Verify:
    """Makes a check that a file has a certain md5.

    Args:
        expected: The md5 in hexadecimal digits.

    Returns:
        A function that raises DataError unless the file at a path has it.
    """

    def verify(path: Path) -> None:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, _md5).hexdigest()
        if found != expected:
            raise DataError(
                f"its md5 is {found}, not {expected}. Something on the way may have answered in "
                "the server's place (a login page, a proxy), or the official file has changed."
            )

    return verify


def is_sound_zip(path: Path) -> None:
    """Checks that every file of a zip archive has the CRC recorded for it.

    Args:
        path: The archive.

    Raises:
        DataError: It is none, or damaged.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(member.file_size for member in archive.infolist()) > _MOST_UNPACKED:
                raise DataError(f"it unpacks to more than {_MOST_UNPACKED:,} bytes.")
            damaged = archive.testzip()
    except (zipfile.BadZipFile, EOFError, zlib.error) as error:
        raise DataError(f"it is not a whole and sound zip archive ({error}).") from error
    if damaged is not None:
        raise DataError(f"{damaged} in it is damaged.")


def _md5() -> hashlib._Hash:
    return hashlib.md5(usedforsecurity=False)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _is_right(path: Path, verify: Verify) -> bool:
    try:
        verify(path)
    except DataError:
        return False
    return True


def _complete(
    url: str, part: Path, progress: Progress | None, attempts: int, backoff: float, timeout: float
) -> None:
    """Connects as often as it takes until ``part`` has as many bytes as the server says."""
    failures, farthest = 0, _size(part)
    while True:
        try:
            if _receive(url, part, progress, timeout):
                return
            problem: Exception | str = "the connection ended early"
        except urllib.error.HTTPError as error:
            error.close()
            if error.code not in _PASSING:
                raise DataError(
                    f"{url} answered {error.code} {error.reason}. If the file has moved, download "
                    f"it by hand and put it at {part.with_suffix('')}."
                ) from error
            problem = error
        except _DROPPED as error:
            problem = error
        except OSError as error:
            if error.errno in _DISK_FULL:
                raise DataError(
                    f"The disk is full: {part} has come to {_size(part):,} bytes. Free "
                    "some space there, or choose another folder; calling again goes on where this "
                    "stopped."
                ) from error
            raise
        # The farthest ever: a server that ignores Range begins anew each time and may never finish.
        failures = 0 if _size(part) > farthest else failures + 1
        farthest = max(farthest, _size(part))
        if failures >= attempts:
            raise DataError(
                f"{url} could not be downloaded: {failures} attempts in a row brought nothing "
                f"({problem}). Check the network; calling again goes on with {part}."
            )
        time.sleep(backoff * 2 ** max(failures - 1, 0))


def _receive(url: str, part: Path, progress: Progress | None, timeout: float) -> bool:
    """Appends what one connection brings; True if ``part`` is then as long as it should be."""
    have = _size(part)
    request = urllib.request.Request(url, headers={"User-Agent": f"fedvarp/{__version__}"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        response = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        if error.code != 416 or not have:
            raise
        error.close()
        if error.headers.get("Content-Range") == f"bytes */{have}":
            return True  # nothing beyond what we have
        part.unlink()  # longer than the server's file: not a beginning of it
        return _receive(url, part, progress, timeout)
    with response:
        length = response.headers.get("Content-Length")
        sent_from = response.headers.get("Content-Range", "")
        goes_on = response.status == 206 and sent_from.startswith(f"bytes {have}-")
        if not goes_on:
            have = 0  # the server sends the whole file again
        total = None if length is None else have + int(length)
        with open(part, "ab" if goes_on else "wb", opener=_no_link) as file:
            done = _copy(response, file, have, total, progress)
            file.flush()
            os.fsync(file.fileno())
    return total is None or done == total


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def _copy(
    source: http.client.HTTPResponse,
    file: IO[bytes],
    done: int,
    total: int | None,
    progress: Progress | None,
) -> int:
    while chunk := source.read(_CHUNK):
        file.write(chunk)
        done += len(chunk)
        if progress is not None:
            progress(done, total)
    return done
