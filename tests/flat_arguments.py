"""Arguments of `simulate` under short flat names, for tests that vary one setting at a time."""

from __future__ import annotations

from typing import Any, Final

import torch

from fedvarp import Evaluation, Recording, Table, Trainer
from fedvarp.clients.sampling import WeightedSampler

_EVALUATION: Final = {"evaluate_every": "every"} | {
    name: name for name in ("num_train_clients", "num_test_examples", "target_accuracy")
}
_RECORDING: Final = {n: n for n in ("out", "resume", "commit_every", "fsync", "progress")}
_TABLE: Final = {n: n for n in ("where", "codec", "clusters", "recluster_every")}
_TRAINER: Final = {n: n for n in ("workers", "compile", "exact", "device", "threads")}


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
    if "client_weights" in given:
        weights = given.pop("client_weights")
        size, seed = given["clients_per_round"], given.get("seed", 0)
        equal = torch.ones(len(weights))
        given["clients_per_round"] = WeightedSampler(equal, size, seed, objective=weights)
    return given
