"""How good the server's model is: on the test set, and on all clients' training data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedvarp.client_sampling import random_subset
from fedvarp.data import Examples, FederatedDataset
from fedvarp.flat_model import FlatModel
from fedvarp.local_sgd import Loss, layers_draw_from
from fedvarp.randomness import stream


@dataclass(frozen=True, eq=False)
class Evaluator:
    """Test loss and accuracy, and the training loss f(w) = Σ p_i f_i(w).

    Attributes:
        dataset: Where the examples come from. Without a test set only the training loss is given,
            without classes no accuracy.
        model: Computes the output; its parameters are bound to the vector evaluated.
        loss: The mean loss of a batch.
        client_weights: (N,) p_i up to a common factor; None for 1/N each, the paper's equation 1.
        num_train_clients: How many clients, drawn once by the seed, the training loss is averaged
            over; None: all of them, as in the paper's figures; 0: no training loss.
        seed: The run's seed.
        batch_size: Examples at a time; any size gives the same figures but for rounding.
    """

    dataset: FederatedDataset
    model: FlatModel
    loss: Loss
    client_weights: Tensor | None = None
    num_train_clients: int | None = None
    seed: int = 0
    batch_size: int = 1000

    def evaluate(self, w: Tensor, buffers: Mapping[str, Tensor]) -> dict[str, float]:
        """{"test_loss", "test_accuracy", "train_loss"}, those that the data set allows."""
        self.model.bind(w)
        if buffers:
            self.model.load_buffers(buffers)
        self.model.module.eval()
        figures: dict[str, float] = {}
        keyed = layers_draw_from(stream(self.seed, "evaluation"), w.device)
        with torch.inference_mode(), keyed:
            if self.dataset.test is not None:
                loss, accuracy = self._score(self.dataset.test, w.device)
                figures["test_loss"] = loss
                if self.dataset.num_classes is not None:
                    figures["test_accuracy"] = accuracy
            clients = self._train_clients()
            if len(clients):
                figures["train_loss"] = self._mean_loss(clients, w.device)
        return figures

    def _train_clients(self) -> Tensor:
        everyone, some = self.dataset.num_clients, self.num_train_clients
        if some is None or some >= everyone:
            return torch.arange(everyone)
        return random_subset(everyone, some, stream(self.seed, "evaluated clients"))

    def _mean_loss(self, clients: Tensor, device: torch.device) -> float:
        weights = torch.ones(self.dataset.num_clients, dtype=torch.float64)
        if self.client_weights is not None:
            weights = self.client_weights.double()
        losses = [self._score(self.dataset.client(i), device)[0] for i in clients.tolist()]
        chosen = weights[clients]
        return float(chosen @ torch.tensor(losses, dtype=torch.float64) / chosen.sum())

    def _score(self, examples: Examples, device: torch.device) -> tuple[float, float]:
        """Mean loss and accuracy; the accuracy means nothing where targets are not classes."""
        total = torch.zeros(2, dtype=torch.float64, device=device)
        num_targets = 0
        for x, y in _batches(examples, self.batch_size):
            inputs, targets = x.to(device), y.to(device)
            outputs = self.model.module(inputs)
            total[0] += self.loss(outputs, targets).double() * len(x)
            if self.dataset.num_classes is not None:
                total[1] += _num_right(outputs, targets)
                num_targets += targets.numel()
        loss, right = total.tolist()
        return loss / len(examples[0]), right / max(num_targets, 1)


def _num_right(outputs: Tensor, targets: Tensor) -> Tensor:
    if outputs.ndim != targets.ndim + 1:
        raise ValueError(
            f"The model gives outputs of shape {tuple(outputs.shape)} for targets of shape "
            f"{tuple(targets.shape)}: accuracy needs one number for each class, along dimension 1. "
            f"Leave num_classes out of the data set if its targets are not classes."
        )
    return (outputs.argmax(dim=1) == targets).sum()


def _batches(examples: Examples, batch_size: int) -> Iterable[Examples]:
    x, y = examples
    for start in range(0, len(x), batch_size):
        yield x[start : start + batch_size], y[start : start + batch_size]
