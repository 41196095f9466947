"""The details of a round: whose correction, whose weights, which buffers, what is evaluated."""

from __future__ import annotations

import dataclasses
import math
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedvarp import DivergenceWarning, LocalSGD, OnRoundEnd
from fedvarp.clients import local_training
from fedvarp.clients.evaluation import Evaluator
from fedvarp.clients.sampling import UniformSampler, WeightedSampler
from fedvarp.data import FederatedDataset, from_tensors
from fedvarp.models import Quadratic, quadratic_loss
from fedvarp.runs.directory import RunDirectory
from fedvarp.runs.errors import RunError
from fedvarp.server.flat_model import FlatModel
from fedvarp.server.server import Broadcast
from fedvarp.system.processes import Interruption
from fedvarp.trainers import SequentialTrainer
from simulating import simulate

ONE_EPOCH = LocalSGD(lr=0.1, batch_size=1, epochs=1)


class Counting(Quadratic):
    """Counts its training batches in a buffer."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__(2)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += 1
        return super().forward(x)


def points(*sizes: int, **about: Any) -> FederatedDataset:
    """Client i holds sizes[i] copies of the point i: its gradient is w − i whatever the batch."""
    return from_tensors(
        [(torch.full((n, 2), float(i)), torch.ones(n, 2)) for i, n in enumerate(sizes)], **about
    )


def quadratic_trainer(dataset: FederatedDataset) -> SequentialTrainer:
    return SequentialTrainer(dataset, FlatModel(Quadratic(2)), quadratic_loss, ONE_EPOCH, seed=0)


def test_the_scale_is_the_rate_whatever_clients_do() -> None:
    clients = torch.tensor([0, 1, 2])
    broadcast = Broadcast(0, clients, torch.zeros(2), corrections=None)
    updates = quadratic_trainer(points(1, 2, 6)).train(broadcast, clients, 0)
    assert updates.num_steps.tolist() == [1, 2, 6]
    assert updates.scale == 0.1


def test_each_client_gets_its_own_correction_also_when_others_do_not_answer() -> None:
    asked = torch.tensor([0, 1, 2])
    corrections = torch.tensor([[10.0, 10.0], [20.0, 20.0], [30.0, 30.0]])
    broadcast = Broadcast(0, asked, torch.zeros(2), corrections)
    updates = quadratic_trainer(points(1, 1, 1)).train(broadcast, torch.tensor([2, 1]), 0)
    # One step from 0: Δ_i = (0 − i) + correction_i.
    torch.testing.assert_close(updates.deltas, torch.tensor([[28.0, 28.0], [19.0, 19.0]]))


def test_every_client_starts_from_the_broadcast_buffers() -> None:
    model = FlatModel(Counting())
    trainer = SequentialTrainer(points(1, 2, 6), model, quadratic_loss, ONE_EPOCH, seed=0)
    clients = torch.arange(3)
    broadcast = Broadcast(0, clients, torch.zeros(2), None, {"seen": torch.tensor(100.0)})
    updates = trainer.train(broadcast, clients, 0)
    assert [float(updates.buffers[i]["seen"]) for i in range(3)] == [101.0, 102.0, 106.0]
    # And the server averages them over all who were accepted.
    result = simulate(
        points(1, 2, 6),
        Counting(),
        quadratic_loss,
        clients_per_round=3,
        rounds=1,
        local_sgd=ONE_EPOCH,
    )
    assert float(result.model.state_dict()["seen"]) == pytest.approx((1 + 2 + 6) / 3)


def test_weights_stay_with_their_clients_when_one_diverges() -> None:
    dataset = from_tensors(
        [(torch.full((1, 2), math.inf if i == 0 else float(i)), torch.ones(1, 2)) for i in range(3)]
    )
    weights = torch.tensor([1.0, 2.0, 5.0])
    sampler = WeightedSampler([1.0, 1.0, 1.0], 3, 0, objective=weights)
    with pytest.warns(DivergenceWarning, match="1 of 3 replies"):
        result = simulate(
            dataset,
            Quadratic(2),
            quadratic_loss,
            algorithm="fedavg",
            sampler=sampler,
            rounds=1,
            local_sgd=LocalSGD(lr=0.5, batch_size=1, epochs=1),
            num_train_clients=0,
            client_weights=weights,
        )
    assert result.metrics[1]["clients"] == [1, 2]
    # π = 1, so w = η Σ p_i x_i = 0.5 (2/8 · 1 + 5/8 · 2).
    torch.testing.assert_close(result.server.w, torch.full((2,), 0.5 * (0.25 + 1.25)))


def test_training_augments_and_evaluation_does_not() -> None:
    calls: list[int] = []

    def away(batch: Tensor, generator: torch.Generator) -> Tensor:
        calls.append(len(batch))
        return batch + 100.0

    dataset = points(4, 4, augment=away)
    with pytest.warns(DivergenceWarning, match="Nothing was learned"):
        result = simulate(
            dataset,
            Quadratic(2),
            quadratic_loss,
            clients_per_round=1,
            rounds=1,
            local_sgd=LocalSGD(lr=0.1, batch_size=4, epochs=1),
        )
    assert calls == [4, 4]  # before the run model and loss are tried on its first batch
    # At w = 0 client i has loss ½ · 2 · i²: mean (0 + 1)/2, without the 100.
    assert result.metrics[0]["train_loss"] == pytest.approx(0.5)


def test_dropout_is_off_in_evaluation_and_on_in_training() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(2, 2))
    dataset = from_tensors(
        [(torch.ones(50, 2), torch.zeros(50, dtype=torch.int64))],
        test=(torch.randn(50, 2), torch.zeros(50, dtype=torch.int64)),
        num_classes=2,
    )
    flat = FlatModel(model)
    evaluator = Evaluator(dataset, flat, nn.functional.cross_entropy)
    w = flat.vector()
    model.train()
    first = evaluator.evaluate(w, {})
    assert evaluator.evaluate(w, {}) == first
    flat.module.eval()
    seen: list[bool] = []
    model[1].register_forward_hook(lambda layer, *_: seen.append(layer.training))
    local_training.train(
        LocalSGD(lr=0.1, batch_size=50, steps=1),
        flat,
        nn.functional.cross_entropy,
        w,
        dataset.client(0),
        seed=0,
        round=0,
        client=0,
    )
    assert seen == [True]


def test_evaluation_in_batches_is_evaluation_in_one_and_knows_the_weights() -> None:
    dataset = points(1, 7)
    flat = FlatModel(Quadratic(2))
    w = torch.zeros(2)
    for size in (1, 3, 100):
        whole = Evaluator(dataset, flat, quadratic_loss, batch_size=size).evaluate(w, {})
        assert whole["train_loss"] == pytest.approx((0 + 1) / 2)  # of clients, not of examples
    weighted = Evaluator(dataset, flat, quadratic_loss, client_weights=torch.tensor([1.0, 3.0]))
    assert weighted.evaluate(w, {})["train_loss"] == pytest.approx(0.75)


def test_evaluation_uses_the_servers_buffers() -> None:
    class Shifted(Quadratic):
        shift: Tensor

        def __init__(self) -> None:
            super().__init__(2)
            self.register_buffer("shift", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + self.shift

    flat = FlatModel(Shifted())
    found = Evaluator(points(1), flat, quadratic_loss).evaluate(
        torch.zeros(2), {"shift": torch.tensor(3.0)}
    )
    assert found["train_loss"] == pytest.approx(9.0)  # ½ · 2 · 3²


def test_a_clients_mean_loss_is_over_its_steps_and_a_bad_loss_alone_is_divergence() -> None:
    def loss(output: Tensor, targets: Tensor) -> Tensor:
        return 0.0 * output.sum() + 5.0

    x = (torch.zeros(4, 2), torch.ones(4, 2))
    done = local_training.train(
        ONE_EPOCH, FlatModel(Quadratic(2)), loss, torch.zeros(2), x, seed=0, round=0, client=0
    )
    assert done.mean_loss == 5.0
    assert not done.diverged
    assert dataclasses.replace(done, mean_loss=math.nan).diverged
    assert dataclasses.replace(done, magnitude=math.inf).diverged
    x[0][0, 0] = math.inf
    quadratic = FlatModel(Quadratic(2))
    bad = local_training.train(
        ONE_EPOCH, quadratic, quadratic_loss, torch.zeros(2), x, seed=0, round=0, client=0
    )
    assert not math.isfinite(bad.magnitude)


def test_steps_are_summed_over_clients_of_unequal_size() -> None:
    result = simulate(
        points(1, 2, 6),
        Quadratic(2),
        quadratic_loss,
        clients_per_round=3,
        rounds=1,
        local_sgd=ONE_EPOCH,
    )
    assert result.metrics[1]["num_steps"] == 9


def test_those_who_drop_out_are_not_trained() -> None:
    sampler = UniformSampler(3, 3, seed=0, dropout=[0.0, 1.0, 0.0])
    loaded: list[int] = []
    base = points(1, 1, 1)

    def load(i: int) -> tuple[Tensor, Tensor]:
        loaded.append(i)
        return base.load(i)

    dataset = FederatedDataset(load=load, num_clients=3)
    result = simulate(
        dataset,
        Quadratic(2),
        quadratic_loss,
        sampler=sampler,
        rounds=3,
        num_train_clients=0,
        local_sgd=ONE_EPOCH,
    )
    assert 1 not in loaded
    assert all(record["clients"] == [0, 2] for record in result.metrics[1:])


def test_ctrl_c_between_commits_saves_the_round_it_ended_with(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "clients_per_round": 2,
        "rounds": 9,
        "commit_every": 5,
        "out": tmp_path,
        "local_sgd": ONE_EPOCH,
    }

    def press(record: Mapping[str, Any], server: object) -> None:
        if record["round"] == 3:
            signal.raise_signal(signal.SIGINT)

    stopped = simulate(points(1, 2, 3), Quadratic(2), quadratic_loss, callbacks=[press], **settings)
    assert (stopped.stopped, stopped.server.round) == ("interrupted", 3)
    rounds: list[int] = []
    simulate(
        points(1, 2, 3),
        Quadratic(2),
        quadratic_loss,
        resume=True,
        **settings,
        callbacks=[lambda record, server: rounds.append(record["round"])],
    )
    assert rounds[0] == 4  # nothing that was announced as saved is done again
    run = RunDirectory(tmp_path)
    assert [r["round"] for r in run.metrics()] == [r["round"] for r in run.timings()]
    assert [r["round"] for r in run.timings()] == list(range(10))


def test_timings_are_cut_back_with_the_metrics(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "clients_per_round": 2,
        "rounds": 6,
        "commit_every": 4,
        "out": tmp_path,
        "resume": True,
        "local_sgd": ONE_EPOCH,
    }

    def pull(record: Mapping[str, Any], server: object) -> None:
        if record["round"] == 2:
            raise OSError("the plug")

    with pytest.raises(OSError, match="plug"):
        simulate(points(1, 2, 3), Quadratic(2), quadratic_loss, callbacks=[pull], **settings)
    simulate(points(1, 2, 3), Quadratic(2), quadratic_loss, **settings)
    assert [r["round"] for r in RunDirectory(tmp_path).timings()] == list(range(7))


def test_the_second_ctrl_c_does_not_wait_and_the_handler_is_given_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interruption() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_no_drafts_stay_behind(tmp_path: Path) -> None:
    simulate(
        points(1, 2),
        Quadratic(2),
        quadratic_loss,
        clients_per_round=1,
        rounds=1,
        out=tmp_path,
        local_sgd=ONE_EPOCH,
    )
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("progress", [None, False])
def test_a_quiet_run_leaves_it_to_the_result_that_it_was_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], progress: bool | None
) -> None:
    result = simulate(
        points(1, 2, 3),
        Quadratic(2),
        quadratic_loss,
        clients_per_round=2,
        rounds=9,
        local_sgd=ONE_EPOCH,
        out=tmp_path,
        progress=progress,
        callbacks=[lambda record, server: signal.raise_signal(signal.SIGINT)],
    )
    assert (result.stopped, "interrupted" in repr(result)) == ("interrupted", True)
    assert ("Stopped after round" in capsys.readouterr().err) == (progress is None)


def test_an_interrupted_run_hands_back_the_servers_model_and_buffers() -> None:
    """Stopped in a round without evaluation, the module last held a client's weights."""

    def press(record: Mapping[str, Any], server: object) -> None:
        if record["round"] == 1:
            signal.raise_signal(signal.SIGINT)

    result = simulate(
        points(1, 2, 6),
        Counting(),
        quadratic_loss,
        clients_per_round=3,
        rounds=9,
        local_sgd=ONE_EPOCH,
        callbacks=[press],
    )
    state = result.model.state_dict()
    assert torch.equal(state["w"], result.server.w)
    assert state["w"].data_ptr() != result.server.w.data_ptr()
    assert float(state["seen"]) == pytest.approx((1 + 2 + 6) / 3)


def test_clusters_given_come_before_those_of_the_data_set() -> None:
    dataset = points(1, 1, 1, 1, cluster_of=torch.tensor([0, 0, 1, 1]))
    result = simulate(
        dataset,
        Quadratic(2),
        quadratic_loss,
        algorithm="cluster_fedvarp",
        clients_per_round=2,
        clusters=torch.tensor([0, 1, 2, 2]),
        rounds=1,
        local_sgd=ONE_EPOCH,
    )
    assert result.server.describe()["num_clusters"] == 3


# Momentum: normalised updates and control variates stay means of gradients


def test_momentum_keeps_the_objective_uniform_when_steps_differ() -> None:
    """Clients ½(w∓1)² with 1 and 20 steps: the optimum is halfway, whatever the momentum."""
    dataset = from_tensors(
        [(torch.full((n, 2), at), torch.ones(n, 2)) for n, at in ((1, 1.0), (20, -1.0))]
    )
    result = simulate(
        dataset,
        Quadratic(2),
        quadratic_loss,
        algorithm="fedavg",
        clients_per_round=2,
        rounds=300,
        local_sgd=LocalSGD(lr=0.002, batch_size=1, epochs=1, momentum=0.9, normalise_steps=True),
        evaluate_every=300,
    )
    assert result.server.w.abs().max() < 0.1


@pytest.mark.slow
def test_scaffold_stays_stable_with_momentum() -> None:
    dataset = from_tensors([(torch.full((10, 2), float(i)), torch.ones(10, 2)) for i in range(10)])
    result = simulate(
        dataset,
        Quadratic(2),
        quadratic_loss,
        algorithm="scaffold",
        clients_per_round=10,
        local_sgd=LocalSGD(lr=0.01, batch_size=10, steps=40, momentum=0.9),
        rounds=60,
    )
    torch.testing.assert_close(result.server.w, torch.full((2,), 4.5), rtol=0, atol=0.05)


# What a run refuses


def test_cohort_and_table_weigh_clients_as_the_sampler_says() -> None:
    uneven = torch.tensor([1.0, 2.0, 3.0])
    sampler = WeightedSampler([1.0, 1.0, 1.0], 3, 0, objective=uneven)
    result = simulate(
        points(1, 1, 1),
        Quadratic(2),
        quadratic_loss,
        local_sgd=ONE_EPOCH,
        rounds=1,
        sampler=sampler,
    )
    table = result.server.aggregator.table
    assert table is not None
    rows = table.get(torch.arange(3))
    expected = (uneven / uneven.sum()) @ rows
    torch.testing.assert_close(table.mean(), expected)


@dataclasses.dataclass(frozen=True)
class OnlineUntil:
    """Everybody is online in the first rounds, and nobody after them."""

    last: int

    def online(self, seed: int, round: int, num_clients: int) -> Tensor:
        return torch.full((num_clients,), round < self.last)


def test_while_nobody_is_online_the_server_stays_where_it_is() -> None:
    """A sum over those who dropped out is zero; a sum over nobody asked is none."""
    models: list[Tensor] = []
    simulate(
        points(1, 1, 1),
        Quadratic(2),
        quadratic_loss,
        local_sgd=ONE_EPOCH,
        rounds=7,
        sampler=WeightedSampler([1.0, 1.0, 1.0], 2, 0, availability=OnlineUntil(3)),
        callbacks=[OnRoundEnd(lambda record, server: models.append(server.w.clone()))],
    )
    assert not torch.equal(models[2], models[3])
    for later in models[4:]:
        assert torch.equal(later, models[3])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"client_weights": torch.ones(2)}, "sampler is for 2 clients"),
        (
            {"clusters": torch.zeros(5, dtype=torch.int64)},
            "clusters.* 5 numbers; give one for each of the 3",
        ),
        ({"sampler": UniformSampler(9, 1, 0)}, "9 clients"),
        ({"target_accuracy": 50.0}, "at most 1"),
        ({"target_accuracy": 0.5}, "no accuracy.*no test examples"),
    ],
)
def test_settings_that_cannot_mean_what_they_say(wrong: dict[str, Any], message: str) -> None:
    settings: dict[str, Any] = {"local_sgd": ONE_EPOCH, "rounds": 1, "clients_per_round": 1}
    with pytest.raises(ValueError, match=message):
        simulate(points(1, 1, 1), Quadratic(2), quadratic_loss, **(settings | wrong))


def test_dense_labels_are_counted_one_by_one_and_single_outputs_refused() -> None:
    x, y = torch.zeros(4, 3, 5), torch.zeros(4, 5, dtype=torch.int64)
    x[:, 0] = 1.0  # class 0 wins everywhere
    y[:, :2] = 1  # and is wrong in two places of five

    def loss(output: Tensor, targets: Tensor) -> Tensor:
        return output.sum() * 0.0

    class Passing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.scale

    dense = from_tensors([(x, y)], test=(x, y), num_classes=3)
    flat = FlatModel(Passing())
    found = Evaluator(dense, flat, loss).evaluate(flat.vector(), {})
    assert found["test_accuracy"] == pytest.approx(0.6)
    single = from_tensors([(x[:, 0, 0], y[:, 0])], test=(x[:, 0, 0], y[:, 0]), num_classes=2)
    with pytest.raises(ValueError, match="one number for each class"):
        Evaluator(single, flat, loss).evaluate(flat.vector(), {})


# What a resumed run holds on to


def resumable(out: Path, **changes: Any) -> None:
    settings: dict[str, Any] = {
        "local_sgd": ONE_EPOCH,
        "rounds": 3,
        "clients_per_round": 2,
        "out": out,
        "resume": True,
    }
    model = changes.pop("model", Quadratic(2))
    loss = changes.pop("loss", quadratic_loss)
    simulate(points(1, 2, 3), model, loss, **(settings | changes))


def test_a_schedule_of_ones_own_can_be_resumed(tmp_path: Path) -> None:
    def halving(round: int) -> float:
        return 0.5**round

    for rounds in (2, 4):
        local = LocalSGD(lr=0.1, batch_size=1, epochs=1, schedule=halving)
        resumable(tmp_path, local_sgd=local, rounds=rounds)
    assert RunDirectory(tmp_path).settings()["local_sgd"]["schedule"]["name"].endswith("halving")


def test_another_loss_or_frozen_weight_is_another_run(tmp_path: Path) -> None:
    class WithFrozen(Quadratic):
        def __init__(self, value: float) -> None:
            super().__init__(2)
            self.frozen = nn.Parameter(torch.tensor(value), requires_grad=False)

    def other_loss(output: Tensor, targets: Tensor) -> Tensor:
        return quadratic_loss(output, targets)

    resumable(tmp_path, model=WithFrozen(1.0))
    with pytest.raises(RunError, match=r"model\.frozen = 1\.0 \(now 2\.0\)"):
        resumable(tmp_path, model=WithFrozen(2.0), rounds=5)
    with pytest.raises(RunError, match="loss = "):
        resumable(tmp_path, model=WithFrozen(1.0), loss=other_loss, rounds=5)


def test_a_missing_checkpoint_does_not_cost_the_metrics(tmp_path: Path) -> None:
    resumable(tmp_path)
    (tmp_path / "checkpoint" / "data.mdb").unlink()
    before = (tmp_path / "metrics.jsonl").read_bytes()
    with pytest.raises(RunError, match="no checkpoint to go on from"):
        resumable(tmp_path, rounds=5)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_lost_timings_are_no_reason_to_stop(tmp_path: Path) -> None:
    resumable(tmp_path)
    (tmp_path / "timings.jsonl").unlink()
    resumable(tmp_path, rounds=5)
    assert len(RunDirectory(tmp_path).metrics()) == 6


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="is a file"):
        resumable(tmp_path / "file")


def test_what_cannot_be_opened_locks_nobody_out(tmp_path: Path) -> None:
    resumable(tmp_path)
    (tmp_path / "timings.jsonl").unlink()
    (tmp_path / "timings.jsonl").mkdir()
    with pytest.raises(IsADirectoryError):
        resumable(tmp_path, rounds=5)
    (tmp_path / "timings.jsonl").rmdir()
    resumable(tmp_path, rounds=5)
