"""L: power iteration against known spectra, products against explicit Hessians."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.autograd.functional import hessian
from torch.func import functional_call

from fedvarp import FlatModel, LocalSGD, stream
from fedvarp.clients.gradients import ClientGradients
from fedvarp.data import from_tensors, quadratics
from fedvarp.models import CharGRU, Quadratic, initialised
from fedvarp.theory.smoothness import (
    gradient_difference,
    hessian_product,
    power_iteration,
    smoothness,
)
from small_problems import quadratic_gradients

SGD = LocalSGD(lr=0.1, batch_size=4, epochs=1)


@settings(max_examples=40, deadline=None)
@given(values=st.lists(st.floats(-10, 10), min_size=2, max_size=6), seed=st.integers(0, 99))
def test_the_power_iteration_never_exceeds_the_largest_eigenvalue(
    values: list[float], seed: int
) -> None:
    draw = stream(seed, "matrix")
    spectrum = torch.tensor(values, dtype=torch.float64)
    Q = torch.linalg.qr(torch.randn(len(values), len(values), generator=draw, dtype=torch.float64)).Q  # fmt: skip # noqa: E501
    H = Q @ torch.diag(spectrum) @ Q.T
    found = power_iteration(lambda v: H @ v, torch.randn(len(values), generator=draw), 500)
    largest = float(spectrum.abs().max())
    assert found.value <= largest * (1 + 1e-9) + 1e-12
    assert found.products <= 500
    if found.residual <= 1e-3 * found.value and found.value > 0:
        # Some eigenvalue is within the residual of the Rayleigh quotient.
        assert float((spectrum.abs() - found.value).abs().min()) <= 3 * found.residual + 1e-9


def test_products_are_those_of_the_whole_hessian() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    draw = stream(0, "hessian")
    # 700 examples: two chunks.
    x, y = torch.randn(700, 3, generator=draw), torch.randint(2, (700,), generator=draw)
    flat = FlatModel(model)
    w = torch.randn(flat.dim, generator=draw)
    sgd = LocalSGD(lr=0.1, batch_size=4, epochs=1, weight_decay=0.3)
    gradients = ClientGradients(from_tensors([(x, y)]), flat, nn.functional.cross_entropy, sgd, w)

    def loss(vector: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(functional_call(model, flat.unflatten(vector), (x,)), y)

    explicit = hessian(loss, w)  # type: ignore[no-untyped-call]
    whole = explicit.double() + 0.3 * torch.eye(flat.dim).double()
    v = torch.randn(flat.dim, generator=draw)
    torch.testing.assert_close(
        hessian_product(gradients, 0, v), whole @ v.double(), rtol=1e-4, atol=1e-5
    )
    found = smoothness(gradients, [0], max_products=200)
    assert found.num_screened == 1
    largest = float(torch.linalg.eigvalsh(whole).abs().max())
    assert found.curvature == pytest.approx(largest, rel=1e-2)
    assert found.largest_residual <= 1e-3


def test_recurrent_models_have_curvature_too() -> None:
    draw = stream(0, "text")
    part = (torch.randint(80, (6, 5), generator=draw), torch.randint(80, (6,), generator=draw))
    flat = FlatModel(initialised(lambda: CharGRU(embedding=2, hidden=3), 0))
    gradients = ClientGradients(
        from_tensors([part]), flat, nn.functional.cross_entropy, SGD, flat.vector()
    )
    assert smoothness(gradients, [0], max_products=5).curvature > 0


def test_a_walk_shows_less_than_l_and_exactly_that_where_curvature_is_one_number() -> None:
    data = quadratics(6, 8, num_clusters=3, smoothness=3.0, strong_convexity=0.5)
    gradients = quadratic_gradients(data, 8, SGD)
    found = smoothness(gradients, [0, 4])
    assert set(found.by_client) == {0, 4}
    assert 0.5 < found.gradient_difference < 3.0
    # Along g the change is η τ h g: ‖h g‖ / ‖g‖.
    g = gradients.of(4).gradient
    expected = float((data.curvature.double() * g).norm() / g.norm())
    assert gradient_difference(gradients, 4) == pytest.approx(expected, rel=1e-4)
    assert found.value == max(found.curvature, found.gradient_difference)


def test_a_gradient_that_never_changes_has_no_curvature() -> None:
    def linear(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (output * target).sum(1).mean()

    flat = FlatModel(Quadratic(4))
    data = from_tensors([(torch.ones(2, 4), torch.ones(2, 4))])
    gradients = ClientGradients(data, flat, linear, SGD, torch.zeros(4))
    assert smoothness(gradients, [0]).value == pytest.approx(0, abs=1e-6)


def test_a_model_that_has_diverged_is_refused() -> None:
    with pytest.raises(ValueError, match="not finite"):
        power_iteration(lambda v: v * float("inf"), torch.ones(2))


@pytest.mark.parametrize("seed", range(12))
def test_one_steep_client_among_forty_is_found(seed: int) -> None:
    """L = 1 at 39 clients, 100 at one: in all its coordinates, or in one of them only."""
    for steep_in in (slice(None), slice(3, 4)):
        curvature = torch.ones(40, 30)
        curvature[17, steep_in] = 100.0
        draw = stream(seed, "clients")
        parts = [(torch.randn(2, 30, generator=draw), row.expand(2, -1)) for row in curvature]
        gradients = quadratic_gradients(from_tensors(parts), 30, SGD, seed)
        found = smoothness(gradients, list(range(40)))
        assert found.steepest == 17
        assert found.curvature == pytest.approx(100, rel=1e-3)
        assert found.median_screened == pytest.approx(1, rel=1e-3)
        assert found.num_screened == 40
        assert len(found.by_client) == 5


def test_the_steepest_are_measured_by_their_own_loss_and_by_what_it_weighs() -> None:
    """Twenty clients, one steep and of one example: by its weight it would not be looked at."""
    curvatures, sizes = [10.0] + [1.0] * 19, [1] + [80] * 19
    parts = [
        (torch.randn(n, 3, generator=stream(0, "sizes", n)), torch.full((n, 3), h))
        for n, h in zip(sizes, curvatures, strict=True)
    ]
    gradients = quadratic_gradients(from_tensors(parts), 3, SGD)
    found = smoothness(gradients, list(range(20)), factor=lambda steps: steps / 20)
    assert found.steepest == 0
    assert found.own_curvature == pytest.approx(10, rel=1e-3)
    assert found.by_client[0] == pytest.approx(0.5, rel=1e-3)
    assert found.curvature == pytest.approx(1, rel=1e-3)
    assert found.median_screened == pytest.approx(1, rel=1e-3)
