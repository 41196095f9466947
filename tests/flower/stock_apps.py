# mypy: ignore-errors
# Apps are not typed strictly; they stay as people write them.
"""Apps in the manner of Flower's examples, in our own words and with data that is here.

The clients know nothing of fedvarp. The servers are functions of the strategy's class, Flower's or
ours, and do with it what the examples do.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Result
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torch import nn

NUM_CLIENTS = 6


def digits_of(client: int) -> tuple[Any, Any]:
    """Clients of 60, 90, … 210 examples, sorted by label: each has a few digits only."""
    images, labels = load_digits(return_X_y=True)
    order = labels.argsort(kind="stable")
    start = client * len(order) // NUM_CLIENTS
    mine = order[start : start + 60 + 30 * client]
    return images[mine] / 16, labels[mine]


def reply_to(message: Message, arrays: ArrayRecord, metrics: dict[str, Any]) -> Message:
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=message)


# quickstart-numpy: arrays without names, noise for training


def numpy_app() -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        chance = np.random.default_rng((client, int(str(msg.content["config"]["server-round"]))))
        model = msg.content["arrays"].to_numpy_ndarrays()
        model = [layer + chance.normal(size=layer.shape) + client for layer in model]
        return reply_to(msg, ArrayRecord(model), {"random_metric": 0.5, "num-examples": 1 + client})

    return app


def numpy_model() -> ArrayRecord:
    return ArrayRecord([np.zeros((3, 2)), np.zeros(2)])


# quickstart-sklearn: a logistic regression in float64, one pass of its own solver


def sklearn_app() -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        mine = slice(client, None, NUM_CLIENTS - client // 2)  # clients of unequal sizes
        x, y = (part[mine] for part in load_digits(return_X_y=True))
        model = LogisticRegression(max_iter=2, warm_start=True)
        model.classes_ = np.arange(10)
        model.coef_, model.intercept_ = msg.content["arrays"].to_numpy_ndarrays()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # two steps are not enough, and are not meant to be
            model.fit(x / 16, y)
        arrays = ArrayRecord([model.coef_, model.intercept_])
        return reply_to(msg, arrays, {"num-examples": len(x)})

    return app


def sklearn_model() -> ArrayRecord:
    return ArrayRecord([np.zeros((10, 64)), np.zeros(10)])


# quickstart-pytorch: the learning rate comes with the message


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


def torch_app() -> ClientApp:
    app, model = ClientApp(), net()

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
        x, y = (torch.tensor(part) for part in digits_of(client))
        optimizer = torch.optim.SGD(model.parameters(), lr=msg.content["config"]["lr"])
        for _ in range(4):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x.float()), y)
            loss.backward()
            optimizer.step()
        metrics = {"train_loss": loss.item(), "num-examples": len(x)}
        return reply_to(msg, ArrayRecord(model.state_dict()), metrics)

    return app


def torch_model() -> ArrayRecord:
    return ArrayRecord(net().state_dict())


def loss_on_all(arrays: ArrayRecord) -> float:
    """Of the PyTorch model, over the examples of all clients."""
    model = net()
    model.load_state_dict(arrays.to_torch_state_dict())
    parts = [digits_of(client) for client in range(NUM_CLIENTS)]
    x = torch.tensor(np.concatenate([p[0] for p in parts])).float()
    y = torch.tensor(np.concatenate([p[1] for p in parts]))
    with torch.no_grad():
        return float(nn.functional.cross_entropy(model(x), y))


# What the servers do with a strategy


def plain(base: Any, grid: Any, model: ArrayRecord, rounds: int, **settings: Any) -> ArrayRecord:
    """A quick-start."""
    strategy = base(fraction_evaluate=0.0, **settings)
    config = ConfigRecord({"lr": 0.1})
    result: Result = strategy.start(grid, model, num_rounds=rounds, train_config=config)
    return result.arrays


def advanced(base: Any, grid: Any, model: ArrayRecord, rounds: int, **settings: Any) -> ArrayRecord:
    """advanced-pytorch: the rate decays in `configure_train`, and `start` is written anew."""

    class CustomFedAvg(base):  # type: ignore[misc]
        def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
            if server_round % 3 == 0:
                config["lr"] *= 0.5
            return super().configure_train(server_round, arrays, config, grid)

        def start(self, grid: Any, initial_arrays: Any, num_rounds: int) -> Result:
            self.summary()
            config, result, arrays = ConfigRecord({"lr": 0.1}), Result(), initial_arrays
            for current in range(1, num_rounds + 1):
                messages = self.configure_train(current, arrays, config, grid)
                replies = grid.send_and_receive(messages=messages, timeout=60)
                found, metrics = self.aggregate_train(current, replies)
                if found is not None:
                    arrays = result.arrays = found
                if metrics is not None:
                    result.train_metrics_clientapp[current] = metrics
            return result

    strategy = CustomFedAvg(fraction_evaluate=0.0, **settings)
    found: ArrayRecord = strategy.start(grid, model, rounds).arrays
    return found


def tuning(base: Any, grid: Any, model: ArrayRecord, rounds: int, **settings: Any) -> ArrayRecord:
    """FlowerTune's: a strategy that counts what goes over the wire."""
    megabytes: list[float] = []

    class Tracking(base):  # type: ignore[misc]
        def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
            messages = list(super().configure_train(server_round, arrays, config, grid))
            megabytes.extend(_size(m.content) for m in messages)
            return messages

        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            replies = list(replies)
            megabytes.extend(_size(r.content) for r in replies)
            return super().aggregate_train(server_round, replies)

    found = plain(Tracking, grid, model, rounds, **settings)
    assert sum(megabytes) > 0
    return found


def _size(content: RecordDict) -> float:
    records = content.array_records.values()
    return sum(len(array.data) for record in records for array in record.values()) / 1e6


def difference(a: ArrayRecord, b: ArrayRecord, start: ArrayRecord) -> float:
    """How far two models are apart, over how far the first has moved."""
    flat: Callable[[ArrayRecord], Any] = lambda record: np.concatenate(  # noqa: E731
        [array.numpy().ravel() for array in _in_order(record, start)]
    )
    apart, moved = np.linalg.norm(flat(a) - flat(b)), np.linalg.norm(flat(a) - flat(start))
    return float(apart / moved)


def _in_order(record: ArrayRecord, like: ArrayRecord) -> list[Array]:
    return [record[name] for name in like]
