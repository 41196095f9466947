"""The model, the data of one client, and what it does with them. Nothing here knows of Flower."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy


class Net(nn.Sequential):
    """Two layers: the images are 8 × 8."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def load_data(partition_id: int, num_partitions: int) -> tuple[Tensor, Tensor]:
    """This client's images (n, 64) and labels (n,): a few digits only, so clients disagree."""
    images, labels = load_digits(return_X_y=True)
    shards = np.array_split(labels.argsort(kind="stable"), 2 * num_partitions)
    mine = np.concatenate([shards[partition_id], shards[partition_id + num_partitions]])
    return torch.tensor(images[mine] / 16, dtype=torch.float32), torch.tensor(labels[mine])


def split(x: Tensor, y: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Four fifths to train on, one fifth to test on."""
    held_out = torch.arange(len(y)) % 5 == 0
    return (x[~held_out], y[~held_out]), (x[held_out], y[held_out])


def train(
    net: nn.Module,
    x: Tensor,
    y: Tensor,
    optimizer: torch.optim.Optimizer,
    epochs: int,
    batch_size: int,
    shuffle: Generator,
) -> None:
    """Local SGD."""
    for _ in range(epochs):
        order = torch.randperm(len(y), generator=shuffle)
        for start in range(0, len(y), batch_size):
            batch = order[start : start + batch_size]
            optimizer.zero_grad()
            torch.autograd.backward(cross_entropy(net(x[batch]), y[batch]))
            optimizer.step()


@torch.no_grad()
def test(net: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float]:
    """Mean loss and accuracy."""
    scores = net(x)
    return float(cross_entropy(scores, y)), float((scores.argmax(1) == y).float().mean())
