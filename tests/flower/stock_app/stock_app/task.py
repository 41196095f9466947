"""A model and a client's data, as in Flower's quick-start; the data is made up here."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

Batches = DataLoader[tuple[Tensor, ...]]


class Net(nn.Module):
    """A linear classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Scores."""
        scores: Tensor = self.fc(x)
        return scores


def load_data(partition_id: int, num_partitions: int) -> tuple[Batches, Batches]:
    """Batches to train and to test on."""
    generator = torch.Generator().manual_seed(partition_id)
    x = torch.randn(40, 8, generator=generator) + partition_id / num_partitions
    y = x[:, :3].argmax(1)
    train, test = TensorDataset(x[:30], y[:30]), TensorDataset(x[30:], y[30:])
    return DataLoader(train, batch_size=10, shuffle=True), DataLoader(test, batch_size=10)


def train(net: nn.Module, batches: Batches, epochs: int, lr: float) -> float:
    """Trains the model; returns the mean loss."""
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    running_loss = 0.0
    for _ in range(epochs):
        for x, y in batches:
            optimizer.zero_grad()
            loss = criterion(net(x), y)
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
    return running_loss / len(batches)


def test(net: nn.Module, batches: Batches) -> tuple[float, float]:
    """Mean loss and accuracy."""
    criterion = nn.CrossEntropyLoss()
    loss, correct, total = 0.0, 0, 0
    with torch.no_grad():
        for x, y in batches:
            scores = net(x)
            loss += criterion(scores, y).item()
            correct += int((scores.argmax(1) == y).sum())
            total += len(y)
    return loss / len(batches), correct / total
