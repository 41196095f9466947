"""How far rows are to be trusted, where one knows it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fedvarp import FlatModel, LocalSGD, stream
from fedvarp.data import quadratics
from fedvarp.theory import measure_updates
from fedvarp.theory.row_trust import RowTrust, TrustFit
from small_problems import quadratic_gradients

N, FEATURES = 200, 40
MODEL = FlatModel(nn.Linear(FEATURES, 30))  # "weight", 1,200 numbers, and "bias", 30
WEIGHT = slice(0, 30 * FEATURES)
UPDATES = torch.randn(N, MODEL.dim, generator=stream(0, "updates")) + 3.0
NOISE = torch.randn(N, MODEL.dim, generator=stream(0, "noise"))


def fitted(**tables: Tensor) -> RowTrust:
    """Of rows that are given for each client, (N, d), by the name of their table."""
    fit = TrustFit(MODEL, list(tables))
    for i in range(N):
        fit.add(UPDATES[i], [rows[i] for rows in tables.values()])
    return fit.found()


def test_exact_rows_are_worth_one_and_noise_is_worth_nothing() -> None:
    exact, noise = fitted(own=UPDATES), fitted(own=7 + NOISE)
    assert exact.whole["own"] == pytest.approx(1, abs=1e-9)
    assert noise.whole["own"] == pytest.approx(0, abs=0.01)
    # Halves of both: ⟨u, u + n⟩ / ‖u + n‖² = ½ for a noise as large as the signal.
    assert fitted(own=UPDATES + NOISE).whole["own"] == pytest.approx(0.5, abs=0.01)
    # What points the other way is not to be believed at all, and no row more than it says.
    assert fitted(own=-UPDATES).whole["own"] == 0
    assert fitted(own=0.1 * UPDATES).whole["own"] == 1


def test_layers_are_told_apart() -> None:
    rows = NOISE.clone()
    rows[:, WEIGHT] = UPDATES[:, WEIGHT]
    found = fitted(own=rows)
    assert found.by_parameter["weight"]["own"] == pytest.approx(1, abs=1e-9)
    assert found.by_parameter["bias"]["own"] == pytest.approx(0, abs=0.05)
    # By numbers: 1,200 of 1,230 are exact.
    assert found.whole["own"] == pytest.approx(1200 / 1230, abs=0.01)


def test_two_tables_share_what_each_knows() -> None:
    """One has the weights, the other the biases: each is worth 1 where it knows, and 0 elsewhere.

    Where they say the same they share it.
    """
    own, cluster = NOISE.clone(), NOISE.flip(0).clone()
    own[:, WEIGHT] = UPDATES[:, WEIGHT]
    cluster[:, WEIGHT.stop :] = UPDATES[:, WEIGHT.stop :]
    found = fitted(own=own, cluster=cluster).by_parameter
    assert found["weight"] == pytest.approx({"own": 1, "cluster": 0}, abs=0.01)
    assert found["bias"] == pytest.approx({"own": 0, "cluster": 1}, abs=0.01)
    both = fitted(own=UPDATES, cluster=UPDATES).whole
    assert sum(b for b in both.values() if b is not None) == pytest.approx(1)


def test_rows_that_are_all_the_same_say_nothing() -> None:
    """As before anybody was seen, in a single cluster, or of numbers that have no rows."""
    zeros, partial = torch.zeros_like(UPDATES), torch.zeros_like(UPDATES)
    partial[:, WEIGHT] = UPDATES[:, WEIGHT]
    one_for_all = UPDATES[:1].expand_as(UPDATES) / 3
    for rows in (zeros, one_for_all):
        assert fitted(own=rows) == RowTrust(
            {"own": None}, {"weight": {"own": None}, "bias": {"own": None}}
        )
    found = fitted(own=partial)
    assert found.by_parameter["bias"]["own"] is None
    assert found.whole["own"] == pytest.approx(1, abs=1e-9)


def test_a_measurement_of_updates_holds_them_against_rows() -> None:
    """Whole batches and one step: Δ_i is the gradient, −h (c_i − w), whoever asks again."""
    data = quadratics(20, 10, sigma2=0.0)
    gradients = quadratic_gradients(data, 10, LocalSGD(lr=0.1, batch_size=1000, steps=1))
    sent = torch.stack([-data.curvature * data.client(i)[0].mean(0) for i in range(20)])
    noise = torch.randn(20, 10, generator=stream(1, "noise")) * sent.std()
    guesses: dict[str, Callable[[int], Tensor]] = {
        "own": lambda i: sent[i],
        "cluster": lambda i: noise[i],
    }
    found = measure_updates(gradients, torch.arange(20), guesses=guesses).trust
    assert found is not None
    assert found.whole == pytest.approx({"own": 1, "cluster": 0}, abs=1e-4)
    assert measure_updates(gradients, torch.arange(20)).trust is None
