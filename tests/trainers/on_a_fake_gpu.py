"""Run by test_device.py in a process of its own: whole runs on a device that is not the CPU."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss, one_hot

from fake_gpu import GPU, MODULE, WAITS, GpuTensor, register
from fedvarp import Broadcast, Evaluation, FlatModel, LocalSGD, Recording, SimulationResult
from fedvarp.algorithms import ALGORITHMS
from fedvarp.clients.importance_sampling import ImportanceSampler
from fedvarp.data import FederatedDataset, from_partition
from fedvarp.data.augment import RandomCropAndFlip
from fedvarp.models import LeNet5, initialised
from fedvarp.randomness import stream
from fedvarp.server.names import SERVER_OPTIMIZERS
from fedvarp.tables import Table
from fedvarp.tables.settings import CodecName
from fedvarp.trainers import Trainer, VectorisedTrainer
from fedvarp.trainers.replay import _Recording
from fedvarp.trainers.sequential import SequentialTrainer
from simulating import simulate

SIZES = [7, 3, 9, 8, 8, 5]
CLUSTERS = torch.tensor([0, 0, 1, 1, 2, 2])
SGD = LocalSGD(lr=0.1, batch_size=4, epochs=1)


@pytest.fixture(autouse=True, scope="module")
def device() -> None:
    register()


@pytest.fixture(autouse=True)
def count_anew() -> None:
    WAITS.clear()
    MODULE.seeds.clear()


def data(shape: tuple[int, ...] = (5,), augment: bool = False) -> FederatedDataset:
    draw = stream(0, "examples")
    *parts, test = [
        (torch.randn(n, *shape, generator=draw), torch.randint(3, (n,), generator=draw))
        for n in [*SIZES, 20]
    ]
    return FederatedDataset(
        load=parts.__getitem__,
        num_clients=len(SIZES),
        num_examples=torch.tensor(SIZES),
        num_classes=3,
        cluster_of=CLUSTERS,
        test=test,
        augment=RandomCropAndFlip(fill=(0.0,) * 3) if augment else None,
    )


def perceptron() -> nn.Module:
    return initialised(lambda: nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)), 0)


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return mse_loss(outputs, one_hot(targets, 3).float())


class Counting(nn.Module):
    """A model with a buffer that counts its training batches."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = perceptron()
        self.seen: Tensor
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen.add_(1)
        output: Tensor = self.layer(x)
        return output


def run(device: str, name: str = "sequential", **changed: Any) -> SimulationResult:
    given: dict[str, Any] = {
        "dataset": data(),
        "model": perceptron(),
        "local_sgd": SGD,
        "rounds": 3,
        "clients_per_round": 3,
        "recording": Recording(progress=False),
        **changed,
    }
    given["model"] = copy.deepcopy(given["model"])  # a run leaves its own trained
    return simulate(**given, trainer=Trainer(name=name, device=device))


def same_on_both(exact: bool = True, **changed: Any) -> None:
    """A run has the figures of the CPU, on the fake device from its first model to its last."""
    here, there = run("cpu", **changed), run("gpu", **changed)
    assert isinstance(there.server.w, GpuTensor)
    close = torch.equal if exact else torch.allclose
    assert close(here.server.w, there.server.w.held)
    for one, other in zip(here.metrics, there.metrics, strict=True):
        figures = {key: value for key, value in other.items() if isinstance(value, float)}
        expected = {key: one[key] for key in figures}
        assert figures == (expected if exact else pytest.approx(expected, rel=1e-4))
        assert one.keys() == other.keys()


def test_the_device_notices_what_it_is_to_notice() -> None:
    here, there = torch.ones(3), torch.ones(3, device=GPU)
    for mix in (torch.add, torch.mul, torch.dot):
        with pytest.raises(RuntimeError, match="device"):
            mix(here, there)
    with pytest.raises(RuntimeError, match="device"):
        there.index_select(0, torch.tensor([0]))
    assert not WAITS
    asking: tuple[Any, ...] = (
        Tensor.item,
        Tensor.__bool__,
        Tensor.tolist,
        Tensor.cpu,
        Tensor.nonzero,
    )
    for asked, ask in enumerate(asking, start=1):
        ask(there.sum())
        assert WAITS.total() == asked
    here.copy_(there)
    there[there > 0]
    assert WAITS.total() == len(asking) + 2


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm(algorithm: str) -> None:
    same_on_both(algorithm=algorithm)


@pytest.mark.parametrize("name", SERVER_OPTIMIZERS)
def test_every_server_optimiser(name: str) -> None:
    same_on_both(server_optimizer=name)


@pytest.mark.parametrize(
    ("codec", "where"),
    [*((codec, "memory") for codec in get_args(CodecName)), ("float32", "disk"), ("int8", "disk")],
)
def test_a_kept_run_goes_on(codec: Any, where: Any, tmp_path: Path) -> None:
    """Rows, model and optimiser come back to the device; the figures are the CPU's."""

    def kept(device: str, rounds: int, resume: bool) -> SimulationResult:
        out = Recording(out=str(tmp_path / device), resume=resume, progress=False)
        table = Table(where=where, codec=codec)
        return run(device, table=table, server_optimizer="adam", rounds=rounds, recording=out)

    whole = kept("cpu", rounds=3, resume=False)
    kept("gpu", rounds=2, resume=False)
    last = kept("gpu", rounds=3, resume=True)
    assert isinstance(last.server.w, GpuTensor)
    assert torch.equal(last.server.w.held, whole.server.w)
    assert last.metrics[-1] == whole.metrics[-1]


@pytest.mark.parametrize(
    "changed",
    [
        {"evaluation": Evaluation(per_client="all", validation_share=0.3)},
        {"clients_per_round": ImportanceSampler(6, 3, seed=0)},
        {"table": Table(rows="last_layer")},
        {"table": Table(max_rows=4)},
        {"table": Table(clip_updates=2.0)},
        {"local_sgd": LocalSGD(lr=0.1, batch_size=4, steps=3, optimizer="adam")},
        {"local_sgd": LocalSGD(lr=0.1, batch_size=4, epochs=1, momentum=0.9, clip_norm=0.1)},
        {"algorithm": "cluster_fedvarp", "table": Table(clusters="auto:3", recluster_every=2)},
        {"dataset": data((3, 32, 32), augment=True), "model": initialised(lambda: LeNet5(3), 0)},
        {"model": Counting()},
    ],
    ids=str,
)
def test_other_settings(changed: dict[str, Any]) -> None:
    same_on_both(**changed)


@pytest.mark.parametrize("name", ["vectorised", "auto"])
@pytest.mark.parametrize("loss", [cross_entropy, squared])
def test_vectorised(name: str, loss: Any) -> None:
    same_on_both(exact=False, name=name, algorithm="scaffold", loss=loss)


def test_vectorised_images() -> None:
    images = data((3, 32, 32), augment=True)
    same_on_both(
        exact=False, name="vectorised", dataset=images, model=initialised(lambda: LeNet5(3), 0)
    )


@pytest.mark.parametrize(("sizes", "replays"), [([8] * 6, 1), (SIZES, 2)])
def test_what_is_recorded_there_is_replayed(
    sizes: list[int], replays: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round of clients that are alike is one replay; else each of its steps is one."""
    replayed: list[object] = []
    once = _Recording.replayed

    def counted(self: _Recording, inputs: Any) -> Any:
        replayed.append(inputs)
        return once(self, inputs)

    monkeypatch.setattr(_Recording, "replayed", counted)
    draw = stream(0, "examples")
    x, y = torch.randn(sum(sizes), 5, generator=draw), torch.arange(sum(sizes)) % 3
    clients = from_partition(x, y, torch.split(torch.arange(len(x)), sizes), num_classes=3)
    who, sgd = torch.tensor([0, 2, 4]), LocalSGD(lr=0.1, batch_size=4, steps=2)
    here, there = (
        VectorisedTrainer(clients, FlatModel(perceptron().to(device)), cross_entropy, sgd, seed=0)
        for device in ("cpu", GPU)
    )
    there.foretell(dict.fromkeys(range(10), who))
    for t in range(10):
        expected = here.train(Broadcast(t, who, here.model.vector(), None), who, t)
        replayed.clear()
        found = there.train(Broadcast(t, who, there.model.vector(), None), who, t)
        assert isinstance(found.deltas, GpuTensor)
        torch.testing.assert_close(found.deltas.held, expected.deltas, rtol=1e-4, atol=1e-6)
    assert len(replayed) == replays


def test_layers_draw_from_the_devices_generator_and_give_it_back() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.5), nn.Linear(4, 3))
    before = MODULE.state
    seeds = []
    for _ in range(2):
        MODULE.seeds.clear()
        run("gpu", model=model)
        seeds.append(list(MODULE.seeds))
    assert torch.equal(MODULE.state, before)
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) > 3 * 3  # one for each client of each round, and for evaluations


def waits_of(trainer: type, sgd: LocalSGD, clients: list[int], **parts: Any) -> int:
    """How often the host waits for the device in one round."""
    shape = (3, 32, 32) if parts.get("augment") else (5,)
    module = initialised(lambda: LeNet5(3), 0) if parts.get("augment") else perceptron()
    model = FlatModel(module.to(GPU))
    who = torch.tensor(clients)
    loss = parts.get("loss", cross_entropy)
    made = trainer(data(shape, parts.get("augment", False)), model, loss, sgd, seed=0)
    w = model.vector()
    corrections = torch.zeros(len(who), len(w), device=GPU)
    # The vectorised one's steps are recorded and held to what they replace in the first rounds.
    for round in range(5 if trainer is VectorisedTrainer else 1):
        WAITS.clear()
        made.train(Broadcast(round, who, w, corrections, proximal=0.1), who, round)
    return WAITS.total()


@pytest.mark.parametrize("trainer", [SequentialTrainer, VectorisedTrainer])
@pytest.mark.parametrize("parts", [{}, {"augment": True}, {"loss": squared}], ids=str)
def test_no_step_waits_for_the_device(trainer: type, parts: dict[str, Any]) -> None:
    """Twice the steps cost no more waits: they are at a client's end, or at the round's."""
    options: dict[str, Any] = {
        "batch_size": 4,
        "momentum": 0.9,
        "weight_decay": 0.1,
        "clip_norm": 1.0,
    }
    everyone = list(range(len(SIZES)))
    few, many = (
        waits_of(trainer, LocalSGD(lr=0.1, epochs=n, **options), everyone, **parts) for n in (1, 2)
    )
    assert few == many > 0


def test_vectorised_waits_no_more_for_more_clients() -> None:
    few, many = (waits_of(VectorisedTrainer, SGD, clients) for clients in ([0, 2], [0, 1, 2, 3, 4]))
    assert few == many
