"""FedAvg as a competent user of PyTorch would write it: no framework, no fedvarp."""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from benchmarks.rounds.contestant import Pace
from benchmarks.rounds.workload import Workload, load, make_model, without_the_package


def train(model: nn.Module, workload: Workload, client: int) -> None:
    """Local SGD from the weights the model has."""
    x, y = workload.client(client)
    optimizer = torch.optim.SGD(model.parameters(), lr=workload.settings.lr)
    for _ in range(workload.settings.epochs):
        for batch in torch.split(torch.randperm(len(x)), workload.settings.batch_size):
            optimizer.zero_grad()
            loss = cross_entropy(model(x[batch]), y[batch])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()


def plain_loop(workload: Workload) -> Generator[None, None, None]:
    """One client after the other, in one thread; a round for each item."""
    torch.set_num_threads(1)
    model = make_model(workload.settings)
    w = parameters_to_vector(model.parameters()).detach()
    while True:
        total = torch.zeros_like(w)
        for client in cohort(workload):
            with torch.no_grad():
                vector_to_parameters(w.clone(), model.parameters())
            train(model, workload, client)
            total += parameters_to_vector(model.parameters()).detach()
        w = total / workload.settings.clients_per_round
        yield


def two_workers(workload: Workload, folder: Path) -> Generator[None, None, None]:
    """Two processes of one thread take clients from one queue; weights in shared memory."""
    context = mp.get_context("spawn")
    model = make_model(workload.settings)
    w = parameters_to_vector(model.parameters()).detach()
    trained = torch.empty(workload.settings.clients_per_round, len(w))
    for shared in (w, trained):
        shared.share_memory_()  # type: ignore[no-untyped-call]
    tasks, done = context.SimpleQueue(), context.SimpleQueue()
    arguments = (folder, w, trained, tasks, done)
    workers = [context.Process(target=work, args=arguments, daemon=True) for _ in range(2)]
    for worker in workers:
        worker.start()
    try:
        while True:
            clients = cohort(workload)
            for place, client in enumerate(clients):
                tasks.put((place, client))
            for _ in clients:
                done.get()
            torch.mean(trained, 0, out=w)
            yield
    finally:
        for _ in workers:
            tasks.put(None)
        for worker in workers:
            worker.join()


def work(folder: Path, w: Tensor, trained: Tensor, tasks: Any, done: Any) -> None:
    """One of the two: trains clients until there is no more work."""
    without_the_package()
    torch.set_num_threads(1)
    workload = load(folder)
    model = make_model(workload.settings)
    while (task := tasks.get()) is not None:
        place, client = task
        with torch.no_grad():
            vector_to_parameters(w.clone(), model.parameters())
        train(model, workload, client)
        trained[place] = parameters_to_vector(model.parameters()).detach()
        done.put(place)


def cohort(workload: Workload) -> list[int]:
    """Who takes part in a round."""
    drawn = torch.randperm(workload.num_clients)[: workload.settings.clients_per_round]
    return [int(client) for client in drawn]


def main(how: str, folder: Path) -> None:
    """Runs rounds at the pace the benchmark sets."""
    without_the_package()
    workload = load(folder)
    pace = Pace()
    rounds = plain_loop(workload) if how == "plain" else two_workers(workload, folder)
    for _ in range(pace.rounds):
        pace()
        next(rounds)
    pace()
    rounds.close()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
