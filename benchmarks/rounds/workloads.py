"""The workloads W1, W2 and W3 that rounds are timed on."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.rounds.workload import Settings, Workload
from fedvarp import stream
from fedvarp.data import FederatedDataset, shakespeare
from fedvarp.data.cifar10_dataset import CHANNEL_MEAN, CHANNEL_STD
from fedvarp.data.cifar10_files import read_cifar10
from fedvarp.data.locate import MissingDataError, data_root
from fedvarp.data.own_data import from_partition
from fedvarp.data.partition import shards

VOCABULARY, WINDOW = 80, 20


def w1(num_clients: int = 250, per_client: int = 200) -> Workload:
    """LeNet-5 on CIFAR-10 by label shards: nearly all of a round is arithmetic."""
    num_images = num_clients * per_client
    try:
        images = read_cifar10(data_root(None, download="download_cifar10"))
        pixels, labels = images.train_pixels[:num_images], images.train_labels[:num_images]
        source = "CIFAR-10"
    except MissingDataError:
        draw = stream(0, "random images")
        size = (num_images, 3, 32, 32)
        pixels = torch.randint(256, size, generator=draw, dtype=torch.uint8)
        labels = torch.arange(num_images) % 10
        source = "random images, for want of CIFAR-10"
    rows = torch.stack(shards(labels, num_clients=num_clients))  # (N, n)
    settings = Settings(
        name="W1",
        source=source,
        model="LeNet5",
        model_arguments=(),
        clients_per_round=5,
        epochs=5,
        batch_size=64,
        lr=0.03,
        mean=CHANNEL_MEAN,
        std=CHANNEL_STD,
    )
    return Workload(settings, pixels[rows], labels[rows])


def w2(num_clients: int = 1000) -> Workload:
    """Logistic regression on a handful of examples: nearly all of a round is overhead."""
    draw = stream(0, "random examples")
    settings = Settings(
        name="W2",
        source="random examples",
        model="LogisticRegression",
        model_arguments=(60, 10),
        clients_per_round=20,
        epochs=1,
        batch_size=10,
        lr=0.03,
    )
    return Workload(
        settings,
        x=torch.randn(num_clients, 50, 60, generator=draw),
        y=torch.randint(10, (num_clients, 50), generator=draw),
    )


def w3(num_clients: int = 50, per_client: int = 640) -> Workload:
    """A GRU that guesses the next character: ten batches of 64 windows a client."""
    x, y, source = _windows(num_clients, per_client)
    settings = Settings(
        name="W3",
        source=source,
        model="CharGRU",
        model_arguments=(VOCABULARY, 8, 128),
        clients_per_round=5,
        epochs=1,
        batch_size=64,
        lr=0.1,
    )
    return Workload(settings, x, y)


def _windows(num_clients: int, per_client: int) -> tuple[Tensor, Tensor, str]:
    try:
        roles = shakespeare(data_root(None, download="download_shakespeare"))
    except MissingDataError:
        draw = stream(0, "random characters")
        size = (num_clients, per_client, WINDOW)
        x = torch.randint(VOCABULARY, size, generator=draw, dtype=torch.uint8)
        y = torch.randint(VOCABULARY, size[:2], generator=draw)
        return x, y, "random characters, for want of Shakespeare"
    if roles.num_examples is None:
        raise ValueError("The roles of Shakespeare come without their sizes.")
    long_enough = (roles.num_examples >= per_client).nonzero().flatten()[:num_clients]
    examples = [roles.client(i) for i in long_enough.tolist()]
    x = torch.stack([x[:per_client] for x, _ in examples])
    y = torch.stack([y[:per_client] for _, y in examples])
    return x, y, "Shakespeare"


def federated(workload: Workload) -> FederatedDataset:
    """The workload as fedvarp's users would hand it over: rows of two big tensors."""
    rows = torch.arange(workload.y.numel()).view(workload.y.shape)
    return from_partition(
        workload.x.flatten(0, 1), workload.y.flatten(), list(rows), prepare=workload.prepare
    )
