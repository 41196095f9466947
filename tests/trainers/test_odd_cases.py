"""Data sets, models and cohorts of unusual kinds, which no trainer may stumble over."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedvarp import Broadcast, FlatModel, LocalSGD, SimulationResult, simulate, stream
from fedvarp.clients.memory_layout import gathered, laid_out
from fedvarp.clients.sampling import Cohort
from fedvarp.data import FederatedDataset
from fedvarp.errors import sentence
from fedvarp.trainers import AutoTrainer, ParallelTrainer, SequentialTrainer, VectorisedTrainer
from fedvarp.trainers.auto import Candidate
from fedvarp.trainers.worker_pool import Task, WorkerError, WorkerPool

SIZES = [7, 1, 12, 4, 9]
FEATURES, CLASSES = 5, 3
SGD = LocalSGD(lr=0.1, batch_size=4, epochs=2)


class StepCounter(nn.Module):
    """Its only buffer depends on no example, so vmap has nothing against writing to it."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, CLASSES)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.count += 1
        logits: Tensor = self.linear(x)
        return logits


def dataset(diverging: int | None = None) -> FederatedDataset:
    draws = stream(0, "examples")
    parts = [
        (torch.randn(n, FEATURES, generator=draws), torch.randint(CLASSES, (n,), generator=draws))
        for n in SIZES
    ]
    if diverging is not None:
        parts[diverging][0].fill_(torch.inf)
    return FederatedDataset(load=parts.__getitem__, num_clients=len(SIZES))


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make()


def run(module: nn.Module, data: FederatedDataset | None = None, **changes: Any) -> Any:
    settings: dict[str, Any] = {
        "local_sgd": SGD,
        "rounds": 4,
        "clients_per_round": 3,
        "evaluate_every": 2,
        "progress": False,
    }
    return simulate(data or dataset(), module, **(settings | changes))


def linear() -> nn.Module:
    return nn.Linear(FEATURES, CLASSES)


def bits(result: SimulationResult) -> tuple[list[float], list[dict[str, Any]]]:
    return result.server.w.tolist(), result.metrics


def test_a_parallel_run_with_nothing_to_evaluate() -> None:
    expected = run(seeded(linear), num_train_clients=0)
    assert bits(run(seeded(linear), num_train_clients=0, trainer="parallel", workers=2)) == bits(
        expected
    )


@pytest.mark.parametrize("diverging", range(len(SIZES)))
def test_no_diverging_client_spoils_the_padding_of_others(diverging: int) -> None:
    model = FlatModel(seeded(linear))
    data, everyone = dataset(diverging), torch.arange(len(SIZES))
    sent = Broadcast(0, everyone, model.vector(), None)
    trainer = VectorisedTrainer(data, model, cross_entropy, SGD, seed=5)
    assert trainer.train(sent, everyone, 0).refused.keys() == {diverging}


def test_vectorised_refuses_a_model_that_counts_its_steps() -> None:
    with pytest.raises(ValueError, match=r"buffers count while it trains.*parallel"):
        run(seeded(StepCounter), trainer="vectorised")


class Shifted(nn.Module):
    """Reads a buffer and leaves it as it is."""

    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, CLASSES)
        self.register_buffer("shift", torch.zeros(FEATURES))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.linear(x - self.shift)
        return logits


def test_vectorised_trains_with_the_buffers_it_was_sent() -> None:
    everyone, model = torch.arange(len(SIZES)), FlatModel(seeded(Shifted))
    buffers = {"shift": torch.arange(float(FEATURES))}
    sent = Broadcast(0, everyone, model.vector(), None, buffers)
    fast = VectorisedTrainer(dataset(), model, cross_entropy, SGD, seed=5)
    found = fast.train(sent, everyone, 0)
    expected = SequentialTrainer(dataset(), model, cross_entropy, SGD, 5).train(sent, everyone, 0)
    torch.testing.assert_close(found.deltas, expected.deltas, rtol=1e-4, atol=1e-6)
    assert found.buffers.keys() == expected.buffers.keys() == set(range(len(SIZES)))
    assert all(torch.equal(b["shift"], buffers["shift"]) for b in found.buffers.values())


def test_vectorised_refuses_targets_that_are_left_out_of_the_mean() -> None:
    data = dataset()
    data.client(4)[1][0] = -100  # not in the batch that the loss is tried on, client 2's
    everyone, model = torch.arange(len(SIZES)), FlatModel(seeded(linear))
    trainer = VectorisedTrainer(data, model, cross_entropy, SGD, seed=5)
    with pytest.raises(ValueError, match=r"targets are -100.*parallel"):
        trainer.train(Broadcast(0, everyone, model.vector(), None), everyone, 0)


@pytest.mark.parametrize(
    ("module", "reason"), [(StepCounter, "it changes its own buffers"), (linear, "no compiler")]
)
def test_what_cannot_be_compiled_is_trained_without(
    module: Callable[[], nn.Module],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def failing(function: object, **options: object) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            raise RuntimeError("no compiler")

        return call

    expected = run(seeded(module))
    monkeypatch.setattr(torch, "compile", failing)
    found = run(seeded(module), compile=True)
    assert bits(found) == bits(expected)
    for name, buffer in expected.model.named_buffers():
        assert int(buffer) == int(found.model.get_buffer(name)) > 0
    assert caplog.text.count(f"here ({reason})") == 1


class Following(nn.Module):
    """Puts a new tensor in the place of its buffer; a functional call would lose it."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, CLASSES)
        self.register_buffer("mean", torch.zeros(FEATURES))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0).detach()
        logits: Tensor = self.linear(x - self.mean)
        return logits


def test_a_model_that_replaces_its_buffers_is_not_compiled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    expected = run(seeded(Following))
    found = run(seeded(Following), compile=True)
    assert bits(found) == bits(expected)
    assert torch.equal(found.model.mean, expected.model.mean)
    assert "it changes its own buffers" in caplog.text


def test_one_shape_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts of many lengths would each compile a graph, and soon be refused one."""
    compiled = set()

    def compiling(function: Callable[..., object], **options: object) -> Callable[..., object]:
        def call(w: Tensor, x: Tensor, y: Tensor) -> object:
            compiled.add((x.shape, y.shape))
            return function(w, x, y)

        return call

    monkeypatch.setattr(torch, "compile", compiling)
    parts = [(torch.randn(8, length, FEATURES), torch.arange(8) % CLASSES) for length in (2, 3, 4)]
    data = FederatedDataset(load=parts.__getitem__, num_clients=3)
    summing = nn.Sequential(nn.Linear(FEATURES, CLASSES), _Sum())
    found = run(summing, data, compile=True, trainer="sequential")
    assert found.server.round == 4
    assert len(compiled) == 1


class _Sum(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum(1)


def test_a_trainer_of_ones_own_need_not_evaluate() -> None:
    module = seeded(linear)
    plain = SequentialTrainer(dataset(), FlatModel(module), cross_entropy, SGD, seed=0)
    with ParallelTrainer(plain, workers=2) as own:
        found = run(module, trainer=own)
        assert own.pids  # it is closed by whoever made it
    assert bits(found) == bits(run(seeded(linear)))


def test_auto_does_not_judge_by_rounds_of_nobody() -> None:
    class NobodyAtFirst:
        num_clients = len(SIZES)

        def cohort(self, t: int) -> Cohort:
            clients = torch.arange(0 if t < 2 else 3)
            return Cohort(clients, torch.ones(len(clients), dtype=torch.bool))

    module, tried, chosen = seeded(linear), [], []
    plain = SequentialTrainer(dataset(), FlatModel(module), cross_entropy, SGD, seed=0)

    class Noting:
        def train(self, broadcast: Broadcast, clients: Tensor, round: int) -> Any:
            tried.append(round)
            return plain.train(broadcast, clients, round)

    trainer = AutoTrainer(
        {"sequential": Candidate(plain), "other": Candidate(Noting())},
        lambda name, why: chosen.append((name, why)),
        not_tried={"third": "it is ill"},
    )
    run(module, trainer=trainer, sampler=NobodyAtFirst(), clients_per_round=None)
    assert tried[:2] == [2, 3]
    assert "third not tried: it is ill" in chosen[0][1]


def _in_a_daemon(answer: Any) -> None:
    try:
        run(seeded(linear), trainer="parallel", workers=2)
    except WorkerError as error:
        answer.send_bytes(str(error).encode())


def test_a_daemonic_process_is_told_why_it_cannot() -> None:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(
        target=_in_a_daemon, args=(theirs,), daemon=True
    )
    process.start()
    theirs.close()
    try:
        assert b'trainer="sequential"' in ours.recv_bytes()
    finally:
        process.join()
        ours.close()


def test_a_grandchild_that_holds_the_pipe_does_not_hide_a_death(tmp_path: Path) -> None:
    """It has a copy of the worker's end, so the parent's stays open when the worker is killed."""
    noted = tmp_path / "grandchild"

    def work(task: Task) -> None:
        if noted.exists():
            return
        child = os.fork()
        if child == 0:
            signal.pause()
        noted.write_text(str(child))
        os.kill(os.getpid(), signal.SIGKILL)

    pool = WorkerPool(1, work, prepare=lambda: None, describe=str)
    try:
        pool.run([(0, 0, 0, 0)])
    finally:
        os.kill(int(noted.read_text()), signal.SIGKILL)
        pool.close()


def test_pools_leave_no_file_open() -> None:
    def count() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    def work(task: Task) -> None:
        if task[1] == 1:
            raise ValueError

    before = count()
    pool = WorkerPool(2, work, prepare=lambda: None, describe=str)
    pool.run([(0, 0, 0, 0)] * 3)
    os.kill(pool.pids[0], signal.SIGKILL)
    pool.run([(0, 0, 0, 0)] * 3)
    with pytest.raises(WorkerError):
        pool.run([(0, 1, 0, 0)])
    pool.close()
    assert count() == before


def test_a_failing_worker_is_no_mistake_of_the_program() -> None:
    said = "client 3 of round 1 ended its worker process 3 times"
    assert sentence(WorkerError(said)) == said


# Images, laid out as their model can take them


class Tutorial(nn.Module):
    """Flattens by `view`, as many a tutorial does; that fails on channels that come last."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 4, 3)
        self.head = nn.Linear(4 * 4 * 4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        features = self.conv(x).relu()
        logits: Tensor = self.head(features.view(-1, 4 * 4 * 4))
        return logits


class ViewingInTraining(Tutorial):
    def forward(self, x: Tensor) -> Tensor:
        features = self.conv(x).relu()
        flat = features.view(-1, 64) if self.training else features.flatten(1)
        logits: Tensor = self.head(flat)
        return logits


class Particular(Tutorial):
    """Has an exception of its own for what it does not like."""

    def forward(self, x: Tensor) -> Tensor:
        if not x.is_contiguous():
            raise ValueError("need contiguous images")
        logits: Tensor = self.head(self.conv(x).relu().flatten(1))
        return logits


class Flattening(Tutorial):
    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.conv(x).relu().flatten(1))
        return logits


def images(channels: int) -> FederatedDataset:
    draws = stream(0, "images")
    parts = [
        (torch.randn(n, channels, 6, 6, generator=draws), torch.arange(n) % CLASSES) for n in SIZES
    ]
    return FederatedDataset(load=parts.__getitem__, num_clients=len(SIZES), test=parts[0])


@pytest.mark.parametrize("channels", [1, 3])
def test_a_model_that_views_its_features(channels: int) -> None:
    data = images(channels)
    found = run(seeded(lambda: Tutorial(channels)), data, trainer="sequential")
    for trainer in ("parallel", "vectorised"):
        other = run(seeded(lambda: Tutorial(channels)), data, trainer=trainer, workers=2)
        assert torch.allclose(other.server.w, found.server.w, atol=1e-6), trainer
    flattening = run(seeded(lambda: Flattening(channels)), data, trainer="sequential")
    assert torch.allclose(flattening.server.w, found.server.w, atol=1e-6)


@pytest.mark.parametrize(
    ("module", "takes"),
    [(Tutorial, False), (ViewingInTraining, False), (Particular, False), (Flattening, True)],
)
def test_images_are_laid_out_as_the_model_takes_them(
    module: Callable[[int], nn.Module], takes: bool
) -> None:
    x = torch.randn(5, 3, 6, 6)
    chosen = torch.tensor([4, 1])
    model = FlatModel(module(3).eval())
    rows = gathered(laid_out(x, model), chosen, model)
    assert model.channels_last is takes
    assert rows.is_contiguous(memory_format=torch.channels_last) is takes
    assert torch.equal(rows, x[chosen])
    assert not model.module.training


class Caching(nn.Module):
    """Makes a tensor when it is first needed, and keeps it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, CLASSES)
        self.scale: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.scale is None:
            self.scale = torch.full((CLASSES,), 2.0)
        logits: Tensor = self.linear(x) * self.scale
        return logits


def test_what_a_model_keeps_from_an_evaluation_can_be_trained_with() -> None:
    result = run(Caching(), trainer="sequential")
    assert "train_loss" in result.metrics[0], "it is evaluated before it is trained"
    assert result.server.round == 4
