"""A client: trains the model it is sent on its own digits, and tests it on those it held back."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedvarp import stream
from fedvarp.flower import LocalSteps, answer_identity

from .task import Net, load_data, split
from .task import test as test_fn
from .task import train as train_fn

app = ClientApp()
answer_identity(app)  # the server knows this client by its partition-id, also after a restart
torch.set_num_threads(1)


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Trains the received model and sends it back."""
    config, partition_id = context.run_config, int(context.node_config["partition-id"])
    net = Net()
    net.load_state_dict(msg.content.array_records["arrays"].to_torch_state_dict())
    (x, y), _ = split(*load_data(partition_id, int(context.node_config["num-partitions"])))
    optimizer = torch.optim.SGD(net.parameters(), lr=float(config["learning-rate"]))
    steps = LocalSteps(msg, net, optimizer)  # counts them, and corrects them if asked to
    server_round = int(str(msg.content.config_records["config"]["server-round"]))
    train_fn(
        net,
        x,
        y,
        optimizer,
        epochs=int(config["local-epochs"]),
        batch_size=int(config["batch-size"]),
        shuffle=stream(int(config["seed"]), "batches", server_round, partition_id),
    )
    metrics = MetricRecord({"num-examples": len(y), "partition-id": partition_id})
    metrics.update(steps.metrics())
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Tests the received model."""
    node = context.node_config
    net = Net()
    net.load_state_dict(msg.content.array_records["arrays"].to_torch_state_dict())
    _, (x, y) = split(*load_data(int(node["partition-id"]), int(node["num-partitions"])))
    loss, accuracy = test_fn(net, x, y)
    metrics = MetricRecord({"num-examples": len(y), "loss": loss, "accuracy": accuracy})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
