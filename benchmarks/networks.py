"""The models of fedvarp for those who must not pay for the rest of fedvarp.

The same model code for everybody, but a bare loop or another package shall not have fedvarp's
imports in its start-up time and memory.
"""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu

from benchmarks.workload import Settings

SOURCES = Path(__file__).parents[1] / "src" / "fedvarp"


def without_the_package() -> None:
    """Makes `fedvarp.models` importable without `fedvarp/__init__.py` and its dependencies."""
    if "fedvarp" not in sys.modules:
        bare = types.ModuleType("fedvarp")
        bare.__path__ = [str(SOURCES)]
        sys.modules["fedvarp"] = bare


def make_model(settings: Settings, as_usual: bool = False) -> nn.Module:
    """The workload's model; the same initial weights for everybody.

    Args:
        settings: Of the workload.
        as_usual: Whether LeNet-5 rectifies before it pools, as it is usually written; fedvarp's
            pools first, which gives the same figures sooner.
    """
    models: Any = importlib.import_module("fedvarp.models")
    factory = getattr(models, settings.model)
    model: nn.Module = models.initialised(lambda: factory(*settings.model_arguments), seed=0)
    if as_usual:
        model.forward = types.MethodType(_usual_lenet5, model)
    return model


def _usual_lenet5(self: Any, x: Tensor) -> Tensor:
    x = max_pool2d(relu(self.conv1(x)), 2)
    x = max_pool2d(relu(self.conv2(x)), 2)
    x = relu(self.fc2(relu(self.fc1(x.flatten(1)))))
    logits: Tensor = self.fc3(x)
    return logits
