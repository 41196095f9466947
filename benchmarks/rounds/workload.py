"""A workload as plain tensors and settings, in files that every contestant reads, and its model.

The same model code for everybody; but a bare loop or another package shall not have fedvarp's
imports in its start-up time and memory, so nothing of fedvarp but its models is imported here.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu

from benchmarks import ROOT

AS_USUAL: Final = "BENCHMARK_USUAL_LENET5"
"""An environment variable: 1 for contestants who run LeNet-5 as it is usually written.

That rectifies before it pools, and has six channels in its first layer; fedvarp's pools first and
pads them to eight: the same figures, sooner where images lie with their channels last.
"""


@dataclass(frozen=True)
class Settings:
    """What a round is.

    Attributes:
        name: "W1", "W2" or "W3".
        source: Where the examples come from, for the table's title.
        model: A class of `fedvarp.models`.
        model_arguments: What it is made with.
        clients_per_round: M.
        epochs: Passes over a client's examples.
        batch_size: The last, smaller batch is kept.
        lr: Of the clients' SGD.
        mean: Subtracted from stored pixels, one a channel; None: examples are stored as used.
        std: What they are divided by then.
    """

    name: str
    source: str
    model: str
    model_arguments: tuple[int, ...]
    clients_per_round: int
    epochs: int
    batch_size: int
    lr: float
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None


@dataclass(frozen=True, eq=False)
class Workload:
    """Clients of equal size, and the settings of a round."""

    settings: Settings
    x: Tensor  # (N, n, ...), pixels as uint8
    y: Tensor  # (N, n) int64

    @property
    def num_clients(self) -> int:
        """N."""
        return len(self.x)

    @property
    def prepare(self) -> Callable[[Tensor], Tensor] | None:
        """What turns stored examples into those the model takes."""
        mean, std = self.settings.mean, self.settings.std
        return None if mean is None or std is None else Normalise(mean, std)

    def client(self, i: int) -> tuple[Tensor, Tensor]:
        """The examples of client i as the model takes them."""
        return (self.x[i] if self.prepare is None else self.prepare(self.x[i])), self.y[i]

    def save(self, folder: Path) -> Path:
        """Writes the workload into that folder; arrays as .npy, which processes map into memory."""
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / "x.npy", self.x.numpy())
        np.save(folder / "y.npy", self.y.numpy())
        (folder / "settings.json").write_text(json.dumps(dataclasses.asdict(self.settings)))
        return folder


@dataclass(frozen=True)
class Normalise:
    """Pixels to floats with mean 0 and variance 1 a channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, pixels: Tensor) -> Tensor:  # (n, c, h, w) uint8 -> float32
        """The normalised pixels."""
        mean = torch.tensor(self.mean).mul(255).view(-1, 1, 1)
        std = torch.tensor(self.std).mul(255).view(-1, 1, 1)
        return pixels.float().sub_(mean).div_(std)


def load(folder: Path) -> Workload:
    """Reads a workload; processes that read the same one share its memory."""
    raw: dict[str, Any] = json.loads((folder / "settings.json").read_text())
    for name in ("model_arguments", "mean", "std"):
        raw[name] = None if raw[name] is None else tuple(raw[name])
    settings = Settings(**raw)
    # Copy on write: nobody writes, and torch warns of arrays that it may not write to.
    x, y = (torch.from_numpy(np.load(folder / name, mmap_mode="c")) for name in ("x.npy", "y.npy"))
    return Workload(settings, x, y)


def without_the_package() -> None:
    """Makes `fedvarp.models` importable without `fedvarp/__init__.py` and its dependencies."""
    if "fedvarp" not in sys.modules:
        bare = types.ModuleType("fedvarp")
        bare.__path__ = [str(ROOT / "src" / "fedvarp")]
        sys.modules["fedvarp"] = bare


def make_model(settings: Settings) -> nn.Module:
    """The workload's model, as the environment has it; the same initial weights for everybody."""
    models: Any = importlib.import_module("fedvarp.models")
    factory = getattr(models, settings.model)
    model: nn.Module = models.initialised(lambda: factory(*settings.model_arguments), seed=0)
    if settings.model == "LeNet5" and os.environ.get(AS_USUAL) == "1":
        model.forward = types.MethodType(_usual_lenet5, model)
    return model


def _usual_lenet5(self: Any, x: Tensor) -> Tensor:
    x = max_pool2d(relu(self.conv1(x)), 2)
    x = max_pool2d(relu(self.conv2(x)), 2)
    x = relu(self.fc2(relu(self.fc1(x.flatten(1)))))
    logits: Tensor = self.fc3(x)
    return logits
