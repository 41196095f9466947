"""What a simulation refuses before it begins, and that a refusal leaves no trace."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedvarp
from fedvarp import LocalSGD, Recording, SimulationResult, Table, Trainer
from fedvarp.clients.availability import Trace
from fedvarp.clients.sampling import Cohort, UniformSampler
from fedvarp.data import FederatedDataset, from_function, from_tensors
from fedvarp.models import LogisticRegression
from fedvarp.runs.errors import RunError

NUM_CLIENTS = 4


def four_clients(**about: Any) -> FederatedDataset:
    draw = torch.Generator().manual_seed(0)
    examples = [
        (torch.randn(6, 3, generator=draw), torch.arange(6) % 2) for _ in range(NUM_CLIENTS)
    ]
    return from_tensors(examples, test=examples[0], num_classes=2, **about)


def run(dataset: FederatedDataset | None = None, **changes: Any) -> SimulationResult:
    how: dict[str, Any] = {
        "local_sgd": LocalSGD(lr=0.1, batch_size=3, epochs=1),
        "rounds": 3,
        "clients_per_round": 2,
    }
    model = changes.pop("model", None) or LogisticRegression(3, 2)
    return fedvarp.simulate(dataset or four_clients(), model, **(how | changes))


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


# Where a run may begin


def test_a_directory_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("a stranger's\n")
    for recording in (tmp_path, Recording(out=tmp_path, resume=True)):
        with pytest.raises(RunError, match=r"no run, but holds metrics\.jsonl.*new or empty"):
            run(recording=recording)
    assert listing(tmp_path) == ["metrics.jsonl"]
    assert (tmp_path / "metrics.jsonl").read_text() == "a stranger's\n"


def test_an_empty_directory_and_one_with_hidden_files_will_do(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / ".gitkeep").touch()
    for name in ("empty", "kept"):
        assert run(recording=tmp_path / name).stopped == "rounds"


@pytest.mark.parametrize(
    "wrong",
    [
        {"model": nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))},  # found by the flat model
        {"model": nn.Linear(5, 2)},  # found by the first evaluation
        {"table": Table(where="disk", clusters="auto:9"), "algorithm": "cluster_fedvarp"},
        {"table": Table(where="disk"), "algorithm": "cluster_fedvarp"},  # there are no clusters
        {"trainer": Trainer(name="vectorised", compile=True)},
    ],
    ids=["batch norm", "input size", "too many clusters", "no clusters", "trainer"],
)
def test_a_refused_run_leaves_nothing_behind(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises((ValueError, RuntimeError)):
        run(recording=tmp_path / "folder" / "run", **wrong)
    assert listing(tmp_path) == []


def test_data_that_cannot_be_loaded_leaves_nothing_behind(tmp_path: Path) -> None:
    whole = four_clients()

    def load(client: int) -> tuple[Tensor, Tensor]:
        if client == 2:
            raise OSError("the disk was pulled out")
        return whole.client(client)

    (tmp_path / "there").mkdir()
    (tmp_path / "there" / ".gitkeep").touch()
    with pytest.raises(OSError, match="pulled out"):
        run(from_function(load, NUM_CLIENTS), recording=tmp_path / "there", clients_per_round=4)
    assert listing(tmp_path) == ["there", "there/.gitkeep"]


def test_rounds_that_were_trained_stay(tmp_path: Path) -> None:
    class Fails(fedvarp.Callback):
        def on_round_begin(self, round: int, server: fedvarp.Server) -> None:
            if round == 2:
                raise OSError("the disk was pulled out")

    with pytest.raises(OSError, match="pulled out"):
        run(recording=tmp_path, callbacks=[Fails()])
    result = run(recording=Recording(out=tmp_path, resume=True))
    assert [record["round"] for record in result.metrics] == [0, 1, 2, 3]


def test_a_run_killed_before_its_first_round_is_begun_anew(tmp_path: Path) -> None:
    run(recording=tmp_path)
    for file in tmp_path.iterdir():
        if file.is_file() and file.name != "config.toml":
            file.unlink()
    for file in (tmp_path / "checkpoint").iterdir():
        file.unlink()
    assert run(recording=Recording(out=tmp_path, resume=True)).server.round == 3
