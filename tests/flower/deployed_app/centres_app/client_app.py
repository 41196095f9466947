"""A client of the deployment tests: f_i(w) = ½ ‖w − centre_i‖², and it stops where told to."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

NUM_STEPS, CLIENT_LR = 4, 0.1

app = ClientApp()


@app.query("identity")
def identity(msg: Message, context: Context) -> Message:
    """What `fedvarp.flower.answer_identity` does, without the time it takes to import torch."""
    told = ConfigRecord({"partition-id": context.node_config["partition-id"]})
    return Message(RecordDict({"identity": told}), reply_to=msg)


@app.train()
def train(msg: Message, context: Context) -> Message:
    """A few steps towards this client's centre, (i + 1) e_i."""
    partition = int(context.node_config["partition-id"])
    server_round = str(msg.content.config_records["config"]["server-round"])
    events = Path(str(context.run_config["events"]))
    (events / f"client-{partition}-in-round-{server_round}").touch()
    if (events / f"hold-{partition}").exists():
        (events / f"held-{partition}-in-round-{server_round}").touch()
    while (events / f"hold-{partition}").exists():
        time.sleep(0.05)

    w = msg.content.array_records["arrays"]["w"].numpy().copy()
    centre = (partition + 1) * np.eye(len(w), dtype=w.dtype)[partition]
    for _ in range(NUM_STEPS):
        w -= CLIENT_LR * (w - centre)

    metrics = MetricRecord({"num-examples": 10, "num-steps": NUM_STEPS, "client": partition})
    if context.run_config["names"]:
        metrics["partition-id"] = partition
    arrays = ArrayRecord({"w": Array(w)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=msg)
