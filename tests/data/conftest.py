"""The real images and plays, read once for all tests of this room."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedvarp.data.cifar10_files import Cifar10Images, read_cifar10
from fedvarp.data.shakespeare_text import Play, parse_plays, read_text


@pytest.fixture(scope="session")
def images(real_data: Path) -> Cifar10Images:
    return read_cifar10(real_data)


@pytest.fixture(scope="session")
def plays(real_data: Path) -> list[Play]:
    return parse_plays(read_text(real_data / "shakespeare" / "pg100.txt"))
