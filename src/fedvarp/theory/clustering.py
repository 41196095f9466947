"""Clusterings to choose from: by labels, by what the data says, by what the gradients say.

Storage against variance: `curve` gives σ_K² for any number of rows K.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedvarp.data import FederatedDataset
from fedvarp.flat_model import FlatModel
from fedvarp.local_sgd import LocalSGD, Loss
from fedvarp.progress import counted
from fedvarp.theory.client_gradients import ClientGradients
from fedvarp.theory.k_means import k_means
from fedvarp.theory.measurements import Measurements
from fedvarp.theory.sketch import DEFAULT_SIZE, Sketch

Of = Literal["gradients", "updates"]


@dataclass(frozen=True)
class CurvePoint:
    """What K rows buy.

    Attributes:
        num_clusters: K.
        sigma_K2: The variance within the clusters that k-means finds.
        share_removed: 1 − σ_K² / σ_g², of the variance between clients.
    """

    num_clusters: int
    sigma_K2: float
    share_removed: float


def curve(
    measured: Measurements,
    numbers: Sequence[int] | None = None,
    *,
    extra: Sequence[int] = (),
    seed: int = 0,
) -> list[CurvePoint]:
    """σ_K² of k-means clusters for several K, from the sketches of a measurement of all clients.

    Clusters are found in one sketch and judged by another: judged by the sketch they were fitted to
    they would look better than they are.

    Args:
        measured: What `measure` found, over all clients.
        numbers: The K to try; powers of two, N, and the K of the measured clusters unless given.
        extra: More K to try.
        seed: Keys the starts of k-means.
    """
    if not measured.of_all_clients:
        raise ValueError(
            f"Only {len(measured.clients)} of {measured.num_clients} clients were measured; the "
            f"others have no cluster. Measure all of them for this curve."
        )
    N = measured.num_clients
    if numbers is None:
        own = [] if measured.cluster_sizes is None else [len(measured.cluster_sizes)]
        numbers = [*(2**power for power in range(N.bit_length()) if 2**power < N), N, *own]
    points = []
    for K in sorted({*numbers, *extra}):
        sigma_K2 = measured.heterogeneity_within(k_means(measured.sketches, K, seed))
        removed = 1 - sigma_K2 / measured.sigma_g2.value if measured.sigma_g2.value > 0 else 0.0
        points.append(CurvePoint(K, sigma_K2, removed))
    return points


def by_label_sets(dataset: FederatedDataset) -> Tensor:
    """(N,) int64: clients that hold the same labels form a cluster."""
    if dataset.num_classes is None:
        raise ValueError(
            "This data set has no classes (num_classes), so clients cannot be grouped by labels. "
            'clusters = "auto:K" groups them by their gradients.'
        )
    sets = [
        tuple(sorted(set(dataset.client(i)[1].flatten().tolist())))
        for i in range(dataset.num_clients)
    ]
    numbers = {labels: k for k, labels in enumerate(sorted(set(sets)))}
    return torch.tensor([numbers[labels] for labels in sets])


def by_gradients(
    dataset: FederatedDataset,
    model: FlatModel,
    loss: Loss,
    *,
    local_sgd: LocalSGD,
    w: Tensor,
    num_clusters: int,
    of: Of = "gradients",
    buffers: Mapping[str, Tensor] | None = None,
    round: int = 0,
    seed: int = 0,
    sketch_size: int = DEFAULT_SIZE,
    progress: bool | None = None,
) -> Tensor:
    """(N,) int64: k-means on sketches of all clients' gradients at w, or of their updates.

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
        progress: Whether to show a bar; None: in a terminal.
    """
    if not 1 <= num_clusters <= dataset.num_clients:
        raise ValueError(
            f"{dataset.num_clients} clients cannot form {num_clusters} clusters: choose from 1 to "
            f"{dataset.num_clients}."
        )
    gradients = ClientGradients(dataset, model, loss, local_sgd, w, buffers or {}, seed)
    sketch = Sketch(model.dim, sketch_size, seed, w.device)
    sketches = torch.zeros(dataset.num_clients, sketch.size, dtype=torch.float64)
    for client in counted(range(dataset.num_clients), f"Sketching {of}", progress):
        if of == "gradients":
            vector = gradients.gradient(client, w)
        else:
            if buffers:
                model.load_buffers(buffers)
            examples = gradients.examples(client)
            vector = local_sgd.train(
                model, loss, w, examples, seed=seed, round=round, client=client
            ).delta
        sketches[client] = torch.nan_to_num(sketch(vector), posinf=0.0, neginf=0.0)
    return k_means(sketches, num_clusters, seed)
