"""Clients trained by the actors of a Ray cluster, for simulations that outgrow one machine."""

from __future__ import annotations

import copy
import sys
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fedvarp.algorithms.round_updates import RoundUpdates
from fedvarp.clients.local_sgd import LocalSGD
from fedvarp.clients.local_training import Loss
from fedvarp.data.federated_dataset import FederatedDataset
from fedvarp.errors import InvalidError, InvalidTypeError
from fedvarp.server.flat_model import FlatModel
from fedvarp.server.server import Broadcast
from fedvarp.system.processes import usable_cores
from fedvarp.trainers.base import ClientTrainer
from fedvarp.trainers.ray_actor import ClientActor, TrainingJob, tensors_in_shared_memory
from fedvarp.trainers.ray_actor_pool import ActorPool
from fedvarp.trainers.ray_cluster import connect
from fedvarp.trainers.sequential import corrections_by_client


@dataclass(eq=False)
class RayTrainer(ClientTrainer):
    """Trains clients on the CPUs of a Ray cluster, to the same bits as `SequentialTrainer`.

    Data, model and loss are sent once; w is sent once to each machine in a round. The longest
    client is begun first, and whoever is free takes the next one. An actor that dies, alone or with
    its machine, is replaced and its client trained again. The first round starts the actors,
    `close` ends them; or use `with`.

    fedvarp must be installed on all machines. The actors of one machine share the data set's
    tensors in memory that cannot be written to.

    Attributes:
        dataset: The clients' examples.
        model: The model; it is copied, and the original left alone.
        loss: (output, targets) → mean loss of a batch.
        local_sgd: What a client does.
        seed: The run's seed.
        num_workers: How many actors, of one CPU each; None: one for each CPU of the cluster, those
            of machines that join later too, from the next round on.
        address: Of a cluster that is up ("auto": the one of this machine); None: that of
            RAY_ADDRESS, or one that is started here, on 127.0.0.1. Where Ray is connected already,
            that connection is used and left open.

    Raises:
        ValueError: There is to be no actor at all.
    """

    dataset: FederatedDataset
    model: FlatModel
    loss: Loss
    local_sgd: LocalSGD
    seed: int
    _: KW_ONLY
    num_workers: int | None = None
    address: str | None = None
    _ray: Any = field(default=None, init=False, repr=False)
    _actors: ActorPool | None = field(default=None, init=False, repr=False)
    _own_connection: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.num_workers is not None and self.num_workers < 1:
            raise InvalidError(f"RayTrainer: num_workers={self.num_workers} must be at least 1.")

    def train(self, broadcast: Broadcast, clients: Tensor, round: int) -> RoundUpdates:
        """Runs LocalSGD at some clients, on the cluster.

        Args:
            broadcast: What the server sent.
            clients: (M,) int64, those who answer.
            round: t.

        Returns:
            What these clients send back; see `ClientTrainer.train`.

        Raises:
            ImportError: Ray is not installed.
            ConnectionError: No cluster answers.
            TypeError: The data set, the model or the loss cannot be pickled.
            RuntimeError: The cluster has no place for an actor, or a client keeps ending them.
        """
        actors = self._actors or self._start()
        actors.grow(self._wanted)  # machines may have joined
        with tensors_in_shared_memory(self._ray):
            common = self._ray.put(replace(broadcast, corrections=None))
            sent = corrections_by_client(broadcast)
            corrections = {i: self._ray.put(sent[i]) for i in clients.tolist() if sent}

        def submit(actor: Any, client: int) -> Any:
            return actor.train.remote(common, client, corrections.get(client), round)

        done = actors.run(self.dataset.largest_first(clients.tolist()), submit, round)
        singles = [done[client] for client in clients.tolist()]
        return combine(singles, broadcast.w, self.local_sgd.rate(round))

    def close(self) -> None:
        """Ends the actors, and the cluster if it was started here."""
        if self._actors is not None:
            self._actors.close()
            self._actors = None
        if self._own_connection:
            self._ray.shutdown()
            self._own_connection = False

    def _start(self) -> ActorPool:
        self._connect()
        ray = self._ray
        module = copy.deepcopy(self.model.module).cpu()  # its parameters may be views of a vector
        job = TrainingJob(module, self.loss, self.local_sgd, self.seed)
        try:
            with tensors_in_shared_memory(ray):
                dataset = ray.put(replace(self.dataset, test=None))
                parts = ray.put(job)
        except TypeError as error:
            self.close()
            raise InvalidTypeError(
                f"The data set, the model or the loss cannot be sent to other processes: {error}. "
                f"Things such as open files, locks and generators stay where they are; open them "
                f"in the function that loads a client."
            ) from error
        actor = ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0)(ClientActor)
        self._actors = ActorPool(ray, lambda: actor.remote(dataset, parts), self._wanted)
        return self._actors

    @property
    def _wanted(self) -> int:
        return self.num_workers or max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def _connect(self) -> None:
        loaded = sys.modules.get("ray")  # to import it here would be too early: see ray_cluster
        if loaded is not None and loaded.is_initialized():
            self._ray = loaded
            return
        cores = self.num_workers or usable_cores()
        instead = "the other trainers use the cores of this machine."
        self._ray = connect(self.address, cores, instead)
        self._own_connection = True


def combine(singles: list[RoundUpdates], w: Tensor, rate: float) -> RoundUpdates:
    """Makes one round's updates from those of single clients, in the given order.

    Args:
        singles: The updates of one client each; one that was refused has no row.
        w: (d,), for the type and device of the rows.
        rate: η_c of the round.

    Returns:
        The updates that a trainer would give for all of these clients at once.
    """
    kept = [single for single in singles if len(single.clients)]
    none = torch.empty(0, dtype=torch.int64)
    return RoundUpdates(
        clients=torch.cat([none, *(single.clients for single in kept)]),
        deltas=torch.cat([w.new_empty(0, len(w)), *(s.deltas.to(w.device) for s in kept)]),
        num_steps=torch.cat([none, *(single.num_steps for single in kept)]),
        num_examples=torch.cat([none, *(single.num_examples for single in kept)]),
        num_gradients=torch.cat([none.double(), *(single.gradient_counts for single in kept)]),
        scale=rate,
        refused={client: why for s in singles for client, why in s.refused.items()},
        losses={client: loss for s in singles for client, loss in s.losses.items()},
        buffers={
            client: {name: buffer.to(w.device, copy=True) for name, buffer in buffers.items()}
            for single in kept
            for client, buffers in single.buffers.items()
        },
    )
