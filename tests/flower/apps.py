"""Client apps for the tests."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn
from torch.nn.functional import cross_entropy

from fedvarp import FlatModel, LocalSGD
from fedvarp.clients import local_training
from fedvarp.data import FederatedDataset
from fedvarp.flower import answer_identity
from fedvarp.flower.client import CORRECTION_RECORD


def local_sgd_app(
    dataset: FederatedDataset, model: nn.Module, local_sgd: LocalSGD, seed: int
) -> ClientApp:
    """A client app that trains as `fedvarp.simulate` does, and says who it is when asked."""
    app = ClientApp()
    answer_identity(app)
    flat = FlatModel(model)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        arrays = message.content.array_records["arrays"].to_torch_state_dict()
        w = torch.cat([arrays[name].reshape(-1) for name in flat.names])
        current = message.content.config_records["config"]["server-round"]
        assert isinstance(current, int)
        correction = None
        if CORRECTION_RECORD in message.content:
            sent = message.content.array_records[CORRECTION_RECORD].to_torch_state_dict()
            correction = torch.cat([sent[name].reshape(-1) for name in flat.names])
        result = local_training.train(
            local_sgd,
            flat,
            cross_entropy,
            w,
            dataset.client(client),
            seed=seed,
            round=current - 1,
            client=client,
            correction=correction,
            augment=dataset.augment,
        )
        own = w - result.delta * result.walk
        metrics = MetricRecord(
            {
                "num-examples": result.num_examples,
                "num-steps": result.num_steps,
                "client-lr": result.walk / result.num_steps,
                "loss": result.mean_loss,
            }
        )
        content = RecordDict({"arrays": ArrayRecord(flat.state_dict(own)), "metrics": metrics})
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        x, y = dataset.client(client)
        module = flat.module
        module.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        with torch.no_grad():
            loss = float(cross_entropy(module(x), y))
        metrics = MetricRecord({"loss": loss, "num-examples": len(x)})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app
