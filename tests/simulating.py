"""`simulate` with all settings under short flat names, for tests that vary one at a time."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import fedvarp
from fedvarp import (
    Callback,
    Evaluation,
    OnRoundEnd,
    Recording,
    SimulationResult,
    Table,
    Trainer,
)
from fedvarp.clients import Loss, WeightedSampler
from fedvarp.data import FederatedDataset

_EVALUATION: Final = {"evaluate_every": "every"} | {
    name: name for name in ("num_train_clients", "num_test_examples", "target_accuracy")
}
_RECORDING: Final = {
    n: n for n in ("out", "resume", "commit_every", "fsync", "progress", "tensorboard")
}
_TABLE: Final = {n: n for n in ("where", "codec", "clusters", "recluster_every", "clip_updates")}
_TRAINER: Final = {n: n for n in ("workers", "compile", "exact", "device", "threads")}


def simulate(
    dataset: FederatedDataset, model: nn.Module, loss: Loss = cross_entropy, **flat: Any
) -> SimulationResult:
    """`fedvarp.simulate`; functions may stand for callbacks."""
    given = grouped(**flat)
    if "callbacks" in given:
        given["callbacks"] = [
            each if isinstance(each, Callback) else OnRoundEnd(each) for each in given["callbacks"]
        ]
    return fedvarp.simulate(dataset, model, loss, **given)


def grouped(**flat: Any) -> dict[str, Any]:
    """The same for `simulate`: ``evaluate_every=3`` becomes ``evaluation=Evaluation(every=3)``."""
    given = dict(flat)

    def taken(names: dict[str, str]) -> dict[str, Any]:
        return {new: given.pop(old) for old, new in names.items() if old in given}

    evaluation, recording, table, trainer = map(taken, (_EVALUATION, _RECORDING, _TABLE, _TRAINER))
    if evaluation:
        given["evaluation"] = Evaluation(**evaluation)
    if recording:
        given["recording"] = Recording(**recording)
    if table:
        given["table"] = Table(**table)
    if trainer:
        given["trainer"] = Trainer(name=given.get("trainer", "sequential"), **trainer)
    if "sampler" in given:
        given["clients_per_round"] = given.pop("sampler")
    weights = given.pop("client_weights", None)
    if weights is not None and isinstance(given["clients_per_round"], int):
        size, seed = given["clients_per_round"], given.get("seed", 0)
        equal = torch.ones(len(weights))
        given["clients_per_round"] = WeightedSampler(equal, size, seed, objective=weights)
    return given
