"""Runs that several tests look at."""

from __future__ import annotations

from pathlib import Path

import pytest

from some_runs import digits_runs, write_run


@pytest.fixture(scope="session")
def real_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder named mine, with runs of FedAvg, FedVARP and MIFA: not to be changed."""
    return digits_runs(tmp_path_factory.mktemp("runs") / "mine")


@pytest.fixture
def two_algorithms(tmp_path: Path) -> Path:
    """FedAvg reaches 0.5 at rounds 30 and 50; FedVARP at 20 and 20, but falls back in seed 0."""
    write_run(tmp_path / "a0", [0.1, 0.2, 0.4, 0.5, 0.6, 0.7], algorithm="fedavg", seed=0)
    write_run(tmp_path / "a1", [0.1, 0.2, 0.3, 0.3, 0.4, 0.5], algorithm="fedavg", seed=1)
    write_run(tmp_path / "v0", [0.1, 0.4, 0.6, 0.4, 0.7, 0.8], algorithm="fedvarp", seed=0)
    write_run(tmp_path / "v1", [0.1, 0.4, 0.5, 0.7, 0.9, 0.8], algorithm="fedvarp", seed=1)
    return tmp_path
