"""What each codec takes per row, and what it adds to the direction v on real updates."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks.timing import table
from fedvarp import FedVARP, FlatModel, LocalSGD, MemoryTable, Server, ServerSGD
from fedvarp.clients.sampling import UniformSampler
from fedvarp.data import digits
from fedvarp.models import initialised
from fedvarp.tables import CODECS
from fedvarp.trainers import SequentialTrainer

LENET, RESNET = 62_006, 11_173_962
ROUNDS, WARM_UP, COHORT = 150, 50, 5


def measure() -> str:
    """Every table sees the same updates; the model follows the float32 one."""
    dataset = digits()
    model = FlatModel(
        initialised(
            lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10)),
            seed=0,
        )
    )
    trainer = SequentialTrainer(
        dataset, model, cross_entropy, LocalSGD(lr=0.1, batch_size=10, epochs=5), seed=0
    )
    sampler = UniformSampler(dataset.num_clients, COHORT, seed=0)
    others = {
        name: FedVARP(MemoryTable(dataset.num_clients, model.dim, name))
        for name, codec in CODECS.items()
        if codec.dtype == torch.float32
    }
    states = MemoryTable(dataset.num_clients, model.dim)
    server = Server(model.vector(), FedVARP(states), ServerSGD())
    errors: dict[str, list[float]] = {name: [] for name in others}
    for t in range(ROUNDS):
        clients = sampler.cohort(t).clients
        updates = trainer.train(server.broadcast(clients), clients, t)
        exact = others["float32"].aggregate(updates)
        for name, aggregator in others.items():
            v = aggregator.aggregate(updates) if name != "float32" else exact
            if t >= WARM_UP:
                errors[name].append(float((v - exact).norm() / exact.norm()))
        server.receive(updates)

    rows = [
        [
            name,
            f"{CODECS[name].row_bytes(LENET) / 1e3:.0f} kB",
            f"{CODECS[name].row_bytes(RESNET) / 1e6:.1f} MB",
            f"{4 * RESNET / CODECS[name].row_bytes(RESNET):.2f} ×",
            f"{torch.tensor(errors[name]).median():.1e}",
            f"{max(errors[name]):.1e}",
        ]
        for name in others
    ]
    header = [
        "codec",
        "row, LeNet-5",
        "row, ResNet-18",
        "smaller than float32",
        "relative error of v, median",
        "largest",
    ]
    title = (
        f"Codecs; errors over rounds {WARM_UP} to {ROUNDS} of FedVARP on digits, d = {model.dim:,}"
    )
    return table(title, header, rows)
