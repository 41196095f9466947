"""The round loop, its records, and runs that go on after whatever happened to them."""

from __future__ import annotations

import dataclasses
import json
import math
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from fedvarp import (
    DivergenceWarning,
    FedVARP,
    LocalSGD,
    MemoryTable,
    Server,
    ServerMomentum,
    SimulationResult,
)
from fedvarp.algorithms import ALGORITHMS, TableSettings
from fedvarp.clients.availability import Bernoulli, Trace
from fedvarp.clients.sampling import UniformSampler
from fedvarp.data import FederatedDataset, digits, from_tensors, quadratics
from fedvarp.errors import DamageWarning
from fedvarp.models import LogisticRegression, Quadratic, initialised, quadratic_loss
from fedvarp.runs import versions
from fedvarp.runs.directory import RunDirectory
from fedvarp.runs.errors import RunError
from fedvarp.server.checkpoint import Checkpoint
from fedvarp.simulation.callbacks import Record
from simulating import simulate

every_algorithm = pytest.mark.parametrize("algorithm", list(ALGORITHMS))
DIM = 650  # of a logistic regression on 8 × 8 digits: 64 · 10 + 10


@pytest.fixture(scope="module")
def some_digits() -> FederatedDataset:
    return digits()


def a_model(seed: int = 0) -> nn.Module:
    return initialised(lambda: LogisticRegression(64, 10), seed)


def short_run(dataset: FederatedDataset, **changes: Any) -> SimulationResult:
    settings: dict[str, Any] = {
        "local_sgd": LocalSGD(lr=0.5, batch_size=10, epochs=1),
        "clients_per_round": 3,
        "rounds": 6,
        "evaluate_every": 3,
    }
    if "sampler" in changes:
        settings["clients_per_round"] = None
    return simulate(dataset, a_model(), **(settings | changes))


def bits(result: SimulationResult) -> tuple[list[float], list[Record]]:
    return result.server.w.tolist(), result.metrics


# The loop


@every_algorithm
def test_repeating_a_run_gives_the_same_bits(some_digits: FederatedDataset, algorithm: str) -> None:
    first = short_run(some_digits, algorithm=algorithm)
    torch.manual_seed(12345)
    assert bits(short_run(some_digits, algorithm=algorithm)) == bits(first)
    other = short_run(some_digits, algorithm=algorithm, seed=1)
    assert not torch.equal(other.server.w, first.server.w)


def test_all_algorithms_meet_the_same_clients_and_batches(some_digits: FederatedDataset) -> None:
    seen: dict[str, tuple[object, ...]] = {}
    for algorithm in ALGORITHMS:
        result = short_run(some_digits, algorithm=algorithm)
        first_round = result.metrics[1]
        cohorts = [record["clients"] for record in result.metrics[1:]]
        # In round 1 all start from the same model without corrections: the same batches give the
        # same local loss to the last bit.
        seen[algorithm] = (cohorts, first_round["local_loss"])
    assert len({repr(facts) for facts in seen.values()}) == 1


def test_the_records_tell_what_happened(some_digits: FederatedDataset) -> None:
    metrics = short_run(some_digits).metrics
    assert [record["round"] for record in metrics] == list(range(7))
    figures = {"test_loss", "test_accuracy", "train_loss"}
    assert set(metrics[0]) == {"round", "num_clients", "objective"} | figures
    assert metrics[0]["num_clients"] == 100
    assert "test_accuracy" in metrics[3]
    assert "test_accuracy" not in metrics[4]
    record = metrics[1]
    assert len(record["clients"]) == 3
    assert record["num_steps"] == 3 * 2  # 16 examples, batches of 10: two steps each
    assert record["refused"] == {}
    # w in float32, three rows of float32, the running sum in float64.
    assert record["server_bytes"] == DIM * (4 + 3 * 4 + 8)


@pytest.mark.parametrize(
    ("algorithm", "down", "up"),
    [
        ("fedavg", 1, 1),
        ("fedvarp", 1, 1),
        ("scaffold", 2, 2),
        ("fedprox", 1, 1),
        ("feddyn", 2, 1),  # w and −h_i, which our server holds; w_i
    ],
)
def test_bytes_are_counted_by_the_algorithms_own_protocol(
    some_digits: FederatedDataset, algorithm: str, down: int, up: int
) -> None:
    sampler = UniformSampler(100, 4, seed=3, dropout=0.5)
    metrics = short_run(some_digits, algorithm=algorithm, sampler=sampler).metrics
    for t, record in enumerate(metrics[1:]):
        answered = len(sampler.cohort(t).answering.clients)
        assert record["bytes_down"] == 4 * DIM * 4 * down
        assert record["bytes_up"] == answered * DIM * 4 * up


def test_evaluation_is_what_its_definition_says(some_digits: FederatedDataset) -> None:
    result = short_run(some_digits)
    model = a_model()
    model.load_state_dict(result.model.state_dict())
    assert some_digits.test is not None
    x, y = some_digits.test
    with torch.no_grad():
        accuracy = (model(x).argmax(1) == y).double().mean()
        losses = [
            nn.functional.cross_entropy(model(x), y)
            for x, y in map(some_digits.client, range(some_digits.num_clients))
        ]
    assert result.final("test_accuracy") == pytest.approx(float(accuracy))
    assert result.final("train_loss") == pytest.approx(float(torch.stack(losses).mean()), rel=1e-5)
    with pytest.raises(KeyError, match="No round recorded 'f1'"):
        result.final("f1")


def test_the_training_loss_can_be_that_of_some_clients(some_digits: FederatedDataset) -> None:
    some = short_run(some_digits, num_train_clients=10)
    assert some.final("train_loss") != short_run(some_digits).final("train_loss")
    assert bits(short_run(some_digits, num_train_clients=10)) == bits(some)
    assert "train_loss" not in short_run(some_digits, num_train_clients=0).metrics[3]


def test_the_test_set_can_be_looked_at_in_part(some_digits: FederatedDataset) -> None:
    some, whole = short_run(some_digits, num_test_examples=50), short_run(some_digits)
    assert some.final("test_accuracy") * 50 == pytest.approx(
        round(some.final("test_accuracy") * 50)
    )
    assert some.final("test_loss") != whole.final("test_loss")
    assert some.final("train_loss") == whole.final("train_loss")
    assert bits(short_run(some_digits, num_test_examples=50)) == bits(some)
    assert bits(short_run(some_digits, num_test_examples=10**6)) == bits(whole)
    assert "test_loss" not in short_run(some_digits, num_test_examples=0).metrics[3]
    with pytest.raises(ValueError, match=r"target_accuracy=0.5 .*num_test_examples is 0"):
        short_run(some_digits, num_test_examples=0, target_accuracy=0.5)


def test_a_run_stops_at_its_target(some_digits: FederatedDataset) -> None:
    result = short_run(some_digits, rounds=200, target_accuracy=0.5)
    assert result.stopped == "target"
    assert result.final("test_accuracy") >= 0.5
    earlier = [r["test_accuracy"] for r in result.metrics[:-1] if "test_accuracy" in r]
    assert all(accuracy < 0.5 for accuracy in earlier)


def test_callbacks_see_every_round(some_digits: FederatedDataset) -> None:
    seen: list[tuple[int, int]] = []

    def note(record: Record, server: Server) -> None:
        seen.append((record["round"], server.round))

    short_run(some_digits, callbacks=[note])
    assert seen == [(t, t) for t in range(7)]


def test_an_algorithm_of_ones_own_is_a_function(some_digits: FederatedDataset) -> None:
    def mine(table: TableSettings) -> FedVARP:
        return FedVARP(MemoryTable(table.num_clients, table.dim, "bfloat16"))

    result = short_run(some_digits, algorithm=mine)
    assert result.server.describe()["codec"] == "bfloat16"


def test_nobody_online_is_a_round_that_only_counts(some_digits: FederatedDataset) -> None:
    sampler = UniformSampler(100, 3, seed=0, availability=Bernoulli(0.0))
    result = short_run(some_digits, sampler=sampler)
    assert result.server.round == 6
    assert all(record["clients"] == [] for record in result.metrics[1:])
    assert torch.equal(result.server.w, short_run(some_digits, rounds=1, sampler=sampler).server.w)


def test_a_client_that_diverges_is_named_and_the_round_goes_on() -> None:
    x, y = torch.randn(5, 8, 4), torch.zeros(5, 8, dtype=torch.int64)
    x[3] = math.inf  # one client's data is broken
    dataset = from_tensors([(x[i], y[i]) for i in range(5)], num_classes=2)
    model = initialised(lambda: LogisticRegression(4, 2), 0)
    with pytest.warns(DivergenceWarning, match="2 of 10 replies.*non-finite"):
        result = simulate(
            dataset,
            model,
            local_sgd=LocalSGD(lr=0.1, batch_size=8, epochs=2),
            clients_per_round=5,
            rounds=2,
            num_train_clients=0,
        )
    for record in result.metrics[1:]:
        assert record["clients"] == [0, 1, 2, 4]
        assert "non-finite" in record["refused"]["3"]
    assert result.server.w.isfinite().all()


class WithBuffers(nn.Module):
    """Counts its batches and remembers the mean of its inputs: buffers of both kinds."""

    steps: Tensor
    level: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)
        self.register_buffer("steps", torch.tensor(0))
        self.register_buffer("level", torch.tensor(0.0))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.steps += 1
            self.level.copy_(x.detach().mean())
        logits: Tensor = self.layer(x.flatten(1))
        return logits


def test_buffers_travel_beside_the_vector(some_digits: FederatedDataset, tmp_path: Path) -> None:
    def run(out: Path, rounds: int, resume: bool = False) -> dict[str, Tensor]:
        settings = LocalSGD(lr=0.1, batch_size=8, epochs=1)
        model = initialised(WithBuffers, 0)
        return simulate(
            some_digits,
            model,
            local_sgd=settings,
            clients_per_round=3,
            rounds=rounds,
            out=out,
            resume=resume,
        ).model.state_dict()

    whole = run(tmp_path / "whole", 4)
    assert int(whole["steps"]) == 4 * 2  # two batches a client and round, the maximum over clients
    assert 0 < float(whole["level"]) < 1
    run(tmp_path / "pieces", 2)
    pieces = run(tmp_path / "pieces", 4, resume=True)
    assert all(torch.equal(pieces[name], whole[name]) for name in whole)


def test_unequal_client_weights_change_the_objective() -> None:
    """FedVARP on quadratics with p = (½, ½, 0 …): the fixed point is that of the two clients."""
    problem = quadratics(num_clients=6, dim=4, num_clusters=2, sigma2=0.0, seed=1)
    weights = torch.tensor([0.5, 0.5, 1e-9, 1e-9, 1e-9, 1e-9])
    result = simulate(
        problem,
        Quadratic(4),
        quadratic_loss,
        local_sgd=LocalSGD(lr=0.2, batch_size=10, steps=1),
        clients_per_round=3,
        rounds=900,
        client_weights=weights,
        evaluate_every=900,
    )
    centres = torch.stack([problem.client(i)[0].mean(0) for i in range(2)])
    torch.testing.assert_close(result.server.w, centres.mean(0), rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"clients_per_round": 101}, "101"),
        ({"clients_per_round": None}, "clients_per_round = None.*whole number.*UniformSampler"),
        ({"rounds": 0}, "rounds = 0 should be at least 1"),
        ({"evaluate_every": 0}, "every = 0 should be at least 1"),
        ({"commit_every": 0}, "commit_every = 0 should be at least 1"),
        ({"algorithm": "sgd"}, "'sgd' is no algorithm; there are fedavg, fedvarp"),
        ({"where": "cloud"}, "where = 'cloud' is not one of memory or disk"),
        ({"where": "disk"}, "say where with recording="),
        ({"codec": "int4"}, "codec = 'int4' is not one of"),
    ],
)
def test_wrong_settings_are_refused(
    some_digits: FederatedDataset, wrong: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        short_run(some_digits, **wrong)


def test_clusters_are_needed_for_clustering() -> None:
    dataset = from_tensors([(torch.zeros(2, 64), torch.zeros(2, dtype=torch.int64))] * 4)
    with pytest.raises(ValueError, match=r"Set table\.clusters"):
        short_run(dataset, algorithm="cluster_fedvarp")


# Run directories


def test_a_run_directory_holds_everything(some_digits: FederatedDataset, tmp_path: Path) -> None:
    result = short_run(some_digits, out=tmp_path / "run")
    run = RunDirectory(tmp_path / "run")
    assert run.metrics() == result.metrics
    assert [record["round"] for record in run.timings()] == list(range(7))
    assert run.settings()["algorithm"] == "fedvarp"
    assert run.settings()["local_sgd"]["lr"] == 0.5
    assert run.settings()["seed"] == 0
    assert "torch" in json.loads((run.path / "versions.json").read_text())
    exported = a_model(seed=9)
    exported.load_state_dict(safetensors.torch.load_file(run.model_file))
    assert some_digits.test is not None
    x, y = some_digits.test
    accuracy = float((exported(x).argmax(1) == y).double().mean())
    assert accuracy == pytest.approx(result.final("test_accuracy"))


def brighter(dataset: FederatedDataset) -> FederatedDataset:
    """The same clients in number and size, with other pixels."""

    def load(client: int) -> tuple[Tensor, Tensor]:
        x, y = dataset.load(client)
        return x + 0.1, y

    return dataclasses.replace(dataset, load=load)


def test_versions_that_changed_are_told_and_noted(
    some_digits: FederatedDataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    short_run(some_digits, out=tmp_path, rounds=2)
    file = tmp_path / "versions.json"
    first = json.loads(file.read_text())
    monkeypatch.setattr(versions, "present", lambda: {**first, "numpy": "99.1"})
    short_run(some_digits, out=tmp_path, rounds=2, resume=True)  # nothing was left to train
    assert json.loads(file.read_text()) == first
    short_run(some_digits, out=tmp_path, rounds=3, resume=True)
    assert f"numpy = {first['numpy']} (now 99.1): from round 3 on" in capsys.readouterr().err
    later = [{"after_round": 2, "numpy": "99.1"}]
    assert json.loads(file.read_text()) == {**first, "later": later}
    short_run(some_digits, out=tmp_path, rounds=4, resume=True)  # the same again: told once
    assert "numpy" not in capsys.readouterr().err
    file.write_text("half a li")
    with pytest.warns(DamageWarning, match=r"versions\.json was damaged.* anew .*checkpoint"):
        short_run(some_digits, out=tmp_path, rounds=5, resume=True)
    assert json.loads(file.read_text()) == {**first, "later": later}


def test_a_run_does_not_go_on_with_other_draws(
    some_digits: FederatedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is recorded stays good; only rounds that are still to be trained are refused."""
    short_run(some_digits, out=tmp_path, rounds=2)
    monkeypatch.setattr(versions, "DRAWS", versions.DRAWS + 1)
    short_run(some_digits, out=tmp_path, rounds=2, resume=True)
    before = {file: file.read_bytes() for file in tmp_path.glob("*.*")}
    with pytest.raises(RunError, match=r"draws = 2, now 3.*version it was begun with, or begin"):
        short_run(some_digits, out=tmp_path, rounds=3, resume=True)
    assert {file: file.read_bytes() for file in tmp_path.glob("*.*")} == before


def test_a_run_that_is_there_is_not_overwritten(
    some_digits: FederatedDataset, tmp_path: Path
) -> None:
    short_run(some_digits, out=tmp_path)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    with pytest.raises(RunError, match=r"holds a run already.*resume=True"):
        short_run(some_digits, out=tmp_path)
    with pytest.raises(RunError, match=r"algorithm = fedvarp \(now mifa\)"):
        short_run(some_digits, out=tmp_path, resume=True, algorithm="mifa")
    with pytest.raises(RunError, match=r"local_sgd.lr = 0.5 \(now 0.1\)"):
        short_run(
            some_digits,
            out=tmp_path,
            resume=True,
            local_sgd=LocalSGD(lr=0.1, batch_size=10, epochs=1),
        )
    with pytest.raises(RunError, match=r"dataset.fingerprint = .*\(now .*`augment`"):
        short_run(brighter(some_digits), out=tmp_path, resume=True)
    with pytest.raises(RunError, match=r"server_optimizer.optimizer = sgd \(now momentum\)"):
        short_run(some_digits, out=tmp_path, resume=True, server_optimizer=ServerMomentum())
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_another_trace_is_another_run(some_digits: FederatedDataset, tmp_path: Path) -> None:
    def run(online: Sequence[int]) -> SimulationResult:
        trace = Trace({0: online, 1: [4, 5]}, after_end="repeat")
        sampler = UniformSampler(some_digits.num_clients, 1, 0, trace)
        return short_run(some_digits, out=tmp_path, resume=True, sampler=sampler)

    run(range(1, 3))
    run([1, 2])
    for other in ([1, 3], range(1, 4)):
        with pytest.raises(RunError, match=r"availability\.clients = 2 entries, sha256"):
            run(other)


def test_settings_that_fail_leave_no_run_behind(
    some_digits: FederatedDataset, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="codec = 'int4'"):
        short_run(some_digits, out=tmp_path, codec="int4")
    assert short_run(some_digits, out=tmp_path).stopped == "rounds"


def test_resuming_a_finished_run_changes_nothing(
    some_digits: FederatedDataset, tmp_path: Path
) -> None:
    first = short_run(some_digits, out=tmp_path)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    again = short_run(some_digits, out=tmp_path, resume=True)
    assert bits(again) == bits(first)
    assert again.stopped == "rounds"
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_a_finished_run_can_be_made_longer(some_digits: FederatedDataset, tmp_path: Path) -> None:
    short_run(some_digits, out=tmp_path / "pieces", rounds=3)
    longer = short_run(some_digits, out=tmp_path / "pieces", rounds=6, resume=True)
    assert bits(longer) == bits(short_run(some_digits))


def test_a_run_that_reached_its_target_stays_there(
    some_digits: FederatedDataset, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"rounds": 200, "target_accuracy": 0.5, "out": tmp_path}
    first = short_run(some_digits, **settings)
    again = short_run(some_digits, **settings, resume=True)
    assert again.stopped == "target"
    assert again.server.round == first.server.round


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("metrics.jsonl", lambda content: b""),
        ("metrics.jsonl", lambda content: bytes(len(content))),
        ("metrics.jsonl", lambda content: content.replace(b'"round": 3', b'"round": 7')),
        ("metrics.jsonl", None),
        ("config.toml", lambda content: bytes(len(content))),
        ("config.toml", None),
        ("versions.json", None),
    ],
)
@pytest.mark.filterwarnings("ignore::fedvarp.errors.DamageWarning")
def test_the_checkpoint_has_a_copy_of_the_small_files(
    some_digits: FederatedDataset,
    tmp_path: Path,
    name: str,
    damage: Callable[[bytes], bytes] | None,
) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    for folder in (run, other):
        short_run(some_digits, out=folder)
    if damage is None:
        (run / name).unlink()
    else:
        (run / name).write_bytes(damage((run / name).read_bytes()))
    for folder in (run, other):
        short_run(some_digits, out=folder, rounds=8, resume=True)
    for file in ("config.toml", "metrics.jsonl", "model.safetensors", name):
        assert (run / file).read_bytes() == (other / file).read_bytes()


def test_a_first_line_that_was_half_written_is_no_damage(
    some_digits: FederatedDataset, tmp_path: Path
) -> None:
    """The run ended before its first commit, over a disk that was full."""
    run, other = tmp_path / "run", tmp_path / "other"
    for folder in (run, other):
        short_run(some_digits, out=folder)
    shutil.rmtree(run / "checkpoint")
    Checkpoint(run / "checkpoint").close()
    (run / "metrics.jsonl").write_bytes(b'{"round": 0, "obj{"round": 0}\n')
    with pytest.warns(DamageWarning, match=r"metrics\.jsonl was damaged"):
        short_run(some_digits, out=run, resume=True)
    assert (run / "metrics.jsonl").read_bytes() == (other / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize("lost", [b"", bytes(20)], ids=["cut off", "never written"])
def test_timings_lost_in_a_power_failure_cost_nothing_else(
    some_digits: FederatedDataset, tmp_path: Path, lost: bytes
) -> None:
    short_run(some_digits, out=tmp_path)
    timings = tmp_path / "timings.jsonl"
    timings.write_bytes(timings.read_bytes()[:-20] + lost)  # half of a line is left
    short_run(some_digits, out=tmp_path, rounds=8, resume=True)
    assert [line["round"] for line in RunDirectory(tmp_path).timings()] == [0, 1, 2, 3, 4, 5, 7, 8]


@pytest.mark.parametrize("commit_every", [1, 4])
@pytest.mark.parametrize("states", ["memory", "disk"])
@every_algorithm
def test_a_run_in_pieces_is_the_run_in_one(
    some_digits: FederatedDataset,
    tmp_path: Path,
    algorithm: str,
    states: str,
    commit_every: int,
) -> None:
    common: dict[str, Any] = {"algorithm": algorithm, "server_optimizer": ServerMomentum(0.5)}
    whole = short_run(some_digits, **common)

    class PlugPulledError(Exception):
        pass

    def pull(record: Record, server: Server) -> None:
        if record["round"] in (2, 5) and record["round"] not in pulled:
            pulled.append(record["round"])
            raise PlugPulledError

    pulled: list[int] = []
    for _ in range(2):
        with pytest.raises(PlugPulledError):
            short_run(
                some_digits,
                **common,
                out=tmp_path,
                resume=True,
                where=states,
                commit_every=commit_every,
                callbacks=[pull],
            )
    pieces = short_run(
        some_digits,
        **common,
        out=tmp_path,
        resume=True,
        where=states,
        commit_every=commit_every,
        callbacks=[pull],
    )
    assert bits(pieces) == bits(whole)
    assert RunDirectory(tmp_path).metrics() == whole.metrics


RUNNER = """
import sys, torch
from torch.nn.functional import cross_entropy
from fedvarp import Evaluation, LocalSGD, Recording, Table, simulate
from fedvarp.data import digits
from fedvarp.errors import DamageWarning
from fedvarp.models import LogisticRegression, initialised
torch.set_num_threads(1)
out, algorithm, states, rounds = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
dataset = digits()
result = simulate(
    dataset, initialised(lambda: LogisticRegression(64, 10), 0), algorithm=algorithm,
    local_sgd=LocalSGD(lr=0.5, batch_size=10, epochs=3), clients_per_round=3, rounds=rounds,
    evaluation=Evaluation(every=7, num_train_clients=20), table=Table(where=states),
    recording=Recording(out=out, resume=True, fsync=False),
)
print(result.stopped, result.server.round, flush=True)
"""


def start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", RUNNER, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def outcome(directory: Path) -> tuple[bytes, bytes]:
    return (directory / "metrics.jsonl").read_bytes(), (
        directory / "model.safetensors"
    ).read_bytes()


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)


def kill_at_random(directory: Path, algorithm: str, states: str, rounds: int, kills: int) -> None:
    """Kills the run `kills` times at random moments of its life, then lets it end."""
    moment = random.Random(f"{algorithm} {states}")
    metrics = directory / "metrics.jsonl"
    reached = [0]
    for _ in range(kills):
        run = start(directory, algorithm, states, rounds)
        further = reached[-1] + moment.randint(2, rounds // (kills + 1))
        wait_for(lambda lines=further: num_lines(metrics) >= lines)  # type: ignore[misc]
        time.sleep(moment.uniform(0.0, 0.03))  # anywhere within a round and its commit
        run.send_signal(signal.SIGKILL)
        run.communicate()
        reached.append(num_lines(metrics))
    assert reached == sorted(set(reached)), "each kill found the run further on"
    assert reached[-1] < rounds, "the last kill came before the end"
    run = start(directory, algorithm, states, rounds)
    output, errors = run.communicate(timeout=300)
    assert run.returncode == 0, errors
    assert output.split() == ["rounds", str(rounds)]


def num_lines(file: Path) -> int:
    return file.read_bytes().count(b"\n") if file.exists() else 0


def test_a_killed_run_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    kill_at_random(tmp_path / "killed", "fedvarp", "memory", rounds=80, kills=2)
    kill_at_random(tmp_path / "calm", "fedvarp", "memory", rounds=80, kills=0)
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "calm")


@pytest.mark.slow
@pytest.mark.parametrize("states", ["memory", "disk"])
@every_algorithm
def test_runs_killed_many_times_go_on_as_if_nothing_had_happened(
    tmp_path: Path, algorithm: str, states: str
) -> None:
    """5 algorithms × 2 places × 4 kills."""
    kill_at_random(tmp_path / "killed", algorithm, states, rounds=150, kills=4)
    kill_at_random(tmp_path / "calm", algorithm, states, rounds=150, kills=0)
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "calm")


def test_ctrl_c_finishes_the_round_and_says_how_to_go_on(tmp_path: Path) -> None:
    run = start(tmp_path, "fedvarp", "memory", 100_000)
    wait_for(lambda: (tmp_path / "metrics.jsonl").exists())
    wait_for(lambda: len((tmp_path / "metrics.jsonl").read_bytes().splitlines()) > 3)
    run.send_signal(signal.SIGINT)
    output, errors = run.communicate(timeout=60)
    assert run.returncode == 0, errors
    stopped, round_ = output.split()
    assert stopped == "interrupted"
    assert f"Stopped after round {round_} of 100000" in errors
    assert "resume=True" in errors
    assert RunDirectory(tmp_path).metrics()[-1]["round"] == int(round_)


def test_a_second_process_on_the_same_run_is_turned_away(tmp_path: Path) -> None:
    first = start(tmp_path, "fedvarp", "memory", 100_000)
    wait_for(lambda: (tmp_path / "metrics.jsonl").exists())
    second = start(tmp_path, "fedvarp", "memory", 100_000)
    _, errors = second.communicate(timeout=60)
    assert second.returncode != 0
    assert "in use by another process" in errors
    first.send_signal(signal.SIGINT)
    assert first.wait(timeout=60) == 0
    first.communicate()


# The reason the package exists


def late_loss(dataset: FederatedDataset, algorithm: str, seed: int) -> float:
    """The mean training loss of the eleven evaluations from round 200 to round 300.

    FedAvg swings from round to round: a single round would compare luck.
    """
    result = simulate(
        dataset,
        a_model(seed),
        algorithm=algorithm,
        local_sgd=LocalSGD(lr=1.0, batch_size=10, epochs=10),
        clients_per_round=2,
        rounds=300,
        seed=seed,
        evaluate_every=10,
    )
    late = [r["train_loss"] for r in result.metrics[200:] if "train_loss" in r]
    assert len(late) == 11
    return float(sum(late) / len(late))


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))]
)
def test_fedvarp_ends_with_a_clearly_lower_loss_than_fedavg(seed: int) -> None:
    """2 of 100 clients a round, 10 epochs, rate 1. Over four seeds FedAvg ended at 0.13 to 0.15 and
    FedVARP at 0.085 to 0.101 (an independent implementation: 0.22 and 0.08)."""
    dataset = digits(seed=seed)
    varp, avg = late_loss(dataset, "fedvarp", seed), late_loss(dataset, "fedavg", seed)
    assert varp < 0.85 * avg
    assert varp < 0.11


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["cluster_fedvarp", "mifa", "scaffold"])
def test_every_memory_of_the_absent_beats_fedavg(algorithm: str) -> None:
    """In the mean over three seeds; an independent implementation gave 0.10, 0.12 and 0.05."""
    seeds = range(3)
    with_memory = sum(late_loss(digits(seed=s), algorithm, s) for s in seeds)
    assert with_memory < 0.95 * sum(late_loss(digits(seed=s), "fedavg", s) for s in seeds)
