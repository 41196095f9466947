"""Quadratics with exactly the constants asked for, and Synthetic(α, β)."""

from __future__ import annotations

import itertools
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedvarp.data import Quadratics, logistic, quadratics
from fedvarp.models import Quadratic, quadratic_loss
from fedvarp.randomness import stream


def gradient(data: Quadratics, client: int, w: Tensor, rows: list[int] | None = None) -> Tensor:
    """∇f_i(w) (of some examples), by autograd through the model and loss users would train."""
    x, y = data.client(client)
    if rows is not None:
        x, y = x[rows], y[rows]
    model = Quadratic(len(w)).to(w.dtype)
    with torch.no_grad():
        model.w.copy_(w)
    return torch.autograd.grad(quadratic_loss(model(x), y), model.w)[0]


@settings(deadline=None, max_examples=25)
@given(
    clusters=st.integers(2, 5),
    clients_per_cluster=st.integers(2, 5),
    dim=st.integers(4, 9),
    sigma2=st.sampled_from([0.0, 0.5, 4.0]),
    sigma_g2=st.sampled_from([1.0, 9.0]),
    within=st.sampled_from([0.0, 0.3, 1.0]),
    seed=st.integers(0, 1000),
)
def test_every_constant_holds_exactly_everywhere(
    clusters: int,
    clients_per_cluster: int,
    dim: int,
    sigma2: float,
    sigma_g2: float,
    within: float,
    seed: int,
) -> None:
    N = clusters * clients_per_cluster
    data = quadratics(
        N,
        dim,
        num_clusters=clusters,
        sigma2=sigma2,
        sigma_g2=sigma_g2,
        sigma_K2=within * sigma_g2,
        smoothness=3.0,
        strong_convexity=0.2,
        examples_per_client=4,
        seed=seed,
        dtype=torch.float64,
    )
    assert data.smoothness == 3.0
    assert data.cluster_of is not None
    w = torch.randn(dim, generator=stream(seed, "anywhere"), dtype=torch.float64)
    local = torch.stack([gradient(data, i, w) for i in range(N)])  # (N, d)
    whole = local.mean(0)
    assert torch.allclose(whole, data.curvature * (w - data.optimum), atol=1e-12)
    spread = (local - whole).square().sum(1)
    assert torch.allclose(spread, torch.full((N,), sigma_g2, dtype=torch.float64), rtol=1e-10)
    for k in range(clusters):
        own = local[data.cluster_of == k]
        spread = (own - own.mean(0)).square().sum(1)
        assert torch.allclose(spread, torch.full_like(spread, data.sigma_K2), atol=1e-10)
    for i in range(N):
        noise = [(gradient(data, i, w, [j]) - local[i]).square().sum() for j in range(4)]
        assert torch.stack(noise).mean().item() == pytest.approx(sigma2, abs=1e-10)


def test_batch_noise_by_enumeration_of_all_batches() -> None:
    data = quadratics(4, 5, num_clusters=2, sigma2=2.0, examples_per_client=6, dtype=torch.float64)
    w = torch.ones(5, dtype=torch.float64)
    for size in range(1, 7):
        errors = [
            (gradient(data, 1, w, list(batch)) - gradient(data, 1, w)).square().sum()
            for batch in itertools.combinations(range(6), size)
        ]
        assert torch.stack(errors).mean().item() == pytest.approx(data.batch_noise(size), abs=1e-12)
    assert data.batch_noise(1) == 2.0
    assert data.batch_noise(6) == 0.0
    with pytest.raises(ValueError, match="6 examples each"):
        data.batch_noise(7)


def test_suboptimality_is_the_loss_above_its_minimum() -> None:
    data = quadratics(dtype=torch.float64, seed=3)

    def objective(w: Tensor) -> float:
        losses = [quadratic_loss(w - x, y) for x, y in map(data.client, range(data.num_clients))]
        return torch.stack(losses).mean().item()

    w = torch.randn(10, generator=stream(0, "anywhere"), dtype=torch.float64)
    assert data.suboptimality(w) == pytest.approx(objective(w) - objective(data.optimum))
    assert data.suboptimality(data.optimum) == 0


def test_extremes_of_clustering() -> None:
    alone = quadratics(6, 4, num_clusters=6, sigma_K2=0.0)
    assert alone.num_clusters == 6
    together = quadratics(6, 4, num_clusters=1, sigma_g2=2.0, sigma_K2=2.0)
    assert together.num_clusters == 1
    assert together.client(0)[0].dtype == torch.float32


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"dim": 3}, "dim = 3 .* 4"),
        ({"num_clusters": 3}, "20 clients do not form 3 clusters"),
        ({"sigma_K2": 2.0}, "no more within clusters"),
        ({"sigma2": -1.0}, "sigma2 = -1.0 .* 0"),
        ({"num_clusters": 20}, "sigma_K2 = 0, not 0.1"),
        ({"num_clusters": 1}, "With one cluster sigma_K2 is sigma_g2"),
        ({"examples_per_client": 1}, "at least two"),
        ({"strong_convexity": 2.0}, "strong_convexity=2.0 .* exceed .* smoothness=1.0"),
    ],
)
def test_impossible_quadratics_are_explained(wrong: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        quadratics(**wrong)  # type: ignore[arg-type]


def test_the_seed_decides_quadratics() -> None:
    a, b, c = quadratics(seed=1), quadratics(seed=1), quadratics(seed=2)
    assert a.client(3)[0].equal(b.client(3)[0])
    assert not a.client(3)[0].equal(c.client(3)[0])


def test_quadratics_can_be_sent_to_another_process() -> None:
    data = quadratics(seed=1)
    copy = pickle.loads(pickle.dumps(data))  # noqa: S301 - our own bytes
    assert copy.optimum.equal(data.optimum)
    assert copy.client(19)[0].equal(data.client(19)[0])


def test_logistic_sizes_and_shapes() -> None:
    data = logistic(1.0, 1.0, seed=0)
    assert data.num_clients == 30
    assert data.num_classes == 10
    assert data.num_examples is not None
    assert data.num_examples.min() >= 45  # 50 less the tenth held out
    assert data.num_examples.max() > 5 * data.num_examples.median()  # the heavy tail
    x, y = data.client(0)
    assert x.shape == (len(y), 60)
    assert y.dtype == torch.int64
    assert 0 <= y.min() <= y.max() < 10
    assert data.test is not None
    equal = logistic(1.0, 1.0, examples_per_client=100, test_fraction=0.0)
    assert equal.num_examples is not None
    assert equal.num_examples.tolist() == [100] * 30
    assert equal.test is None


def test_logistic_inputs_have_the_stated_spread() -> None:
    data = logistic(0.0, 0.0, num_clients=2, examples_per_client=40_000, test_fraction=0.0)
    x, _ = data.client(1)
    expected = torch.arange(1, 61).pow(-1.2)
    assert torch.allclose(x.var(0), expected, rtol=0.05)  # relative error of a variance: √(2/n)


def test_alpha_and_beta_are_variances_between_clients() -> None:
    # The mean input of client k is B_k plus 60 independent N(0, 1): averaged over features, its
    # variance between clients is beta + 1/60.
    data = logistic(0.0, 4.0, num_clients=300, examples_per_client=30, test_fraction=0.0)
    centres = torch.stack([data.client(k)[0].mean() for k in range(300)])
    assert centres.var().item() == pytest.approx(4.0 + 1 / 60, rel=0.33)  # 4 standard errors


def test_each_client_depends_on_seed_and_number_alone() -> None:
    few, many = logistic(num_clients=3, seed=9), logistic(num_clients=6, seed=9)
    assert few.client(2)[0].equal(many.client(2)[0])
    assert not few.client(2)[0].equal(logistic(num_clients=3, seed=8).client(2)[0])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"alpha": -1.0}, "alpha = -1.0 .* 0"),
        ({"test_fraction": 1.0}, "test_fraction = 1.0 .* less than 1"),
        ({"classes": 1}, "classes = 1 .* 2"),
        ({"num_clients": 0}, "num_clients = 0 .* 1"),
    ],
)
def test_logistic_arguments_out_of_bounds_are_refused(
    wrong: dict[str, float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        logistic(**wrong)  # type: ignore[arg-type]
