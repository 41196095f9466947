"""The walk on the pooled data, against quadratics where it has a closed form."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from fedvarp import LocalSGD, stream
from fedvarp.data import FederatedDataset, from_tensors
from fedvarp.theory import measure_updates
from fedvarp.theory.pooled_walk import FEWEST, MOST, _Pool, number_of_walks, pooled_walks
from fedvarp.theory.step_weights import StepWeights
from known_federations import DIM, drifting, identical, identical_of_unequal_sizes
from small_problems import quadratic_gradients


def walks(data: FederatedDataset, sgd: LocalSGD, count: int = 8) -> Tensor:
    gradients = quadratic_gradients(data, DIM, sgd)
    weights = StepWeights.of_clients(data, sgd, torch.arange(data.num_clients))
    return torch.stack([walk - at_w for walk, at_w in pooled_walks(gradients, weights, count)])


def test_drift_is_what_separates_clients_from_the_pooled_walk() -> None:
    """h_i = φ(h_i) ∇f_i and h_pooled = φ(mean h) ∇f, φ(h) = (1 − (1 − ηh)^τ)/(ητh), at w = 0."""
    eta, tau = 0.2, 6
    data, sgd = drifting(8), LocalSGD(lr=eta, batch_size=1000, steps=tau)
    found = measure_updates(quadratic_gradients(data, DIM, sgd), torch.arange(8)).spread
    h = torch.stack([data.client(i)[1][0] for i in range(8)]).double()
    g = -h * torch.stack([data.client(i)[0].mean(0) for i in range(8)]).double()

    def phi(h: Tensor) -> Tensor:
        return (1 - (1 - eta * h) ** tau) / (eta * tau * h)

    pooled = phi(h.mean(0)) * g.mean(0)
    drift = float(((phi(h) * g).mean(0) - pooled).square().sum())
    assert found.drift == pytest.approx(drift, rel=1e-4)
    assert found.progress == pytest.approx(float((pooled - g.mean(0)).square().sum()), rel=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {"momentum": 0.9},
        {"weight_decay": 0.3},
        {"step_decay": 0.8},
        {"clip_norm": 0.5},
        {"momentum": 0.5, "weight_decay": 0.1, "step_decay": 0.9, "normalise_steps": True},
    ],
    ids=str,
)
def test_it_walks_as_clients_do(changes: dict[str, Any]) -> None:
    """Identical clients with whole batches: the pooled walk is their own, so there is no drift."""
    sgd = LocalSGD(lr=0.2, batch_size=1000, steps=5, **changes)
    found = measure_updates(quadratic_gradients(identical(4), DIM, sgd), torch.arange(4)).spread
    assert found.drift == pytest.approx(0, abs=1e-9)
    assert found.progress > 1e-3


@pytest.mark.parametrize("normalise", [False, True])
def test_one_step_departs_from_nothing(normalise: bool) -> None:
    """All gradients are at w: what the batches share with those at w is all there is."""
    sgd = LocalSGD(lr=0.1, batch_size=3, steps=1, normalise_steps=normalise)
    assert float(walks(identical(6, noise=1.0), sgd).abs().max()) < 1e-6


def test_walks_that_stop_with_each_client() -> None:
    """Whole batches of curvature h: after k steps w − w^(k) = (1 − (1 − ηh)^k)(w − c).

    Clients take 1, 1, 2 and 5 passes' worth of steps, with batches of all that one has.
    """
    data = identical_of_unequal_sizes()
    x, y = data.client(0)
    calm = from_tensors([(x.mean(0).expand(len(a), -1), b) for a, b in map(data.client, range(12))])
    for normalise in (False, True):
        sgd = LocalSGD(lr=0.3, batch_size=10, epochs=2, normalise_steps=normalise)
        taus = torch.tensor([2.0, 2.0, 4.0, 10.0] * 3).double()
        h, away = y[0].double(), -x.mean(0).double()
        moved = (1 - (1 - 0.3 * h) ** taus[:, None]) * away / 0.3
        unit = taus[:, None] if normalise else taus.mean()
        expected = (moved / unit).mean(0) - h * away
        assert torch.allclose(walks(calm, sgd).mean(0), expected, atol=1e-5)


def test_examples_are_drawn_as_the_objective_weighs_them() -> None:
    """Sizes 10, 10, 20 and 50: plain epochs make the union, normalised steps count clients."""
    data = identical_of_unequal_sizes()
    sizes = torch.tensor([10, 10, 20, 50] * 3)
    owners = torch.repeat_interleave(torch.arange(12), sizes)
    marked = from_tensors(
        [
            (torch.full((int(n), DIM), float(i)), torch.ones(int(n), DIM))
            for i, n in enumerate(sizes)
        ]
    )
    assert data.num_clients == 12
    for normalise, share in ((False, sizes / sizes.sum()), (True, torch.full((12,), 1 / 12))):
        sgd = LocalSGD(lr=0.1, batch_size=10, epochs=1, normalise_steps=normalise)
        weights = StepWeights.of_clients(marked, sgd, torch.arange(12))
        pool = _Pool(quadratic_gradients(marked, DIM, sgd), weights)
        drawn = torch.cat([x[:, 0] for x, _ in pool.batches(len(owners), 40, stream(0, "counts"))])
        counts = torch.bincount(drawn.long(), minlength=12) / len(drawn)
        # A pass gives each client its share, to one draw of 270.
        assert torch.allclose(counts.double(), share.double(), atol=1 / 270)
        if not normalise:
            assert torch.allclose(counts.double(), share.double(), atol=1e-12)


def test_clients_that_do_not_fit_into_memory_are_loaded_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sgd = LocalSGD(lr=0.2, batch_size=4, steps=3)
    kept = walks(identical(5, noise=1.0), sgd)
    monkeypatch.setattr("fedvarp.theory.pooled_walk._KEPT", 0)
    assert torch.equal(walks(identical(5, noise=1.0), sgd), kept)


def test_a_pooled_walk_that_diverges_is_refused() -> None:
    parts = [(torch.ones(1, DIM), torch.full((1, DIM), h)) for h in (1.0, 1.0, 1e9)]
    data = from_tensors(parts)
    sgd = LocalSGD(lr=0.1, batch_size=3, steps=40)
    with pytest.raises(ValueError, match=r"pooled data.*diverges.*client_lr"):
        measure_updates(quadratic_gradients(data, DIM, sgd), torch.arange(2))


def test_long_walks_are_fewer() -> None:
    data, sgd = identical_of_unequal_sizes(), LocalSGD(lr=0.1, batch_size=1, epochs=1)
    weights = StepWeights.of_clients(data, sgd, torch.arange(12))  # steps 10, 10, 20, 50
    assert number_of_walks(weights, 12) == 10  # 2 · 12 · 22.5 / 50, rounded down
    assert number_of_walks(weights, 1) == FEWEST
    equal = dataclasses.replace(weights, num_steps=torch.full((12,), 20))
    assert number_of_walks(equal, 200) == MOST
