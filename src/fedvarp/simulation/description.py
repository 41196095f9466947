"""What a run is, in words that a file can keep and a resumed run can be held against."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedvarp.data.federated_dataset import FederatedDataset
from fedvarp.server.optimizers import ServerOptimizer
from fedvarp.settings.section import Section

_LONGEST_LIST = 64  # numbers written out; longer tensors are named by their hash


def plain(settings: object) -> dict[str, Any]:
    """An object as TOML can hold it: its class, and its fields if it is a dataclass.

    >>> from fedvarp.clients import UniformSampler
    >>> plain(UniformSampler(num_clients=8, clients_per_round=2, seed=0))["clients_per_round"]
    2
    """
    kept: dict[str, Any] = {"kind": type(settings).__qualname__}
    if dataclasses.is_dataclass(settings):
        for field in dataclasses.fields(settings):
            kept[field.name] = plain_value(getattr(settings, field.name))
    return kept


def fingerprint(dataset_fingerprint: str, model: nn.Module, loss: object) -> str:
    """Names what a run trains: another data set, model or loss has another name.

    Args:
        dataset_fingerprint: `FederatedDataset.fingerprint()`.
        model: Its layers and frozen parameters count; trainable ones are the run's own.
        loss: By its name.

    Returns:
        A short hash.
    """
    digest = hashlib.sha256(f"{dataset_fingerprint} {model} {name_of(loss)}".encode())
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            digest.update(f"{name}{tuple(parameter.shape)}".encode())
            digest.update(_bytes(parameter))
    return digest.hexdigest()[:16]


def name_of(something: object) -> str:
    """The name of a function or class, or of the class of an object: the same in every process."""
    return str(getattr(something, "__qualname__", type(something).__qualname__))


def plain_value(value: object) -> Any:
    """A single setting: numbers as they are, long tensors and mappings by hash, functions by name.

    >>> plain_value({0: [1, 2], 1: []}) == plain_value({1: [], 0: [1, 2]})
    True
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Section):
        return {name: plain_value(part) for name, part in value.as_toml().items()}
    if isinstance(value, ServerOptimizer):
        return dict(value.describe())
    if isinstance(value, FederatedDataset):
        return repr(value)
    if isinstance(value, Tensor):
        if value.numel() <= _LONGEST_LIST:
            return value.tolist()
        return f"{value.numel()} numbers, sha256 {hashlib.sha256(_bytes(value)).hexdigest()[:16]}"
    if isinstance(value, (range, np.ndarray)):
        value = np.asarray(value).tolist()
    if isinstance(value, (list, tuple)) and all(isinstance(x, (int, float)) for x in value):
        return plain_value(torch.tensor(value, dtype=torch.float64))
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return {name: plain_value(entry) for name, entry in value.items()}
    if isinstance(value, Mapping):
        entries = {str(key): plain_value(entry) for key, entry in value.items()}
        text = json.dumps(entries, sort_keys=True)
        return f"{len(entries)} entries, sha256 {hashlib.sha256(text.encode()).hexdigest()[:16]}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain(value)
    return name_of(value)


def _bytes(tensor: Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()
