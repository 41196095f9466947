"""Clusters from what clients would send: k-means on sketches of their gradients or updates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import torch
from pydantic import InstanceOf, SkipValidation
from torch import Tensor

from fedvarp.clients import local_training
from fedvarp.clients.gradients import ClientGradients, Track, untracked
from fedvarp.clients.local_sgd import LocalSGD
from fedvarp.clients.local_training import Loss
from fedvarp.clusters.k_means import k_means
from fedvarp.clusters.sketch import DEFAULT_SIZE, Sketch
from fedvarp.data.federated_dataset import FederatedDataset
from fedvarp.errors import InvalidError
from fedvarp.server.flat_model import FlatModel
from fedvarp.settings.bounds import Count, Seed
from fedvarp.settings.checked import checked

SketchOf = Literal["gradients", "updates"]


@checked
def by_gradients(
    dataset: InstanceOf[FederatedDataset],
    model: FlatModel,
    loss: Loss,
    *,
    local_sgd: LocalSGD,
    w: Tensor,
    num_clusters: Count,
    of: SketchOf = "gradients",
    buffers: InstanceOf[Mapping[str, Tensor]] | None = None,
    round: int = 0,
    seed: Seed = 0,
    sketch_size: Count = DEFAULT_SIZE,
    track: Annotated[Track, SkipValidation] = untracked,
) -> Tensor:
    """Finds K clusters by k-means on sketches of all clients' gradients at w, or of their updates.

    In a real federation every client would send its sketch: `sketch_size` numbers, not d.

    Args:
        dataset: The clients' examples.
        model: Computes the output; its parameters end up bound to another vector.
        loss: (output, targets) → mean loss of a batch.
        local_sgd: What a client does.
        w: (d,).
        num_clusters: K.
        of: "gradients" ∇f_i(w), one pass over the data; or "updates" Δ_i, a whole local training.
        buffers: The model's buffers at w.
        round: t, the key of the draws.
        seed: The run's seed.
        sketch_size: Numbers in a sketch.
        track: Goes through the clients, perhaps with a progress bar.

    Returns:
        (N,) int64, c_i in 0 … K-1.

    Raises:
        ValueError: If there are fewer clients than clusters, or no clusters.
    """
    if num_clusters > dataset.num_clients:
        raise InvalidError(
            f"{dataset.num_clients} clients cannot form {num_clusters} clusters: choose from 1 to "
            f"{dataset.num_clients}."
        )
    gradients = ClientGradients(dataset, model, loss, local_sgd, w, buffers or {}, seed)
    sketch = Sketch(model.dim, sketch_size, seed, w.device)
    sketches = torch.zeros(dataset.num_clients, sketch.size, dtype=torch.float64)
    for client in track(range(dataset.num_clients), f"Sketching {of}"):
        if of == "gradients":
            vector = gradients.gradient(client, w)
        else:
            if buffers:
                model.load_buffers(buffers)
            examples = gradients.examples(client)
            vector = local_training.train(
                local_sgd, model, loss, w, examples, seed=seed, round=round, client=client
            ).delta
        sketches[client] = torch.nan_to_num(sketch(vector), posinf=0.0, neginf=0.0)
    return k_means(sketches, num_clusters, seed)
