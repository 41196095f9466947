"""The paper's algebra, over every algorithm, table and codec it applies to."""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import registry
from fedvarp import (
    MIFA,
    Aggregator,
    ClusteredTable,
    ClusterFedVARP,
    FedAvg,
    FedDyn,
    FedProx,
    FedVARP,
    MemoryTable,
    RoundUpdates,
    Scaffold,
    Server,
    ServerMomentum,
    ServerSGD,
    stream,
)
from fedvarp.algorithms import ALGORITHMS
from quadratics import Quadratics
from registry import every_algorithm, every_codec, every_place

N, M, D, ROUNDS = 12, 4, 6, 60

unbiased_algorithms = [name for name in ALGORITHMS if registry.fresh(name).unbiased]
every_unbiased_algorithm = pytest.mark.parametrize("algorithm", unbiased_algorithms)


def problem_for(codec: str) -> Quadratics:
    return Quadratics.make(N, D, torch.float64 if codec == "float64" else torch.float32)


def tolerance(codec: str) -> float:
    """The arithmetic of a codec is exact in float64; elsewhere float32, over sixty rounds."""
    return 1e-13 if codec == "float64" else 2e-5


@contextlib.contextmanager
def server_of(algorithm: str, place: str, codec: str, problem: Quadratics) -> Iterator[Server]:
    with registry.algorithm_of(algorithm, place, N, D, codec) as aggregator:
        yield Server(torch.zeros_like(problem.centres[0]), aggregator, ServerSGD())


def iterates(server: Server, problem: Quadratics, size: int, rounds: int = ROUNDS) -> Tensor:
    """(rounds, d): the model after each round."""
    history = []
    for t in range(rounds):
        server.receive(problem.train(server.broadcast(problem.cohort(t, size))))
        history.append(server.w.clone())
    return torch.stack(history)


def run(aggregator: Aggregator, problem: Quadratics, size: int = M) -> Tensor:
    return iterates(
        Server(torch.zeros_like(problem.centres[0]), aggregator, ServerSGD()), problem, size
    )


def table(codec: str = "float64", num_clients: int = N) -> MemoryTable:
    return MemoryTable(num_clients, D, codec)


# Identities between the algorithms


@every_codec
@every_place
def test_one_cluster_per_client_is_fedvarp_bit_for_bit(
    codec: str, place: str, tmp_path: Path
) -> None:
    problem = problem_for(codec)
    rows = registry.rows_in(place, tmp_path, N, D, codec)
    clustered = run(ClusterFedVARP(ClusteredTable(torch.arange(N), rows)), problem)
    registry.close(rows)
    assert torch.equal(clustered, run(FedVARP(table(codec)), problem))


@every_codec
@every_place
def test_a_single_cluster_has_the_iterates_of_fedavg(
    codec: str, place: str, tmp_path: Path
) -> None:
    """y + average(Δ − y) = average(Δ) whatever the one row y holds, so lossy codecs too."""
    problem = problem_for(codec)
    rows = registry.rows_in(place, tmp_path, 1, D, codec)
    one_cluster = ClusteredTable(torch.zeros(N, dtype=torch.int64), rows)
    clustered = run(ClusterFedVARP(one_cluster), problem)
    registry.close(rows)
    torch.testing.assert_close(clustered, run(FedAvg(), problem), rtol=0, atol=tolerance(codec))


@pytest.mark.parametrize(
    ("algorithm", "codec"),
    [
        (algorithm, codec)
        for algorithm in ALGORITHMS
        if registry.fresh(algorithm).full_is_fedavg
        for codec in registry.CODEC_NAMES
        # MIFA's direction is the stored mean itself, which a lossy codec changes.
        if codec in registry.LOSSLESS or algorithm in unbiased_algorithms
    ],
)
@every_place
def test_full_participation_is_fedavg(algorithm: str, codec: str, place: str) -> None:
    """The same v in every round, so the same iterates, whatever the table holds by then."""
    with registry.algorithm_of(algorithm, place, n, D, codec) as aggregator:
        for deltas in (*deltas_and_history(codec), deltas_and_history(codec)[0]):
            v = direction(aggregator, tuple(range(n)), deltas)
            atol = 1e-14 if codec == "float64" else 1e-6
            torch.testing.assert_close(v, deltas.mean(0), rtol=0, atol=atol)


def test_one_step_and_one_client_is_saga() -> None:
    """SAGA (Defazio et al., 2014) over the clients, written out."""
    problem = Quadratics.make(N, D)
    server = Server(torch.zeros(D, dtype=torch.float64), FedVARP(table()), ServerSGD())
    w = torch.zeros(D, dtype=torch.float64)
    stored = torch.zeros(N, D, dtype=torch.float64)
    for t in range(200):
        cohort = problem.cohort(t, 1)
        server.receive(problem.train(server.broadcast(cohort), num_steps=1))
        j = int(cohort)
        gradient = problem.gradient(j, w)
        w = w - problem.client_lr * (gradient - stored[j] + stored.mean(0))
        stored[j] = gradient
        torch.testing.assert_close(server.w, w, rtol=0, atol=1e-13)
    assert (w - problem.optimum()).norm() < 1e-2 * problem.optimum().norm()


@every_place
def test_scaffold_is_the_textbook_with_variates_on_the_clients(place: str) -> None:
    """Karimireddy et al., 2020, Algorithm 1, option II, η_g = 1, written out."""
    problem = Quadratics.make(N, D)
    K, lr = 5, problem.client_lr
    x = torch.zeros(D, dtype=torch.float64)
    c = torch.zeros(D, dtype=torch.float64)
    c_of = torch.zeros(N, D, dtype=torch.float64)
    with server_of("scaffold", place, "float64", problem) as server:
        for t in range(ROUNDS):
            cohort = problem.cohort(t, M)
            server.receive(problem.train(server.broadcast(cohort), num_steps=K))
            x_change, c_change = torch.zeros_like(x), torch.zeros_like(c)
            for i in cohort.tolist():
                y = x.clone()
                for _ in range(K):
                    y = y - lr * (problem.gradient(i, y) - c_of[i] + c)
                c_new = c_of[i] - c + (x - y) / (K * lr)
                x_change += (y - x) / M
                c_change += (c_new - c_of[i]) / M
                c_of[i] = c_new
            x, c = x + x_change, c + M / N * c_change
            torch.testing.assert_close(server.w, x, rtol=0, atol=1e-13)
        table = server.aggregator.table
        assert table is not None
        torch.testing.assert_close(table.mean(), c, rtol=0, atol=1e-13)
    assert (x - problem.optimum()).norm() < 1e-2


@pytest.mark.parametrize("size", [1, M, N])
@pytest.mark.parametrize("alpha", [0.3, 2.0])
@every_place
def test_feddyn_is_the_textbook_with_gradients_on_the_clients(
    place: str, alpha: float, size: int, tmp_path: Path
) -> None:
    """Acar et al., 2021, Algorithm 1, written out; the argmin by K steps of gradient descent."""
    problem = Quadratics.make(N, D)
    K, lr = 5, problem.client_lr
    theta = torch.zeros(D, dtype=torch.float64)
    h = torch.zeros(D, dtype=torch.float64)
    gradient_of = torch.zeros(N, D, dtype=torch.float64)  # ∇L_k(θ_k), 0 at first
    rows = registry.rows_in(place, tmp_path, N, D, "float64")
    server = Server(torch.zeros_like(theta), FedDyn(rows, alpha), ServerSGD())
    for t in range(ROUNDS):
        cohort = problem.cohort(t, size)
        server.receive(problem.train(server.broadcast(cohort), num_steps=K))
        models = []
        for k in cohort.tolist():
            own = theta.clone()
            for _ in range(K):  # argmin L_k(θ) − ⟨∇L_k, θ⟩ + α/2 ‖θ − θ^{t−1}‖²
                slope = problem.gradient(k, own) - gradient_of[k] + alpha * (own - theta)
                own = own - lr * slope
            gradient_of[k] = gradient_of[k] - alpha * (own - theta)
            models.append(own)
        h = h - alpha / N * sum(own - theta for own in models)
        theta = sum(models, torch.zeros(D, dtype=torch.float64)) / size - h / alpha
        torch.testing.assert_close(server.w, theta, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(rows.mean(), h, rtol=1e-12, atol=1e-12)
    registry.close(rows)


def test_feddyn_ends_at_the_uniform_optimum_whatever_the_steps() -> None:
    """Full participation, 1 to 8 steps: h_i is ∇f_i there, and h is zero. FedAvg ends elsewhere."""
    problem = Quadratics.make(N, D)
    steps = 1 + torch.arange(N) % 8
    ends = {}
    for name, aggregator in {"feddyn": FedDyn(table(), 1.0), "fedavg": FedAvg()}.items():
        server = Server(torch.zeros(D, dtype=torch.float64), aggregator, ServerSGD())
        for _ in range(600):
            server.receive(problem.train(server.broadcast(torch.arange(N)), steps))
        ends[name] = (server.w - problem.optimum()).norm()
        if isinstance(aggregator, FedDyn):
            gradients = torch.stack([problem.gradient(i, server.w) for i in range(N)])
            h = aggregator.h.get(torch.arange(N))
            torch.testing.assert_close(h, gradients, rtol=0, atol=1e-9)
            assert aggregator.h.mean().norm() < 1e-9
    assert ends["feddyn"] < 1e-9 < 0.1 < ends["fedavg"]


def test_feddyns_bias_is_what_algebra_says() -> None:
    """E[v] = (1 + m/n) Δ̄ + h/(α·scale): a cohort moves h by its share m/n alone."""
    deltas, history = deltas_and_history("float64")
    feddyn = FedDyn(MemoryTable(n, D, "float64"), 0.5)
    fill(feddyn, history)
    h = feddyn.h.mean()
    expected = (1 + m / n) * deltas.mean(0) + h / 0.5
    torch.testing.assert_close(expected_direction(feddyn, deltas), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("size", [1, M, N])
def test_fedprox_with_mu_0_is_fedavg_bit_for_bit(size: int) -> None:
    problem = Quadratics.make(N, D)
    assert torch.equal(run(FedProx(0.0), problem, size), run(FedAvg(), problem, size))


@pytest.mark.parametrize("mu", [0.1, 3.0])
def test_fedprox_is_the_mean_of_models_that_descended_the_proximal_loss(mu: float) -> None:
    """Li et al., 2020, Algorithm 2, written out: h_k(w; w^t) = F_k(w) + μ/2 ‖w − w^t‖²."""
    problem = Quadratics.make(N, D)
    server = Server(torch.zeros(D, dtype=torch.float64), FedProx(mu), ServerSGD())
    w = torch.zeros(D, dtype=torch.float64)
    for t in range(ROUNDS):
        cohort = problem.cohort(t, M)
        server.receive(problem.train(server.broadcast(cohort), num_steps=5))
        models = []
        for k in cohort.tolist():
            own = w.clone()
            for _ in range(5):
                own = own - problem.client_lr * (problem.gradient(k, own) + mu * (own - w))
            models.append(own)
        w = torch.stack(models).mean(0)
        torch.testing.assert_close(server.w, w, rtol=0, atol=1e-13)


# Expectation and variance over all cohorts

n, m = 6, 3  # small enough to enumerate every cohort
COHORTS = list(itertools.combinations(range(n), m))


def direction(aggregator: Aggregator, clients: tuple[int, ...], deltas: Tensor) -> Tensor:
    """v for that cohort; the aggregator is spent afterwards."""
    ones = torch.ones(len(clients), dtype=torch.int64)
    cohort = torch.tensor(clients)
    return aggregator.aggregate(RoundUpdates(cohort, deltas[cohort], ones, ones, scale=1.0))


def expected_direction(aggregator: Aggregator, deltas: Tensor) -> Tensor:
    directions = [direction(copy.deepcopy(aggregator), S, deltas) for S in COHORTS]
    return torch.stack(directions).double().mean(0)


def deltas_and_history(codec: str) -> tuple[Tensor, Tensor]:
    generator = stream(0, "deltas")
    dtype = torch.float64 if codec == "float64" else torch.float32
    deltas = torch.randn(n, D, generator=generator, dtype=dtype)
    return deltas, torch.randn(n, D, generator=generator, dtype=dtype)


@every_codec
@every_place
@every_unbiased_algorithm
def test_the_direction_is_unbiased_whatever_the_table_holds(
    algorithm: str, place: str, codec: str
) -> None:
    """A table of its own for every cohort, with the same history."""
    deltas, history = deltas_and_history(codec)
    directions = []
    for S in COHORTS:
        with registry.algorithm_of(algorithm, place, n, D, codec) as aggregator:
            fill(aggregator, history)
            directions.append(direction(aggregator, S, deltas).double())
    atol = 1e-14 if codec == "float64" else 1e-6
    found = torch.stack(directions).mean(0)
    torch.testing.assert_close(found, deltas.double().mean(0), rtol=0, atol=atol)


def fill(aggregator: Aggregator, history: Tensor) -> None:
    """Two puts, of which the second overwrites client 1; client 5 stays unknown."""
    if aggregator.table is not None:
        aggregator.table.put(torch.tensor([0, 1, 3, 4]), history[:4])
        aggregator.table.put(torch.tensor([1, 2]), history[4:])


def test_mifas_bias_is_what_algebra_says() -> None:
    """A client is in the cohort with probability m/n; else its old row counts: E[v] is a mix."""
    deltas, history = deltas_and_history("float64")
    mifa = MIFA(MemoryTable(n, D, "float64"))
    mifa.y.put(torch.arange(4), history[:4])
    y = mifa.y.get(torch.arange(n))
    bias = expected_direction(mifa, deltas) - deltas.mean(0)
    torch.testing.assert_close(bias, (1 - m / n) * (y - deltas).mean(0), rtol=0, atol=1e-14)
    assert bias.norm() > 0.1


@pytest.mark.parametrize("algorithm", ["fedavg", "fedvarp", "cluster_fedvarp"])
def test_the_variance_is_lemma_4s(algorithm: str) -> None:
    """(n−m)/(m(n−1)) · 1/n Σ‖x_i − x̄‖² with x_i = Δ_i for FedAvg, Δ_i − y_i for the others."""
    deltas, history = deltas_and_history("float64")
    with registry.algorithm_of(algorithm, "memory", n, D, "float64") as aggregator:
        fill(aggregator, history)
        table, x = aggregator.table, deltas
        if table is not None:
            x = deltas - table.get(torch.arange(n))
        squares = [
            (direction(copy.deepcopy(aggregator), S, deltas) - deltas.mean(0)).square().sum()
            for S in COHORTS
        ]
    lemma = (n - m) / (m * (n - 1)) * (x - x.mean(0)).square().sum(1).mean()
    torch.testing.assert_close(torch.stack(squares).mean(), lemma, rtol=1e-13, atol=0)


@every_unbiased_algorithm
@pytest.mark.parametrize("objective", ["equal", "unequal"])
def test_any_sampling_and_any_client_weights_stay_unbiased(algorithm: str, objective: str) -> None:
    """A lopsided design over cohorts, its own π_i, weights p_i/π_i: E[v] = Σ p_i Δ_i exactly."""
    deltas, history = deltas_and_history("float64")
    chances = torch.arange(1.0, len(COHORTS) + 1, dtype=torch.float64)
    chances /= chances.sum()
    member = torch.tensor([[i in S for i in range(n)] for S in COHORTS], dtype=torch.float64)
    inclusion = chances @ member
    p = torch.arange(1.0, n + 1) if objective == "unequal" else torch.ones(n)
    p = p.double() / p.sum()

    total = torch.zeros(D, dtype=torch.float64)
    with registry.algorithm_of(algorithm, "memory", n, D, "float64", p) as aggregator:
        fill(aggregator, history)
        for S, chance in zip(COHORTS, chances, strict=True):
            clients = torch.tensor(S)
            ones = torch.ones(m, dtype=torch.int64)
            updates = RoundUpdates(
                clients, deltas[clients], ones, ones, 1.0, weights=(p / inclusion)[clients]
            )
            total += chance * copy.deepcopy(aggregator).aggregate(updates)
    torch.testing.assert_close(total, p @ deltas, rtol=0, atol=1e-14)


@every_unbiased_algorithm
@pytest.mark.parametrize("place", registry.PLACES)
def test_dropouts_leave_a_weighted_sum_unbiased_also_where_nobody_answers(
    algorithm: str, place: str
) -> None:
    """Two of four are asked and each answers with probability ½; who answers weighs p_i / π_i.

    Enumerated over the cohorts and the answers: an empty sum counts with the chance of one, and
    w moves by −v.
    """
    few, asked = 4, 2
    deltas, history = (part[:few] for part in deltas_and_history("float64"))
    cohorts = list(itertools.combinations(range(few), asked))
    weight = (1 / few) / (asked / few * 0.5)
    total = torch.zeros(D, dtype=torch.float64)
    for S in cohorts:
        for answers in itertools.product([False, True], repeat=asked):
            S_heard = torch.tensor([i for i, hears in zip(S, answers, strict=True) if hears])
            with registry.algorithm_of(algorithm, place, few, D, "float64") as aggregator:
                if aggregator.table is not None:
                    aggregator.table.put(torch.arange(few), history)
                server = Server(torch.zeros(D).double(), aggregator, ServerSGD())
                clients = S_heard.long()
                ones = torch.ones_like(clients)
                weights = torch.full((len(clients),), weight, dtype=torch.float64)
                server.receive(RoundUpdates(clients, deltas[clients], ones, ones, 1.0, weights))
                total -= server.w / len(cohorts) / 2**asked
    torch.testing.assert_close(total, deltas.mean(0), rtol=0, atol=1e-14)


# What must not matter


@every_codec
@every_place
@every_algorithm
def test_the_order_of_the_replies_changes_nothing(algorithm: str, place: str, codec: str) -> None:
    problem = problem_for(codec)
    with (
        server_of(algorithm, place, codec, problem) as one,
        server_of(algorithm, place, codec, problem) as other,
    ):
        for t in range(8):
            updates = problem.train(one.broadcast(problem.cohort(t, M)))
            one.receive(updates)
            other.receive(
                updates.keep(torch.randperm(M, generator=stream(t, "order")).tolist(), {})
            )
            assert torch.equal(one.w, other.w)
        assert_same_rows(one, other)


@every_codec
@every_place
@every_algorithm
@pytest.mark.parametrize("fault", ["NaN", "infinity", "enormous", "no steps"])
def test_a_bad_reply_changes_nothing_but_its_absence(
    algorithm: str, place: str, codec: str, fault: str
) -> None:
    problem = problem_for(codec)
    with (
        server_of(algorithm, place, codec, problem) as bothered,
        server_of(algorithm, place, codec, problem) as calm,
    ):
        for t in range(6):
            updates = problem.train(calm.broadcast(problem.cohort(t, M)))
            victim = t % M
            spoilt = spoil(updates, victim, fault)
            report = bothered.receive(spoilt)
            absent = [i for i in range(M) if i != victim]
            calm.receive(updates.keep(absent, {}))
            assert list(report.refused) == [int(updates.clients[victim])]
            assert report.accepted == tuple(updates.clients[absent].tolist())
            assert torch.equal(bothered.w, calm.w)
        assert_same_rows(bothered, calm)


def spoil(updates: RoundUpdates, victim: int, fault: str) -> RoundUpdates:
    deltas, steps = updates.deltas.clone(), updates.num_steps.clone()
    if fault == "no steps":
        steps[victim] = 0
        return replace(updates, num_steps=steps)
    deltas[victim, 2] = {"NaN": math.nan, "infinity": math.inf, "enormous": 1e25}[fault]
    return replace(updates, deltas=deltas)


def assert_same_rows(one: Server, other: Server) -> None:
    a, b = one.aggregator.table, other.aggregator.table
    if a is None or b is None:
        assert a is b
        return
    everyone = torch.arange(a.num_clients)
    assert torch.equal(a.get(everyone), b.get(everyone))
    assert torch.equal(a.mean(), b.mean())


@every_codec
@every_place
@every_algorithm
def test_a_round_without_a_valid_reply_leaves_everything_as_it_was(
    algorithm: str, place: str, codec: str
) -> None:
    with server_in_use(algorithm, place, codec) as (server, updates):
        good = updates.deltas
        for bad in (good * math.nan, torch.cat([good, good], 1), good[:, :-1], good.half()):
            report = server.receive(replace(updates, deltas=bad))
            assert report.accepted == ()
            assert len(report.refused) == M
            assert report.round == server.round


@every_place
@every_algorithm
@pytest.mark.parametrize("fault", ["repeated", "unknown", "a row too few", "infinite weight"])
def test_updates_that_do_not_fit_together_are_refused_before_anything_changes(
    algorithm: str, place: str, fault: str
) -> None:
    with server_in_use(algorithm, place, "float32") as (server, updates):
        clients, weights = updates.clients.clone(), torch.ones(M, dtype=torch.float64)
        if fault == "unknown" and server.aggregator.table is None:
            return  # knows no clients to begin with
        clients[-1] = {"repeated": int(clients[0]), "unknown": N}.get(fault, int(clients[-1]))
        weights[0] = math.inf if fault == "infinite weight" else 1.0
        deltas = updates.deltas[: M - 1] if fault == "a row too few" else updates.deltas
        with pytest.raises((ValueError, IndexError)):
            server.receive(replace(updates, clients=clients, deltas=deltas, weights=weights))


@contextlib.contextmanager
def server_in_use(algorithm: str, place: str, codec: str) -> Iterator[tuple[Server, RoundUpdates]]:
    """A server after three rounds and the updates of a fourth; must not have changed at the end."""
    problem = problem_for(codec)
    with server_of(algorithm, place, codec, problem) as server:
        for t in range(3):
            server.receive(problem.train(server.broadcast(problem.cohort(t, M))))
        w, table = server.w.clone(), server.aggregator.table
        rows = None if table is None else table.get(torch.arange(N))
        mean = None if table is None else table.mean()
        yield server, problem.train(server.broadcast(problem.cohort(3, M)))
        assert server.round == 3
        assert torch.equal(server.w, w)
        if table is not None and rows is not None and mean is not None:
            assert torch.equal(table.get(torch.arange(N)), rows)
            assert torch.equal(table.mean(), mean)


# The reason the package exists


def test_fedvarp_converges_where_fedavg_hovers() -> None:
    """Constant rates, 1 of 12 clients: FedVARP's distance to the fixed point vanishes."""
    problem = Quadratics.make(N, D)
    fedavg, varp = run(FedAvg(), problem, 1), run(FedVARP(table()), problem, 1)
    with_momentum = Server(
        torch.zeros(D, dtype=torch.float64), FedVARP(table()), ServerMomentum(0.1)
    )
    full = run(FedAvg(), problem, N)[-1]
    for t in range(600):
        with_momentum.receive(problem.train(with_momentum.broadcast(problem.cohort(t, 1))))
    assert (fedavg[-20:] - full).norm(dim=1).mean() > 0.3
    assert (varp[-20:] - full).norm(dim=1).mean() < 0.5 * (fedavg[-20:] - full).norm(dim=1).mean()
    assert (with_momentum.w - full).norm() < 1e-3


def test_scaffold_starts_without_a_correction() -> None:
    corrections = Scaffold(table()).corrections(torch.tensor([0, 3]))
    assert torch.equal(corrections, torch.zeros(2, D, dtype=torch.float64))
