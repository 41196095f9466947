"""The path of another device than the CPU, without one: nothing on the wrong side, no waiting.

Tensors on "meta" have a shape, a dtype and a device, and no numbers. Whatever needs a number in
Python (`item()`, `tolist()`, a branch), for which a GPU would have to finish all it has been given,
raises an error; and so does, here, any operation that mixes devices. That the kernels of a real GPU
give the right figures is not shown: none has run this.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedvarp import Broadcast, FlatModel, LocalSGD
from fedvarp.clients import local_training
from fedvarp.data import FederatedDataset
from fedvarp.data.federated_dataset import Examples
from fedvarp.models import LeNet5
from fedvarp.server.optimizers import ServerSGD
from fedvarp.tables.codecs import CODECS
from fedvarp.tables.exchange import Direction, exchange_rows
from fedvarp.trainers import VectorisedTrainer
from fedvarp.trainers.batched_cohort import BatchedCohort

ELSEWHERE = torch.device("meta")
SETTINGS = [
    LocalSGD(lr=0.1, batch_size=4, epochs=2),
    LocalSGD(lr=0.1, batch_size=4, steps=3, momentum=0.9, weight_decay=0.1, clip_norm=1.0),
]


class OneDevice(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it so
    """Refuses operations on tensors of several devices, but copies, and numbers of the CPU."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: torch would import all of torch.compile to skip it."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        devices = {t.device.type for t in tensors if t.ndim or t.device.type != "cpu"}
        if len(devices) > 1 and func.overloadpacket is not torch.ops.aten.copy_:
            raise RuntimeError(f"{func} on several devices: {sorted(devices)}")
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def one_device() -> Iterator[None]:
    with OneDevice():  # type: ignore[no-untyped-call]
        yield


def some_examples(n: int, device: torch.device, shape: tuple[int, ...] = (5,)) -> Examples:
    return torch.randn(n, *shape, device=device), torch.randint(3, (n,), device=device)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)).to(ELSEWHERE)


def test_such_tensors_notice_what_they_are_to_notice() -> None:
    here, there = torch.ones(3), torch.ones(3, device=ELSEWHERE)
    for mix in (torch.add, torch.mul, torch.dot):
        with pytest.raises(RuntimeError, match="device"):
            mix(here, there)
    with pytest.raises(RuntimeError, match="device"):
        there.index_select(0, torch.tensor([0]))
    for ask in (torch.Tensor.item, torch.Tensor.__bool__, torch.Tensor.tolist):
        with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
            ask(there.sum())


@pytest.mark.parametrize("sgd", SETTINGS, ids=str)
@pytest.mark.parametrize("image", [False, True])
def test_the_local_loop(sgd: LocalSGD, image: bool) -> None:
    model = FlatModel(LeNet5(3).to(ELSEWHERE) if image else perceptron())
    x, y = some_examples(10, ELSEWHERE, (3, 32, 32) if image else (5,))
    w = model.vector()
    local, total = w.clone(), torch.zeros((), dtype=torch.float64, device=ELSEWHERE)
    chosen = local_training.batches(sgd, len(x), 0, 1, 2, ELSEWHERE)
    for loss in local_training.steps(
        sgd,
        model,
        cross_entropy,
        local,
        ((x.index_select(0, rows), y.index_select(0, rows)) for rows in chosen),
        round=1,
        correction=torch.zeros_like(w),
        proximal=0.1,
    ):
        total += loss
    assert local.device.type == total.device.type == "meta"
    assert (w - local).div_(0.1).shape == (model.dim,)


@pytest.mark.parametrize("sgd", SETTINGS, ids=str)
def test_the_vectorised_loop(sgd: LocalSGD) -> None:
    """Clients of several sizes, in memory; nothing is asked back before the last step is given."""
    parts = [some_examples(n, torch.device("cpu")) for n in (7, 3, 9)]
    dataset = FederatedDataset(load=lambda client: parts[client], num_clients=3)
    model = FlatModel(perceptron())
    trainer = VectorisedTrainer(dataset, model, cross_entropy, sgd, seed=0)
    w, clients = model.vector(), [0, 1, 2]
    sent = Broadcast(0, torch.arange(3), w, torch.zeros(3, len(w), device=ELSEWHERE), proximal=0.1)
    cohort = BatchedCohort.of(dataset, sgd, 0, sent, clients, 0)
    assert cohort.x.device.type == cohort.batches.device.type == "meta"
    for step, going in enumerate(cohort.num_active):
        x, y, mask = cohort.batch(step)
        local = w.repeat(going, 1)
        losses, gradient = trainer._gradients(local, x, y, mask)
        assert gradient.device.type == losses.device.type == "meta"
        assert gradient.shape == local.shape
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):  # the losses, at the end
        trainer._walk(cohort, sent, 0)


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("dim", [300, 2**18])
def test_rows_and_the_servers_step(name: str, dim: int) -> None:
    codec = CODECS[name]
    rows = torch.randn(2, dim, device=ELSEWHERE, dtype=codec.dtype)
    size = codec.row_bytes(dim)
    encoded = [torch.zeros(size, dtype=torch.uint8, device=ELSEWHERE) for _ in rows]
    ones = torch.ones(2, dtype=torch.float64, device=ELSEWHERE)
    total, v = torch.zeros(dim, dtype=torch.float64, device=ELSEWHERE), torch.empty_like(rows[0])
    if codec.lossless and rows.numel() <= 2**17:
        exchange_rows(codec, encoded, rows, ones, total, Direction(v, ones, 1.0, 5.0))
    for row, values in zip(encoded, rows, strict=True):
        codec.encode(row, 0, values)
        assert codec.decode(row, 0, dim).device.type == "meta"
    w = torch.zeros(dim, device=ELSEWHERE)
    ServerSGD(lr=1.0).step(w, v.float(), 0.1)
    assert w.device.type == "meta"
