"""For all tests: the real data where there is any, and one thread each."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with CIFAR-10 and Shakespeare; tests that need it are skipped without it."""
    folder = os.environ.get("FEDVARP_DATA")
    if not folder:
        pytest.skip("FEDVARP_DATA is not set: the real CIFAR-10 and Shakespeare files are absent")
    return Path(folder)
