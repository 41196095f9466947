"""Runs on another device than the CPU, without one: nothing on the wrong side, no waiting.

`fake_gpu.py` is a device that refuses to mix with the CPU and counts what it would be waited for.
That the kernels of a real GPU give the right figures is not shown: none has run this.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils import backend_registration

TESTS = Path(__file__).with_name("on_a_fake_gpu.py")


@pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this version of torch knows no devices made in Python",
)
def test_runs_on_a_fake_gpu() -> None:
    """In a process of their own: see `fake_gpu.py`."""
    command = [sys.executable, "-m", "pytest", str(TESTS), "-q", "-n0", "-p", "no:cacheprovider"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        pytest.fail(f"{ended.stdout[-6000:]}\n{ended.stderr[-2000:]}")
    assert " passed" in ended.stdout
