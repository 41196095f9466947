"""A small problem, its diagnosis and a run of it, which several tests look at."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedvarp.diagnosis import Diagnosis, diagnose
from fedvarp.experiments.build import build
from fedvarp.experiments.files import load_settings

CONFIG = """
rounds = 4
clients_per_round = 4
evaluation.every = 2
[data]
name = "quadratics"
sigma2 = 0.5
sigma_g2 = 2.0
sigma_K2 = 0.1
[local_sgd]
lr = 0.001
batch_size = 5
epochs = 2
"""


@pytest.fixture(scope="session")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty quadratic clients in five clusters, four a round."""
    file = tmp_path_factory.mktemp("config") / "small.toml"
    file.write_text(CONFIG)
    return file


@pytest.fixture(scope="session")
def found(config: Path) -> Diagnosis:
    """The diagnosis at its first model."""
    return diagnose(config, progress=False)


@pytest.fixture(scope="session")
def run(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a finished run of it, with FedVARP."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    build(load_settings(config, ["client_lr=0.05"])).run(folder, progress=False)
    return folder


@pytest.fixture(scope="session")
def with_rows(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Diagnosis:
    """The diagnosis of a run of ClusterFedVARP, with its rows as they are."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    told = ["algorithm=cluster_fedvarp", "client_lr=0.05"]
    build(load_settings(config, told)).run(folder, progress=False)
    return diagnose(folder, progress=False)
