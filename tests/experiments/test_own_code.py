"""Data, models, losses, algorithms and schedules of one's own, named in settings by import path."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedvarp.cli.app import app
from fedvarp.experiments.build import build
from fedvarp.experiments.files import load_settings
from fedvarp.experiments.settings import DATASETS
from fedvarp.runs.directory import RunDirectory
from fedvarp.runs.errors import RunError
from fedvarp.settings.bounds import Count
from fedvarp.settings.problems import SettingsError

OWN = '''
from dataclasses import dataclass
import torch
from torch import nn
from fedvarp.algorithms import Aggregator, TableSettings
from fedvarp.data import FederatedDataset, from_tensors
from fedvarp.settings.bounds import Count, Positive

def clients(num_clients: Count = 6, spread: Positive = 1.0) -> FederatedDataset:
    """Points around a centre of each client's own."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(num_clients, 8, 3, generator=draw) * spread
    y = (x.sum(-1) > 0).long()
    return from_tensors(list(zip(x, y)), test=(x.flatten(0, 1), y.flatten()), num_classes=2)

class Net(nn.Module):
    def __init__(self, dataset: FederatedDataset, hidden: Count = 4) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, hidden), nn.Tanh(), nn.Linear(hidden, 2))

    def forward(self, x):
        return self.layers(x)

class Halved(Aggregator):
    """FedAvg with steps of half the length."""
    def aggregate(self, updates):
        return updates.average(updates.deltas) / 2

@dataclass(eq=False)
class Replayed(Aggregator):
    y: object
    def aggregate(self, updates):
        return self.y.exchange(updates.clients, updates.deltas, updates.averaging_weights, 1.0)
    @property
    def table(self):
        return self.y

def smoothed(output, targets):
    return nn.functional.cross_entropy(output, targets, label_smoothing=0.1)

def no_data() -> int:
    return 3
'''
CONFIG = """
rounds = 4
clients_per_round = 2
data = "own_parts:clients"
model = "own_parts:Net"
loss = "own_parts:smoothed"
algorithm = "own_parts:Replayed"
[local_sgd]
lr = 0.5
batch_size = 4
epochs = 1
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a module of one's own and settings that name its parts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "own_parts.py").write_text(OWN)
    (tmp_path / "mine.toml").write_text(CONFIG)
    yield tmp_path / "mine.toml"
    sys.modules.pop("own_parts", None)


def test_the_command_line_runs_and_resumes_what_is_ones_own(config: Path, tmp_path: Path) -> None:
    def fedvarp(*arguments: str) -> str:
        ended = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert ended.exit_code == 0, ended.output
        return ended.stdout

    fedvarp("run", str(config), "--out", "whole", "--set", "model.hidden=5")
    fedvarp("run", str(config), "--out", "part", "--set", "model.hidden=5", "--set", "rounds=2")
    fedvarp("resume", "part", "--set", "rounds=4")
    whole, part = (tmp_path / name / "metrics.jsonl" for name in ("whole", "part"))
    assert len(whole.read_text().splitlines()) == 5
    # Round 2 was the last one planned, so it alone was evaluated.
    same = [json.loads(line)["clients"] for line in part.read_text().splitlines()[1:]]
    assert same == [json.loads(line)["clients"] for line in whole.read_text().splitlines()[1:]]
    settings = RunDirectory(tmp_path / "whole").settings()
    assert settings["model"] == {"name": "own_parts:Net", "hidden": 5}
    assert settings["data"] == {"name": "own_parts:clients", "num_clients": 6, "spread": 1.0}


@pytest.mark.parametrize(
    ("before", "after", "names"),
    [
        ("label_smoothing=0.1", "label_smoothing=0.2", r"given\.loss\.code = sha256"),
        ("updates.averaging_weights, 1.0", "updates.averaging_weights, 0.5", r"given\.aggregator"),
        ("nn.Tanh()", "nn.ReLU()", r"given\.model"),
        ("torch.randn(num", "torch.rand(num", r"given\.dataset\.fingerprint.*`augment`"),
    ],
)
def test_code_that_was_edited_does_not_resume(
    config: Path, tmp_path: Path, before: str, after: str, names: str
) -> None:
    build(load_settings(config, ["rounds=2"])).run("run")
    sys.modules.pop("own_parts")
    own = tmp_path / "own_parts.py"
    own.write_text("# Said anew.\n" + OWN)
    build(load_settings(config, ["rounds=3"])).run("run", resume=True)
    sys.modules.pop("own_parts")
    assert before in OWN
    own.write_text(OWN.replace(before, after) + "\n# and longer, for the cache of bytecode\n")
    with pytest.raises(RunError, match=names):
        build(load_settings(config, ["rounds=4"])).run("run", resume=True)


def test_an_algorithm_without_a_table_is_a_class_too(config: Path) -> None:
    halved = build(load_settings(config, ["algorithm=own_parts:Halved"])).run()
    plain = build(load_settings(config, ["algorithm=fedavg", "server.lr=0.5"])).run()
    assert halved.server.w.tolist() == pytest.approx(plain.server.w.tolist(), rel=1e-5)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("model.hidden=0", r"model\.hidden = 0 should be at least 1"),
        ("model.hiden=3", r"model\.hiden is no setting; did you mean model\.hidden"),
        ("data.spread=wide", r"data\.spread = 'wide' should be a number"),
        ("model=own_parts:Nett", r"'own_parts:Nett' cannot be imported.*package\.module:name"),
        ("data=no_such_parts:clients", r"no_such_parts.*cannot be imported"),
        ("model=lenet", r"'lenet' is no model; did you mean lenet5"),
    ],
)
def test_wrong_options_of_ones_own_are_refused_like_ours(
    config: Path, override: str, says: str
) -> None:
    with pytest.raises(SettingsError, match=rf"^--set {override}: .*{says}"):
        load_settings(config, [override])


def test_data_that_are_no_federation_are_refused(config: Path) -> None:
    with pytest.raises(SettingsError, match=r"gives a int, not a FederatedDataset"):
        build(load_settings(config, ["data=own_parts:no_data"]))


def test_a_name_of_ones_own_can_be_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    def small(num_clients: Count = 5) -> object:
        return DATASETS.find("digits")(num_clients=num_clients)

    monkeypatch.setitem(DATASETS, "small", small)
    told = ["data=small", "model=logistic_regression"]
    assert build(load_settings("digits", told)).dataset.num_clients == 5
