"""Which objective a run says it optimises, and what it needs to know of its clients for that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedvarp import LocalSGD, Scaffold
from fedvarp.clients import WeightedSampler
from fedvarp.clients.local_training import mean_steps
from fedvarp.simulation.objective import objective
from small_federation import SGD, SIZES, dataset, run

# Batches of 4 and two passes: clients of 7, 1, 12, 4 and 9 examples take 4, 2, 6, 2 and 6 steps.
STEPS = [4, 2, 6, 2, 6]
NORMALISED = SGD.replace(normalise_steps=True)


@pytest.mark.parametrize(
    ("sgd", "counts_steps", "weighted", "counted"),
    [
        (SGD, True, False, "by its steps, 2 to 6 "),
        (SGD, True, True, "by its weight times its steps, 2 to 6 "),
        (SGD, False, False, "once (control variates"),
        (NORMALISED, True, False, "once (updates are divided by the steps, 2 to 6)"),
        (NORMALISED, True, True, "by its weight (updates are divided"),
        (LocalSGD(lr=0.1, batch_size=4, steps=1), True, False, "once (all take 1 step)"),
    ],
)
def test_the_objective_follows_from_steps_weights_and_algorithm(
    sgd: LocalSGD, counts_steps: bool, weighted: bool, counted: str
) -> None:
    said = objective(sgd, dataset(), counts_steps=counts_steps, weighted=weighted)
    assert f"each counted {counted}" in said


def test_sizes_that_nobody_knows_are_not_made_up() -> None:
    unknown = replace(dataset(), num_examples=None)
    said = objective(SGD, unknown, weighted=False)
    assert "each counted by its steps (" in said


def test_the_first_record_says_it() -> None:
    assert "by its steps, 2 to 6" in run(rounds=1).metrics[0]["objective"]
    uneven = WeightedSampler([1.0] * 5, 3, 0, objective=[1.0, 2.0, 1.0, 1.0, 1.0])
    weighted = run(rounds=1, sampler=uneven, local_sgd=NORMALISED)
    assert "by its weight" in weighted.metrics[0]["objective"]
    even = WeightedSampler([1.0] * 5, 3, 0, objective=[2.0] * 5)
    assert (
        "counted once" in run(rounds=1, sampler=even, local_sgd=NORMALISED).metrics[0]["objective"]
    )


@pytest.mark.parametrize("algorithm", ["scaffold", Scaffold])
def test_scaffold_counts_clients_alike_however_it_is_given(algorithm: Any) -> None:
    assert "counted once (control" in run(rounds=1, algorithm=algorithm).metrics[0]["objective"]


def test_the_servers_step_has_the_mean_steps_of_all_clients() -> None:
    assert mean_steps(NORMALISED, dataset()) == sum(STEPS) / len(SIZES)
    assert mean_steps(SGD, dataset()) == 1.0
    same = LocalSGD(lr=0.1, batch_size=4, steps=3, momentum=0.5, normalise_steps=True)
    assert mean_steps(same, replace(dataset(), num_examples=None)) == 1 + 1.5 + 1.75


def test_normalised_steps_of_clients_nobody_knows_are_refused_before_the_run() -> None:
    unknown = replace(dataset(), num_examples=None)
    with pytest.raises(ValueError, match=r"num_examples=….*LocalSGD\(steps=…\)"):
        run(unknown, local_sgd=NORMALISED)


def test_with_equal_steps_both_are_the_same_run() -> None:
    """(w − w_i)/η and (w − w_i)/(η τ) times τ: the same but for rounding."""
    sgd = LocalSGD(lr=0.1, batch_size=4, steps=6)
    plain, normalised = (
        run(local_sgd=sgd.replace(normalise_steps=which)).server.w for which in (False, True)
    )
    torch.testing.assert_close(plain, normalised, rtol=1e-5, atol=1e-6)
