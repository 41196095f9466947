"""A task so small that a whole sweep of it takes seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

_SMALL = """
rounds = 6
clients_per_round = 2
evaluation.every = 3
data = "logistic"
[local_sgd]
lr = 0.1
batch_size = 10
steps = 2
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "small.toml").write_text(_SMALL)
    return tmp_path / "small.toml"
