"""Resuming after any commit gives the run that was never interrupted, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import registry
from fedvarp import Checkpoint, Server, ServerMomentum, ServerOptimizer, ServerSGD
from fedvarp.server import SERVER_OPTIMIZERS
from fedvarp.server.names import make_server_optimizer
from quadratics import Quadratics

N, M, D, ROUNDS = 12, 4, 6, 9


def problem_for(codec: str) -> Quadratics:
    return Quadratics.make(N, D, torch.float64 if codec == "float64" else torch.float32)


def optimizer_named(name: str) -> ServerOptimizer:
    return ServerMomentum(0.5, 0.9) if name == "momentum" else make_server_optimizer(name)


def play(server: Server, problem: Quadratics) -> None:
    """One round; from one to the next, clients take unequally many steps."""
    asked = server.broadcast(problem.cohort(server.round, M))
    server.receive(problem.train(asked, num_steps=1 + server.round % 5))


def one_sitting(
    folder: Path, algorithm: str, place: str, codec: str, optimizer: str, until: int
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Opens the folder, goes on to round `until` with a commit after each round, closes it."""
    problem = problem_for(codec)
    aggregator = registry.algorithm_in(algorithm, place, folder, N, D, codec)
    with Checkpoint(folder, fsync=False) as checkpoint:
        server = Server(
            torch.zeros_like(problem.centres[0]), aggregator, optimizer_named(optimizer)
        )
        checkpoint.restore(server)
        while server.round < until:
            play(server, problem)
            checkpoint.commit(server)
        table = aggregator.table
        rows = None if table is None else table.get(torch.arange(N))
        mean = None if table is None else table.mean()
    registry.close(table)
    return server.w, rows, mean


def assert_equal(one: tuple[object, ...], other: tuple[object, ...]) -> None:
    for a, b in zip(one, other, strict=True):
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            assert torch.equal(a, b)
        else:
            assert a is b is None


@registry.every_algorithm
@registry.every_codec
@registry.every_place
@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_a_run_in_many_sittings_is_the_run_in_one(
    tmp_path: Path, algorithm: str, codec: str, place: str, optimizer: str
) -> None:
    whole = one_sitting(tmp_path / "whole", algorithm, place, codec, optimizer, ROUNDS)
    for until in range(1, ROUNDS + 1):  # a new process's worth of objects after every commit
        pieces = one_sitting(tmp_path / "pieces", algorithm, place, codec, optimizer, until)
    assert_equal(pieces, whole)


@registry.every_algorithm
@pytest.mark.parametrize("optimizer", list(SERVER_OPTIMIZERS))
def test_every_optimiser_resumes_with_what_it_remembers(
    tmp_path: Path, algorithm: str, optimizer: str
) -> None:
    if optimizer == "exp" and registry.fresh(algorithm).withstands_outliers:
        with pytest.raises(ValueError, match="clip_updates"):
            one_sitting(tmp_path / "whole", algorithm, "memory", "float32", optimizer, ROUNDS)
        return
    whole = one_sitting(tmp_path / "whole", algorithm, "memory", "float32", optimizer, ROUNDS)
    for until in (1, 4, ROUNDS):
        pieces = one_sitting(tmp_path / "pieces", algorithm, "memory", "float32", optimizer, until)
    assert_equal(pieces, whole)
    assert whole[0].norm() > 0


@pytest.mark.parametrize("algorithm", ["fedvarp", "cluster_fedvarp"])
@registry.every_codec
def test_a_table_may_move_between_memory_and_disk(
    tmp_path: Path, algorithm: str, codec: str
) -> None:
    whole = one_sitting(tmp_path / "whole", algorithm, "memory", codec, "sgd", ROUNDS)
    for until in range(1, ROUNDS + 1):
        place = registry.PLACES[until % 2]
        pieces = one_sitting(tmp_path / "pieces", algorithm, place, codec, "sgd", until)
    assert_equal(pieces, whole)


@registry.every_place
def test_rounds_after_the_last_commit_are_forgotten(tmp_path: Path, place: str) -> None:
    """A sitting that ends between commits: model and table go back together."""
    problem = problem_for("float32")
    whole = one_sitting(tmp_path / "whole", "fedvarp", place, "float32", "sgd", ROUNDS)

    def sitting(rounds: int, commits: int) -> None:
        aggregator = registry.algorithm_in("fedvarp", place, tmp_path / "cut", N, D, "float32")
        with Checkpoint(tmp_path / "cut", fsync=False) as checkpoint:
            server = Server(torch.zeros(D), aggregator, ServerSGD())
            checkpoint.restore(server)
            for t in range(rounds):
                play(server, problem)
                if t < commits:
                    checkpoint.commit(server)
        registry.close(aggregator.table)

    sitting(rounds=5, commits=3)
    assert_equal(one_sitting(tmp_path / "cut", "fedvarp", place, "float32", "sgd", ROUNDS), whole)
