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

from torch import nn

from benchmarks.workload import Settings

SOURCES = Path(__file__).parents[1] / "src" / "fedvarp"


def without_the_package() -> None:
    """Makes `fedvarp.models` importable without `fedvarp/__init__.py` and its dependencies."""
    if "fedvarp" not in sys.modules:
        bare = types.ModuleType("fedvarp")
        bare.__path__ = [str(SOURCES)]
        sys.modules["fedvarp"] = bare


def make_model(settings: Settings) -> nn.Module:
    """The workload's model; the same initial weights for everybody."""
    models: Any = importlib.import_module("fedvarp.models")
    factory = getattr(models, settings.model)
    model: nn.Module = models.initialised(lambda: factory(*settings.model_arguments), seed=0)
    return model
