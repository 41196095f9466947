"""What a simulation refuses before it begins, and that a refusal leaves no trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedvarp
from fedvarp import LocalSGD, Recording, SimulationResult, Table, Trainer
from fedvarp.clients.availability import Trace
from fedvarp.clients.cohorts import Cohort
from fedvarp.clients.importance_sampling import ImportanceSampler
from fedvarp.clients.round_robin import RoundRobinSampler
from fedvarp.clients.sampling import UniformSampler, WeightedSampler
from fedvarp.clients.stratified_sampling import StratifiedSampler
from fedvarp.data import FederatedDataset, from_function, from_tensors
from fedvarp.models import LogisticRegression, initialised
from fedvarp.runs.errors import RunError

NUM_CLIENTS = 4


def four_clients(**about: Any) -> FederatedDataset:
    draw = torch.Generator().manual_seed(0)
    examples = [
        (torch.randn(6, 3, generator=draw), torch.arange(6) % 2) for _ in range(NUM_CLIENTS)
    ]
    return from_tensors(examples, test=examples[0], num_classes=2, **about)


def run(dataset: FederatedDataset | None = None, **changes: Any) -> SimulationResult:
    how: dict[str, Any] = {
        "local_sgd": LocalSGD(lr=0.1, batch_size=3, epochs=1),
        "rounds": 3,
        "clients_per_round": 2,
    }
    # A start that learns: from some, 50 rounds on examples without a pattern lead uphill.
    model = changes.pop("model", None) or initialised(lambda: LogisticRegression(3, 2), seed=0)
    return fedvarp.simulate(dataset or four_clients(), model, **(how | changes))


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


# Where a run may begin


def test_a_directory_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("a stranger's\n")
    for recording in (tmp_path, Recording(out=str(tmp_path), resume=True)):
        with pytest.raises(RunError, match=r"no run, but holds metrics\.jsonl.*new or empty"):
            run(recording=recording)
    assert listing(tmp_path) == ["metrics.jsonl"]
    assert (tmp_path / "metrics.jsonl").read_text() == "a stranger's\n"


def test_an_empty_directory_and_one_with_hidden_files_will_do(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / ".gitkeep").touch()
    for name in ("empty", "kept"):
        assert run(recording=tmp_path / name).stopped == "rounds"


@pytest.mark.parametrize(
    "wrong",
    [
        {"model": nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))},  # found by the flat model
        {"model": nn.Linear(5, 2)},  # found by the first evaluation
        {"table": Table(where="disk", clusters="auto:9"), "algorithm": "cluster_fedvarp"},
        {"table": Table(where="disk"), "algorithm": "cluster_fedvarp"},  # there are no clusters
        {"trainer": Trainer(name="vectorised", compile=True)},
    ],
    ids=["batch norm", "input size", "too many clusters", "no clusters", "trainer"],
)
def test_a_refused_run_leaves_nothing_behind(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises((ValueError, RuntimeError)):
        run(recording=tmp_path / "folder" / "run", **wrong)
    assert listing(tmp_path) == []


def test_data_that_cannot_be_loaded_leaves_nothing_behind(tmp_path: Path) -> None:
    whole = four_clients()

    def load(client: int) -> tuple[Tensor, Tensor]:
        if client == 2:
            raise OSError("the disk was pulled out")
        return whole.client(client)

    (tmp_path / "there").mkdir()
    (tmp_path / "there" / ".gitkeep").touch()
    with pytest.raises(OSError, match="pulled out"):
        run(from_function(load, NUM_CLIENTS), recording=tmp_path / "there", clients_per_round=4)
    assert listing(tmp_path) == ["there", "there/.gitkeep"]


def test_rounds_that_were_trained_stay(tmp_path: Path) -> None:
    class Fails(fedvarp.Callback):
        def on_round_begin(self, round: int, server: fedvarp.Server) -> None:
            if round == 2:
                raise OSError("the disk was pulled out")

    with pytest.raises(OSError, match="pulled out"):
        run(recording=tmp_path, callbacks=[Fails()])
    result = run(recording=Recording(out=str(tmp_path), resume=True))
    assert [record["round"] for record in result.metrics] == [0, 1, 2, 3]


def test_a_run_killed_before_its_first_round_is_begun_anew(tmp_path: Path) -> None:
    run(recording=tmp_path)
    for file in tmp_path.iterdir():
        if file.is_file() and file.name != "config.toml":
            file.unlink()
    for file in (tmp_path / "checkpoint").iterdir():
        file.unlink()
    assert run(recording=Recording(out=str(tmp_path), resume=True)).server.round == 3


# What could only fail later


def short_trace(after_end: Any = "error", clients: Any = (0, 1)) -> UniformSampler:
    return UniformSampler(NUM_CLIENTS, 2, 0, Trace(dict.fromkeys(range(50), clients), after_end))


def test_a_trace_shorter_than_the_run_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has 50 rounds.*rounds=51.*at most 50.*repeat"):
        run(clients_per_round=short_trace(), rounds=51, recording=tmp_path)
    assert listing(tmp_path) == []
    assert run(clients_per_round=short_trace(), rounds=50).server.round == 50  # as it says
    assert run(clients_per_round=short_trace("repeat"), rounds=51).server.round == 51


def test_a_trace_of_another_federation_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has clients 0 to 7.*federation has 0 to 3"):
        run(clients_per_round=short_trace(clients=(0, 7)), recording=tmp_path)
    assert listing(tmp_path) == []


def test_a_resumed_run_cannot_outlast_its_trace(tmp_path: Path) -> None:
    run(clients_per_round=short_trace(), rounds=2, recording=tmp_path)
    again = Recording(out=str(tmp_path), resume=True)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    with pytest.raises(ValueError, match=r"at most 50"):
        run(clients_per_round=short_trace(), rounds=60, recording=again)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    assert run(clients_per_round=short_trace(), rounds=50, recording=again).server.round == 50


class Fixed:
    """A sampler of somebody's own."""

    def __init__(self, clients: Any) -> None:
        self.clients = clients

    def cohort(self, round: int) -> Any:
        if not isinstance(self.clients, list):
            return self.clients
        return Cohort(torch.tensor(self.clients), torch.ones(len(self.clients), dtype=torch.bool))


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ([1, 1, 2], r"\[1, 1, 2\].*once"),
        ([0, 4], r"[Cc]lient 4 .*0 … 3"),
        ([-1], "[Cc]lient -1"),
        (None, "NoneType.*Cohort"),
        (torch.tensor([0, 1]), "Tensor.*Cohort"),
    ],
)
def test_a_cohort_that_cannot_be_is_refused_and_its_sampler_named(
    clients: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=rf"Fixed\.cohort\(0\).*{message}"):
        run(clients_per_round=Fixed(clients), recording=tmp_path)
    assert listing(tmp_path) == []


def test_resume_needs_a_place(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"resume=True.*Recording\(out="):
        run(recording=Recording(resume=True))


def test_far_more_threads_than_cores_are_refused() -> None:
    before = torch.get_num_threads()
    with pytest.raises(ValueError, match=r"threads=1000.*cores.*Choose 1 to"):
        run(trainer=Trainer(threads=1000))
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("left_out", "why"), [("test", "no test examples"), ("num_classes", "num_classes=")]
)
def test_a_target_that_has_no_accuracy_says_why(left_out: str, why: str) -> None:
    x, y = torch.zeros(2, 3), torch.tensor([0, 1])
    about = {"test": (x, y), "num_classes": 2}
    del about[left_out]
    with pytest.raises(ValueError, match=f"target_accuracy=0.5 .* no accuracy.*{why}"):
        run(
            from_tensors([(x, y)] * NUM_CLIENTS, **about),  # type: ignore[arg-type]
            evaluation=fedvarp.Evaluation(target_accuracy=0.5),
        )


# What is taken though it is no tensor


class Somewhere:
    """A path that is neither a text nor a Path."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __fspath__(self) -> str:
        return str(self.path)


def test_arrays_and_lists_stand_for_tensors(tmp_path: Path) -> None:
    x, y = np.linspace(0, 1, 18).reshape(6, 3), np.arange(6, dtype=np.int32) % 2
    of_tensors, of_arrays, of_lists = (
        from_tensors(
            [(kind(x + i), kind(y)) for i in range(NUM_CLIENTS)],
            cluster_of=kind(np.array([0, 0, 1, 1])),
            test=(kind(x), kind(y)),
            num_classes=2,
        )
        for kind in (
            lambda a: torch.tensor(a.tolist()),
            lambda a: a,
            lambda a: a.tolist(),
        )
    )
    models = []
    for dataset in (of_tensors, of_arrays, of_lists):
        assert dataset.fingerprint() == of_tensors.fingerprint()
        model = LogisticRegression(3, 2)
        torch.manual_seed(0)
        model.load_state_dict({n: torch.zeros_like(p) for n, p in model.state_dict().items()})
        run(dataset, model=model, algorithm="cluster_fedvarp")
        models.append(model.state_dict())
    for other in models[1:]:
        assert all(torch.equal(models[0][name], other[name]) for name in other)


def test_any_path_will_do(tmp_path: Path) -> None:
    assert Recording(out=Somewhere(tmp_path)).out == str(tmp_path)  # type: ignore[arg-type]
    run(recording=Somewhere(tmp_path / "run"))
    assert (tmp_path / "run" / "config.toml").exists()


# Weights that the algorithm cannot use


class _Unequal:
    """A sampler of one's own, whose cohorts count unequally from the third round on."""

    def cohort(self, round: int) -> Cohort:
        weights = torch.tensor([0.5, 0.5 if round < 2 else 0.4], dtype=torch.float64)
        return Cohort(torch.tensor([0, 1]), torch.tensor([True, True]), weights)


@pytest.mark.parametrize("algorithm", ["median", "trimmed_mean(beta=0)"])
@pytest.mark.parametrize("clip_updates", [None, "median"])
@pytest.mark.parametrize(
    "sampler",
    [
        WeightedSampler([1, 2, 3, 4], 2, seed=0),
        WeightedSampler([1, 1, 1, 1], 2, seed=0, objective=[1, 2, 3, 4]),
        StratifiedSampler([0, 0, 1, 1], 2, seed=0, objective=[1, 2, 3, 4]),
        ImportanceSampler(4, 2, seed=0),
        _Unequal(),
    ],
)
def test_unequal_weights_are_refused_where_clients_must_count_the_same(
    algorithm: str, clip_updates: Any, sampler: Any, tmp_path: Path
) -> None:
    """Before the first round: nothing is written."""
    with pytest.raises(ValueError, match=r"counts all clients .*unequal weights.*uniformly"):
        run(
            algorithm=algorithm,
            clients_per_round=sampler,
            table=Table(clip_updates=clip_updates),
            recording=tmp_path / "run",
        )
    assert listing(tmp_path) == []


def test_equal_weights_are_not_refused() -> None:
    for sampler in (
        WeightedSampler([1, 1, 1, 1], 2, seed=0),
        RoundRobinSampler(4, 2, seed=0, objective=[3, 3, 3, 3]),
    ):
        assert len(run(algorithm="median", clients_per_round=sampler).metrics) == 4
