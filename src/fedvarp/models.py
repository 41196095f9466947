"""The models of the paper's tasks and of the smaller ones; any other ``nn.Module`` will do too.

>>> net = initialised(LeNet5, seed=0)
>>> sum(p.numel() for p in net.parameters())
62006
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, max_pool2d, pad, relu

from fedvarp.errors import InvalidError
from fedvarp.randomness import stream
from fedvarp.settings.bounds import Count, Seed
from fedvarp.settings.checked import checked

if TYPE_CHECKING:
    from fedvarp.data.federated_dataset import FederatedDataset

Module = TypeVar("Module", bound=nn.Module)


@checked
def initialised(factory: Callable[[], Module], seed: Seed) -> Module:
    """Builds a model whose initial weights depend on the seed alone.

    Layers draw their weights from torch's global generator; it is lent to them in a state keyed by
    the seed and put back afterwards. The model must be built on the CPU.

    Args:
        factory: Builds the model.
        seed: The run's seed.

    Returns:
        The model.
    """
    with torch.random.fork_rng(devices=[]):
        torch.random.set_rng_state(stream(seed, "initial weights").get_state())
        return factory()


class LeNet5(nn.Module):
    """LeNet-5 in its usual modern reading, for 32 x 32 colour images: 62,006 parameters.

    Args:
        classes: How many labels there are.
    """

    @checked
    def __init__(self, classes: Count = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images, (n, 3, 32, 32), to logits, (n, classes)."""
        # ReLU is monotone, so max-pooling first gives the same numbers for a quarter of the ReLUs.
        # Two channels of zeros beside conv1's six change no number either, and processors take
        # eight at a time: a sixth of a local step.
        weight, bias = self.conv1.parameters()
        x = conv2d(x, pad(weight, (0, 0, 0, 0, 0, 0, 0, 2)), pad(bias, (0, 2)))
        x = relu(max_pool2d(x, 2))  # (n, 8, 14, 14)
        x = conv2d(x, pad(self.conv2.weight, (0, 0, 0, 0, 0, 2)), self.conv2.bias)
        x = relu(max_pool2d(x, 2))  # (n, 16, 5, 5)
        x = relu(self.fc1(x.flatten(1)))
        x = relu(self.fc2(x))
        logits: Tensor = self.fc3(x)
        return logits


class ResNet18(nn.Module):
    """ResNet-18 for 32 x 32 images: a 3 x 3 stem without pooling. 11,173,962 parameters.

    A narrower one has the same shape: with a width of 16 it has 701,466 parameters.

    GroupNorm stands where the original has BatchNorm, whose running statistics are neither weights
    nor comparable between clients with different data.

    Args:
        classes: How many labels there are.
        groups: Into how many groups GroupNorm divides the channels of each layer.
        width: Channels of the stem and the first stage; each later stage has twice as many.

    Raises:
        InvalidError: The width is no multiple of the groups.
    """

    @checked
    def __init__(
        self,
        classes: Count = 10,
        groups: Literal[1, 2, 4, 8, 16, 32, 64] = 2,
        width: Count = 64,
    ) -> None:
        if width % groups:
            raise InvalidError(
                f"ResNet18: {width} channels cannot be divided into {groups} groups. Choose a "
                f"width that is a multiple of groups."
            )
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(groups, width)
        self.stages = nn.Sequential(
            _stage(width, width, stride=1, groups=groups),
            _stage(width, 2 * width, stride=2, groups=groups),
            _stage(2 * width, 4 * width, stride=2, groups=groups),
            _stage(4 * width, 8 * width, stride=2, groups=groups),
        )
        self.head = nn.Linear(8 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images, (n, 3, 32, 32), to logits, (n, classes)."""
        x = relu(self.norm(self.stem(x)))  # (n, width, 32, 32)
        x = self.stages(x)  # (n, 8 * width, 4, 4)
        logits: Tensor = self.head(x.mean((2, 3)))
        return logits


class _ResidualBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(groups, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(groups, outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.GroupNorm(groups, outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = relu(self.norm1(self.conv1(x)))
        return relu(self.norm2(self.conv2(out)) + self.shortcut(x))


def _stage(inputs: int, outputs: int, stride: int, groups: int) -> nn.Sequential:
    return nn.Sequential(
        _ResidualBlock(inputs, outputs, stride, groups),
        _ResidualBlock(outputs, outputs, 1, groups),
    )


class CharGRU(nn.Module):
    """Guesses the character after a window of characters: 63,952 parameters for 80 symbols.

    Args:
        vocabulary: How many symbols there are.
        embedding: How many numbers stand for a symbol.
        hidden: How many numbers the GRU remembers.
    """

    @checked
    def __init__(self, vocabulary: Count = 80, embedding: Count = 8, hidden: Count = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.gru = nn.GRU(embedding, hidden, batch_first=True)
        self.head = nn.Linear(hidden, vocabulary)

    def forward(self, x: Tensor) -> Tensor:
        """Maps integer codes, (n, window), to logits of the next symbol, (n, vocabulary)."""
        states, _ = self.gru(self.embedding(x.long()))  # (n, window, hidden)
        logits: Tensor = self.head(states[:, -1])
        return logits


class LogisticRegression(nn.Module):
    """One linear layer; inputs of any shape are flattened.

    Args:
        features: How many numbers an input has.
        classes: How many labels there are.
    """

    @checked
    def __init__(self, features: Count, classes: Count) -> None:
        super().__init__()
        self.linear = nn.Linear(features, classes)

    @classmethod
    def for_dataset(cls, dataset: FederatedDataset) -> Self:
        """Makes one as wide as the data asks."""
        if dataset.num_classes is None:
            raise InvalidError("Logistic regression needs a data set with classes (num_classes).")
        return cls(dataset.client(0)[0][0].numel(), dataset.num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Maps inputs, (n, ...), to logits, (n, classes)."""
        logits: Tensor = self.linear(x.flatten(1))
        return logits


class Quadratic(nn.Module):
    """The point w itself, for `fedvarp.data.quadratics`; starts at zero.

    Args:
        dim: How many numbers w has.
    """

    @checked
    def __init__(self, dim: Count) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(dim))

    @classmethod
    def for_dataset(cls, dataset: FederatedDataset) -> Self:
        """Makes one of the data's own dimension."""
        return cls(len(dataset.client(0)[0][0]))

    @staticmethod
    def loss(offset: Tensor, curvature: Tensor) -> Tensor:
        """The loss that goes with it: `quadratic_loss`."""
        return quadratic_loss(offset, curvature)

    def forward(self, x: Tensor) -> Tensor:
        """Maps examples, (n, d), to the offset of w from each, (n, d)."""
        return self.w - x


def quadratic_loss(offset: Tensor, curvature: Tensor) -> Tensor:
    """Computes the mean over examples of ½ (w − x)ᵀ diag(h) (w − x).

    Args:
        offset: (n, d), w − x of each example, as `Quadratic` gives it.
        curvature: (n, d), h of each example.

    Returns:
        The loss, ().
    """
    return 0.5 * (curvature * offset.square()).sum(1).mean()
