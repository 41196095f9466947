"""A client as Flower's PyTorch quick-start writes it works unchanged, on Flower's own engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

QUICKSTART = """
import json, sys
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from torch import nn
import fedvarp.flower

OUT, STRATEGY, ROUNDS = sys.argv[1], sys.argv[2], int(sys.argv[3])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(8, 16)
        self.fc2 = nn.Linear(16, 3)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))


def load_data(partition_id):
    generator = torch.Generator().manual_seed(partition_id)
    x = torch.randn(40, 8, generator=generator)
    return x, (x[:, :3] + 0.1 * torch.randn(40, 3, generator=generator)).argmax(1)


app = ClientApp()


@app.train()
def train(msg: Message, context: Context):
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    x, y = load_data(context.node_config["partition-id"])
    optimizer = torch.optim.SGD(model.parameters(), lr=msg.content["config"]["lr"])
    running_loss = 0.0
    for _ in range(4):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        running_loss += loss.item() / 4
    model_record = ArrayRecord(model.state_dict())
    metrics = {"train_loss": running_loss, "num-examples": len(x)}
    metric_record = MetricRecord(metrics)
    content = RecordDict({"arrays": model_record, "metrics": metric_record})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    x, y = load_data(context.node_config["partition-id"])
    with torch.no_grad():
        loss = nn.functional.cross_entropy(model(x), y).item()
        accuracy = (model(x).argmax(1) == y).float().mean().item()
    metrics = {"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(x)}
    content = RecordDict({"metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=msg)


server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    torch.manual_seed(0)
    arrays = ArrayRecord(Net().state_dict())
    strategy = getattr(fedvarp.flower, STRATEGY)(
        num_clients=6, clients_per_round=2, seed=0, checkpoint=OUT + "/state"
    )
    result = strategy.start(
        grid=grid, initial_arrays=arrays, num_rounds=ROUNDS, timeout=120,
        train_config=ConfigRecord({"lr": 0.3}),
    )
    found = {
        "round": strategy.server.round,
        "evaluated": {r: dict(m) for r, m in result.evaluate_metrics_clientapp.items()},
        "trained": {r: dict(m) for r, m in result.train_metrics_clientapp.items()},
        "names": sorted(result.arrays),
    }
    with open(OUT + "/found.json", "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    run_simulation(
        server, app, num_supernodes=6,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": 2, "include_dashboard": False},
        },
    )
"""


def run(folder: Path, strategy: str, rounds: int) -> tuple[dict[str, Any], str]:
    script = folder / "quickstart.py"
    script.write_text(QUICKSTART)
    # Ray's switch for laptops keeps it off all networks but loopback, on Linux too.
    private = {
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_ADDRESS": "local",  # whatever other cluster the machine has, or had
        "RAY_USAGE_STATS_ENABLED": "0",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_HOME": str(folder / "flwr"),
        "OMP_NUM_THREADS": "1",
    }
    ended = subprocess.run(
        [sys.executable, str(script), str(folder), strategy, str(rounds)],
        env={**os.environ, **private},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    found = json.loads((folder / "found.json").read_text())
    assert found["names"] == ["fc1.bias", "fc1.weight", "fc2.bias", "fc2.weight"]
    return found, ended.stderr + ended.stdout


@pytest.mark.slow
def test_the_quick_start_runs_unchanged_and_goes_on_where_it_ended(tmp_path: Path) -> None:
    found, log = run(tmp_path, "FedVARP", rounds=4)
    assert found["round"] == 4
    assert log.count("so that they go by their node id") == 1
    assert log.count("rate is the one that they are sent") == 1
    assert list(found["trained"]) == ["1", "2", "3", "4"]
    assert found["evaluated"]["4"]["eval_loss"] < found["evaluated"]["1"]["eval_loss"]
    assert "query.identity" not in log
    assert "Traceback" not in log
    longer, said = run(tmp_path, "FedVARP", rounds=6)
    assert "and the run goes on with a table of 0 rows" in said, "node ids are new"
    assert longer["round"] == 6
    for kind in ("evaluated", "trained"):
        assert {r: longer[kind][r] for r in found[kind]} == found[kind]
        assert list(longer[kind]) == ["1", "2", "3", "4", "5", "6"]
