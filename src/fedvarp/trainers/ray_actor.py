"""What runs in a Ray actor: the sequential trainer, one client at a time."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedvarp.algorithms.round_updates import RoundUpdates
from fedvarp.clients.local_sgd import LocalSGD
from fedvarp.clients.local_training import Loss
from fedvarp.data.federated_dataset import FederatedDataset
from fedvarp.server.flat_model import FlatModel
from fedvarp.server.server import Broadcast
from fedvarp.system.processes import keep_freed_memory
from fedvarp.trainers.replayed_gradient import ReplayedGradient
from fedvarp.trainers.sequential import SequentialTrainer


@dataclass(frozen=True, eq=False)
class TrainingJob:
    """What all clients have in common.

    Attributes:
        module: The model.
        loss: (output, targets) → mean loss of a batch.
        local_sgd: What a client does.
        seed: The run's seed.
    """

    module: nn.Module
    loss: Loss
    local_sgd: LocalSGD
    seed: int


class ClientActor:
    """Trains clients in a process of a Ray cluster, one at a time.

    Args:
        dataset: The clients' examples, possibly in read-only memory that the actors of a machine
            share.
        job: The rest of what training needs.
    """

    def __init__(self, dataset: FederatedDataset, job: TrainingJob) -> None:
        import ray

        keep_freed_memory()
        torch.set_num_threads(1)  # the sums of floats depend on it
        _register(ray)
        own = copy.deepcopy(job)  # shared memory is read-only, and buffers will be written
        model = FlatModel(own.module)
        gradient_of = ReplayedGradient.where_safe(model, own.loss)
        self._trainer = SequentialTrainer(
            dataset, model, own.loss, own.local_sgd, own.seed, gradient_of
        )

    def ready(self) -> None:
        """Returns once the actor is up."""

    def train(
        self, broadcast: Broadcast, client: int, correction: Tensor | None, round: int
    ) -> RoundUpdates:
        """Runs LocalSGD at one client.

        Args:
            broadcast: What all clients of the round are sent; its clients and corrections are not
                looked at.
            client: i.
            correction: (d,), added to each of its gradients.
            round: t.

        Returns:
            The update of that client alone.
        """
        rows = None if correction is None else correction[None]
        sent = replace(broadcast, clients=torch.tensor([client]), corrections=rows)
        return self._trainer.train(sent, sent.clients, round)


@contextmanager
def tensors_in_shared_memory(ray: Any) -> Iterator[None]:
    """Within, tensors go into Ray's object store such that they are read without a copy.

    Args:
        ray: The module `ray`, connected.

    Yields:
        Nothing; what was read from the store must not be written to.
    """
    _register(ray)
    try:
        yield
    finally:
        ray.util.deregister_serializer(Tensor)  # tensors that others send are none of our business


def _register(ray: Any) -> None:
    ray.util.register_serializer(Tensor, serializer=_packed, deserializer=_unpacked)


Packed = tuple[NDArray[np.uint8], torch.dtype, torch.Size]


def _packed(tensor: Tensor) -> Packed:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy(), flat.dtype, tensor.shape


def _unpacked(packed: Packed) -> Tensor:
    octets, dtype, shape = packed
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(octets).view(dtype).reshape(shape)
