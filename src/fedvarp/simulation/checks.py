"""What a simulation refuses before it begins."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedvarp.clients.sampling import ClientSampler
from fedvarp.data import FederatedDataset
from fedvarp.runs.directory import RunDirectory
from fedvarp.runs.errors import RunError
from fedvarp.runs.identity import refuse_other_settings


def refuse_impossible(
    rounds: int,
    evaluate_every: int,
    commit_every: int,
    states: str,
    out: str | os.PathLike[str] | None,
) -> None:
    """Raises ValueError for numbers out of range, and for a table on disk without a place."""
    for name, value in (
        ("rounds", rounds),
        ("evaluate_every", evaluate_every),
        ("commit_every", commit_every),
    ):
        if value < 1:
            raise ValueError(f"{name}={value} must be at least 1.")
    if states not in ("memory", "disk"):
        raise ValueError(f'states={states!r} must be "memory" or "disk".')
    if states == "disk" and out is None:
        raise ValueError('states="disk" keeps rows in the run directory: say where with out="…".')


def refuse_target(
    target: float | None, dataset: FederatedDataset, num_test_examples: int | None
) -> None:
    """Raises ValueError for an accuracy that cannot be reached because there is none."""
    if target is None:
        return
    if not 0 < target <= 1:
        raise ValueError(f"target_accuracy={target} must be above 0 and at most 1, as in 0.5.")
    if dataset.test is None or dataset.num_classes is None or num_test_examples == 0:
        raise ValueError(
            "target_accuracy needs a data set with test examples and num_classes, and "
            "num_test_examples above 0; without them there is no accuracy to reach."
        )


def refuse_two_objectives(
    client_weights: Tensor | None,
    cluster_of: Tensor | None,
    sampler: ClientSampler | None,
    clients_per_round: int | None,
    dataset: FederatedDataset,
) -> None:
    """Raises ValueError unless the cohort's average and the table's mean weigh clients alike.

    Else the algorithms of one comparison would have different optima.
    """
    for name, values in (("client_weights", client_weights), ("cluster_of", cluster_of)):
        if values is not None and tuple(values.shape) != (dataset.num_clients,):
            raise ValueError(
                f"{name} has shape {tuple(values.shape)}; give one number for each of the "
                f"{dataset.num_clients} clients."
            )
    if sampler is None:
        return
    if clients_per_round is not None:
        raise ValueError("Give clients_per_round or a sampler; a sampler knows its own number.")
    known = getattr(sampler, "num_clients", dataset.num_clients)
    if known != dataset.num_clients:
        raise ValueError(
            f"The sampler is for {known} clients, the data set has {dataset.num_clients}."
        )
    equal = torch.ones(dataset.num_clients, dtype=torch.float64)
    objective = getattr(sampler, "objective", None)
    drawn = equal if objective is None else torch.as_tensor(objective).double()
    stored = equal if client_weights is None else client_weights.double()
    if not torch.allclose(drawn / drawn.sum(), stored / stored.sum()):
        raise ValueError(
            "The sampler weighs the clients' updates by another objective than client_weights "
            "says, so that cohort and table would pull to different optima. Give the same weights "
            "to WeightedSampler(objective=…) and to client_weights."
        )


def refuse_another_run(directory: RunDirectory, settings: Mapping[str, Any], resume: bool) -> None:
    """Raises RunError if the directory holds a run that is not this one, or not to be resumed."""
    if not directory.exists:
        return
    if resume:
        refuse_other_settings(directory, settings)
        directory.refuse_without_checkpoint()
    else:
        raise RunError(
            f"{directory.path} holds a run already. Go on with it by resume=True, or choose "
            f"another directory."
        )
