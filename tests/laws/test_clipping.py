"""Clipping in front of any algorithm: nothing changes where nothing is clipped, and it resumes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import registry
from fedvarp import Checkpoint, Clipped, RoundReport, Server, ServerSGD, stream
from quadratics import Quadratics

N, M, D, ROUNDS = 12, 4, 6, 9
NEVER = 1e6


def play(server: Server, problem: Quadratics, attack: float = 1.0) -> RoundReport:
    """One round; the first client of the cohort multiplies what it sends."""
    updates = problem.train(server.broadcast(problem.cohort(server.round, M)))
    deltas = updates.deltas.clone()
    deltas[0] *= attack
    return server.receive(replace(updates, deltas=deltas))


@registry.every_algorithm
@registry.every_codec
@registry.every_place
def test_where_nothing_is_clipped_every_bit_stays(algorithm: str, codec: str, place: str) -> None:
    problem = Quadratics.make(N, D, torch.float64 if codec == "float64" else torch.float32)
    w0 = torch.zeros_like(problem.centres[0])
    with (
        registry.algorithm_of(algorithm, place, N, D, codec) as one,
        registry.algorithm_of(algorithm, place, N, D, codec) as other,
    ):
        plain = Server(w0, one, ServerSGD())
        clipped = Server(w0, Clipped(other, NEVER), ServerSGD())
        for _ in range(ROUNDS):
            play(plain, problem)
            play(clipped, problem)
            assert torch.equal(plain.w, clipped.w)


@registry.every_algorithm
@registry.every_place
def test_a_clipped_run_in_many_sittings_is_the_run_in_one(
    algorithm: str, place: str, tmp_path: Path
) -> None:
    problem = Quadratics.make(N, D, torch.float32)

    def sitting(folder: Path, until: int) -> torch.Tensor:
        inner = registry.algorithm_in(algorithm, place, folder, N, D, "float32")
        server = Server(torch.zeros(D), Clipped(inner, 1.5), ServerSGD())
        with Checkpoint(folder, fsync=False) as checkpoint:
            checkpoint.restore(server)
            while server.round < until:
                play(server, problem, attack=10.0)
                checkpoint.commit(server)
        registry.close(inner.table)
        return server.w

    whole = sitting(tmp_path / "whole", ROUNDS)
    for until in range(1, ROUNDS + 1):
        pieces = sitting(tmp_path / "pieces", until)
    assert torch.equal(pieces, whole)


@registry.every_algorithm
@pytest.mark.parametrize("attack", [1e3, -1e9])
def test_nothing_that_one_client_sends_makes_a_longer_row(algorithm: str, attack: float) -> None:
    """Each reply that is let through is at most the multiple of the median long, also in rows."""
    problem = Quadratics.make(N, D, torch.float32)
    with registry.algorithm_of(algorithm, "memory", N, D, "float32") as inner:
        clipped = Clipped(inner, 3.0)
        server = Server(torch.zeros(D), clipped, ServerSGD())
        play(server, problem)
        limit = 3.0 * float(clipped.state_dict()["norms"].sort().values[(M - 1) // 2])
        assert play(server, problem, attack).clipped
        assert float(clipped.state_dict()["norms"].max()) <= max(
            limit, float(clipped.state_dict()["norms"][:M].max())
        )


@registry.every_algorithm
def test_the_order_of_the_replies_changes_nothing(algorithm: str) -> None:
    problem = Quadratics.make(N, D, torch.float32)
    with (
        registry.algorithm_of(algorithm, "memory", N, D, "float32") as a,
        registry.algorithm_of(algorithm, "memory", N, D, "float32") as b,
    ):
        one = Server(torch.zeros(D), Clipped(a, 1.2), ServerSGD())
        other = Server(torch.zeros(D), Clipped(b, 1.2), ServerSGD())
        for t in range(8):
            updates = problem.train(one.broadcast(problem.cohort(t, M)))
            shuffled = torch.randperm(M, generator=stream(t, "order")).tolist()
            one.receive(updates)
            other.receive(updates.keep(shuffled, {}))
            assert torch.equal(one.w, other.w)
