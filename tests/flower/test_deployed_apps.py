"""A client that has never heard of fedvarp, on a real deployment, and our own example beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedvarp import Checkpoint
from flower.deployment import ON_REAL_PROCESSES, Deployment

pytestmark = ON_REAL_PROCESSES

STOCK_APP = Path(__file__).with_name("stock_app")
EXAMPLE = Path(__file__).parents[2] / "examples" / "flower_app"


def test_a_stock_client_works_unchanged(deployment: Deployment) -> None:
    flower = deployment.flower
    nodes = {flower.node_id(f"supernode-{client}") for client in range(3)}
    run = flower.submit("run", STOCK_APP, {"checkpoint": str(deployment.checkpoint)})
    flower.wait_for_end(run)
    with Checkpoint(deployment.checkpoint) as checkpoint:
        entries = checkpoint.entries()
        assert checkpoint.round == 2
        w = checkpoint.store.read_tensor("state", "w", torch.float32, (8 * 3 + 3,))
    names = {entry["name"] for key, entry in entries.items() if key.startswith("client/")}
    assert names == {f"node {node}" for node in nodes}  # it reports no name of its own
    assert bool(w.isfinite().all())
    losses = [entries[f"history/{t}"]["train"]["train_loss"] for t in (1, 2)]
    assert losses[1] < losses[0]
    assert 0 <= entries["history/2"]["evaluate"]["eval_acc"] <= 1
    assert flower.log(run).count("rate is the one that they are sent") == 1


@pytest.mark.parametrize("algorithm", ["cluster-fedvarp", "scaffold"])
def test_the_example_app_learns_on_a_real_deployment(
    deployment: Deployment, algorithm: str
) -> None:
    config = {
        "algorithm": algorithm,
        "num-server-rounds": 4,
        "num-clients": 3,
        "checkpoint": str(deployment.checkpoint),
    }
    flower = deployment.flower
    flower.wait_for_end(flower.submit("run", EXAMPLE, config))
    with Checkpoint(deployment.checkpoint) as checkpoint:
        entries = checkpoint.entries()
    names = {entry["name"] for key, entry in entries.items() if key.startswith("client/")}
    assert names == {"0", "1", "2"}
    accuracy = [entries[f"history/{t}"]["evaluate"]["accuracy"] for t in (1, 4)]
    assert accuracy[1] > max(0.5, accuracy[0])
