"""E[v] over the cohorts of every way to draw them is the update of full participation."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import registry
from every_cohort import every_cohort
from fedvarp import (
    Checkpoint,
    DivergenceWarning,
    LocalSGD,
    Recording,
    RoundUpdates,
    simulate,
    stream,
)
from fedvarp.algorithms import ALGORITHMS
from fedvarp.clients import (
    ClientSampler,
    ImportanceSampler,
    RoundRobinSampler,
    StratifiedSampler,
    WeightedSampler,
)
from fedvarp.data import from_function
from fedvarp.experiments.build import build
from fedvarp.experiments.files import load_settings
from fedvarp.experiments.resuming import resume

N, M, D = 7, 3, 4
OBJECTIVE = torch.arange(1.0, N + 1).double()


def importance(**more: object) -> ImportanceSampler:
    sampler = ImportanceSampler(N, M, seed=0, **more)  # type: ignore[arg-type]
    sampler.observe(torch.tensor([0, 2, 3, 6]), torch.tensor([0.1, 5.0, 1.0, 40.0]))
    return sampler


SAMPLERS: dict[str, Callable[..., ClientSampler]] = {
    "examples": lambda **more: WeightedSampler([1, 2, 3, 4, 5, 6, 7], M, seed=0, **more),
    "stratified": lambda **more: StratifiedSampler([0, 0, 0, 1, 1, 2, 2], M, seed=0, **more),
    "round_robin": lambda **more: RoundRobinSampler(N, M, seed=0, **more),
    "importance": importance,
}
unbiased = [name for name in ALGORITHMS if registry.fresh(name).unbiased]


@pytest.mark.parametrize("scheme", SAMPLERS)
@pytest.mark.parametrize("algorithm", unbiased)
@pytest.mark.parametrize("objective", [None, OBJECTIVE], ids=["equal", "unequal"])
def test_the_direction_is_unbiased(algorithm: str, scheme: str, objective: Tensor | None) -> None:
    """Every start enumerated, for the orders of three rounds, over a table that holds something."""
    generator = stream(0, "deltas")
    deltas, history = torch.randn(2, N, D, generator=generator, dtype=torch.float64)
    p = torch.ones(N).double() if objective is None else objective
    p = p / p.sum()
    with registry.algorithm_of(algorithm, "memory", N, D, "float64", p) as aggregator:
        if aggregator.table is not None:
            aggregator.table.put(torch.arange(5), history[:5])
        for t in range(3):
            total = torch.zeros(D, dtype=torch.float64)
            for probability, cohort in every_cohort(SAMPLERS[scheme](objective=objective), t):
                S, ones = cohort.clients, torch.ones(len(cohort.clients), dtype=torch.int64)
                updates = RoundUpdates(S, deltas[S], ones, ones, 1.0, cohort.weights)
                total += float(probability) * copy.deepcopy(aggregator).aggregate(updates)
            torch.testing.assert_close(total, p @ deltas, rtol=0, atol=1e-13)


@pytest.mark.parametrize("scheme", SAMPLERS)
def test_weights_make_up_for_dropouts(scheme: str) -> None:
    """E Σ a_i Δ_i = Σ_S P(S) Σ_{i∈S} (1 − d_i) a_i Δ_i: answers depend on nothing else."""
    dropout = [0, 0.9, 0.5, 0.1, 0.3, 0.25, 0.0]
    sampler = SAMPLERS[scheme](objective=OBJECTIVE, dropout=dropout)
    answering = 1 - torch.tensor(dropout).double()
    total = torch.zeros(N, dtype=torch.float64)
    for probability, cohort in every_cohort(sampler):
        assert cohort.weights is not None
        total[cohort.clients] += float(probability) * cohort.weights * answering[cohort.clients]
    torch.testing.assert_close(total, OBJECTIVE / OBJECTIVE.sum(), rtol=1e-6, atol=0)


def test_what_is_learned_is_the_runs_own_and_of_good_replies_alone(tmp_path: Path) -> None:
    """Client 0 diverges, so that its reply is refused; everybody is asked."""

    def load(i: int) -> tuple[Tensor, Tensor]:
        return torch.full((4, 2), 1e20 if i == 0 else float(i)), torch.ones(4, 1)

    dataset = from_function(load, num_clients=3)
    sampler = ImportanceSampler(3, 3, seed=0)
    for name in ("one", "other"):
        with pytest.warns(DivergenceWarning, match="1 of 3 replies were refused"):
            simulate(
                dataset,
                nn.Linear(2, 1, bias=False),
                nn.functional.mse_loss,
                local_sgd=LocalSGD(lr=0.01, batch_size=4, epochs=1),
                rounds=1,
                clients_per_round=sampler,
                recording=Recording(out=str(tmp_path / name), progress=False),
            )
        with Checkpoint(tmp_path / name / "checkpoint") as checkpoint:
            residuals = checkpoint.sampler()["residuals"]
        assert residuals.isnan().tolist() == [True, False, False]
        assert bool((residuals[1:] > 0).all())
        assert bool(sampler.state_dict()["residuals"].isnan().all()), "the run had a copy"


@pytest.mark.parametrize("scheme", SAMPLERS)
@pytest.mark.parametrize("algorithm", ["fedavg", "fedvarp"])
def test_a_run_in_three_sittings_is_the_run_in_one(
    tmp_path: Path, algorithm: str, scheme: str
) -> None:
    given = [f"sampling.scheme={scheme}", f"algorithm={algorithm}", "trainer=sequential"]
    given += ["clients_per_round=5", "evaluation.every=1", "sampling.dropout=0.2"]
    whole = build(load_settings("digits", [*given, "rounds=9"])).run(tmp_path / "whole")
    build(load_settings("digits", [*given, "rounds=2"])).run(tmp_path / "pieces")
    for rounds in (5, 9):
        pieces = resume(tmp_path / "pieces", [f"rounds={rounds}"])
    assert torch.equal(pieces.server.w, whole.server.w)
    assert pieces.metrics == whole.metrics
