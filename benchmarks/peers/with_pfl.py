"""A workload in pfl-research: its simulated backend, in one process or two."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.rounds.contestant import Pace
from benchmarks.rounds.workload import Workload, load, make_model, without_the_package

RANK, ADDRESSES, STORE = "PFL_WORKER_RANK", "PFL_WORKER_ADDRESSES", "BENCHMARK_STORE"


class WithLoss(nn.Module):
    """What pfl asks of a model beside its output."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """What local training lowers."""
        return cross_entropy(self.network(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        """What pfl reports of a user, in the rounds it evaluates."""
        from pfl.metrics import Weighted  # type: ignore[import-not-found]

        return {"loss": Weighted(float(self.loss(x, y)) * len(y), len(y))}


def meet_in_a_file() -> None:
    """Lets pfl's processes find each other through a file.

    By itself pfl has torch open a port for that, which torch does on all networks. Once they have
    met, they talk over loopback either way.
    """
    initialise = torch.distributed.init_process_group

    def through_file(backend: str, init_method: str, rank: int, world_size: int) -> None:
        initialise(backend, f"file://{os.environ[STORE]}", rank=rank, world_size=world_size)

    torch.distributed.init_process_group = through_file  # type: ignore[assignment]


def run(workload: Workload) -> None:
    """Federated averaging without evaluation."""
    meet_in_a_file()
    from pfl.aggregate.simulate import SimulatedBackend  # type: ignore[import-not-found]
    from pfl.algorithm.base import NNAlgorithmParams  # type: ignore[import-not-found]
    from pfl.algorithm.federated_averaging import (  # type: ignore[import-not-found]
        FederatedAveraging,
    )
    from pfl.callback.base import TrainingProcessCallback  # type: ignore[import-not-found]
    from pfl.data.federated_dataset import FederatedDataset  # type: ignore[import-not-found]
    from pfl.data.pytorch import PyTorchTensorDataset  # type: ignore[import-not-found]
    from pfl.data.sampling import get_user_sampler  # type: ignore[import-not-found]
    from pfl.hyperparam import (  # type: ignore[import-not-found]
        NNEvalHyperParams,
        NNTrainHyperParams,
    )
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel  # type: ignore[import-not-found]

    class Paced(TrainingProcessCallback):  # type: ignore[misc]
        """Waits between rounds."""

        def on_train_begin(self, *, model: Any) -> Any:
            wait()
            return Metrics()

        def after_central_iteration(
            self, aggregate_metrics: Any, model: Any, *, central_iteration: int
        ) -> tuple[bool, Any]:
            wait()
            return False, Metrics()

    rounds, wait = paced()
    np.random.seed(0)  # the same in all processes, as pfl asks for
    settings = workload.settings
    users = FederatedDataset(
        lambda user: PyTorchTensorDataset(workload.client(user), user_id=str(user)),
        get_user_sampler("random", list(range(workload.num_clients))),
    )
    module = WithLoss(make_model(settings))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds + 1,
            train_cohort_size=settings.clients_per_round,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=users, val_data=users),
        PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0)),
        NNTrainHyperParams(
            local_batch_size=settings.batch_size,
            local_num_epochs=settings.epochs,
            local_learning_rate=settings.lr,
        ),
        NNEvalHyperParams(local_batch_size=None),
        [Paced()],
    )


def paced() -> tuple[int, Callable[[], None]]:
    """How many rounds there will be, and what to call between them.

    The first process keeps the pace; the second must not run ahead of it.
    """
    rounds = torch.zeros(1, dtype=torch.int64)
    pace = Pace() if os.environ.get(RANK, "0") == "0" else None
    if pace is not None:
        rounds += pace.rounds
    if RANK in os.environ:
        torch.distributed.broadcast(rounds, src=0)

    def wait() -> None:
        if pace is not None:
            pace()
        if RANK in os.environ:
            torch.distributed.barrier()

    return int(rounds), wait


@contextlib.contextmanager
def second_process(folder: Path) -> Iterator[None]:
    """This process becomes the first of two, set up as pfl's guide to distributed runs says."""
    with tempfile.TemporaryDirectory() as meeting:
        os.environ |= {
            ADDRESSES: "localhost:8000,localhost:8001",  # pfl counts them; see meet_in_a_file
            STORE: str(Path(meeting) / "store"),
            "GLOO_SOCKET_IFNAME": "lo",
        }
        command = [sys.executable, "-m", "benchmarks.peers.with_pfl", "2", str(folder)]
        other = subprocess.Popen(command, env=os.environ | {RANK: "1"})
        os.environ[RANK] = "0"
        try:
            yield
        finally:
            other.wait()


def main(processes: int, folder: Path) -> None:
    """Runs alone, or as one of two."""
    without_the_package()
    torch.set_num_threads(1)  # as torchrun does for each of its processes
    first_of_two = processes == 2 and RANK not in os.environ
    with second_process(folder) if first_of_two else contextlib.nullcontext():
        run(load(folder))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
