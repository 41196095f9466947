"""Every measured constant against problems whose constants are known."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor, nn

from fedvarp import FlatModel, LocalSGD, stream
from fedvarp.clients import local_training
from fedvarp.clients.gradients import ClientGradients, noise_factor, steps_of
from fedvarp.clients.spread import Spread
from fedvarp.clusters.sketch import Sketch
from fedvarp.data import FederatedDataset, from_tensors, quadratics
from fedvarp.models import LogisticRegression, Quadratic, initialised, quadratic_loss
from fedvarp.theory import estimators
from fedvarp.theory.measurements import Measurements, measure

SEEDS = 300
SGD5 = LocalSGD(lr=0.1, batch_size=5, epochs=1)


def measured(data: FederatedDataset, dim: int, **changes: object) -> Measurements:
    settings: dict[str, object] = {"local_sgd": SGD5, "smoothness_clients": 1}
    return measure(data, Quadratic(dim), quadratic_loss, **(settings | changes))  # type: ignore[arg-type]


def unequal_clients(num_clients: int, dim: int, seed: int = 0) -> FederatedDataset:
    """Quadratics of curvature 1 with one example each: ∇f_i(0) = −x_i, of very unequal lengths."""
    draw = stream(seed, "unequal")
    lengths = torch.rand(num_clients, 1, generator=draw).square() * 3
    x = 0.5 + lengths * torch.randn(num_clients, dim, generator=draw)
    return from_tensors([(row[None], torch.ones(1, dim)) for row in x])


def gradients_of(data: FederatedDataset) -> Tensor:
    return torch.stack([-data.client(i)[0].double().mean(0) for i in range(data.num_clients)])


def test_all_clients_of_a_quadratic_give_its_constants() -> None:
    data = quadratics(24, 12, num_clusters=6, sigma2=2.0, sigma_g2=3.0, sigma_K2=0.5, smoothness=4)
    found = measured(data, 12)
    assert found.of_all_clients
    assert found.sigma_g2.value == pytest.approx(3.0, rel=1e-5)
    assert found.sigma_g2_max == pytest.approx(3.0, rel=1e-5)
    assert found.sigma_K2 is not None
    assert found.sigma_K2.value == pytest.approx(0.5, rel=1e-5)
    assert found.sigma_g2.standard_error == found.sigma_K2.standard_error == 0
    assert found.smoothness.value == pytest.approx(4.0, rel=1e-3)
    assert found.smoothness.value <= 4.0 * (1 + 1e-6)
    gradient = data.curvature.double() * -data.optimum.double()  # at w = 0
    assert found.gradient_norm2.value == pytest.approx(float(gradient @ gradient), rel=1e-5)
    # f(0) = f* + suboptimality, and f* is what the offsets and the noise leave: ½ Σ offset²/h.
    x, h = torch.stack([data.client(i)[0] for i in range(24)]).double(), data.curvature.double()
    assert found.loss.value == pytest.approx(float(0.5 * (h * x.square()).sum(2).mean()), rel=1e-5)
    assert found.num_steps == 2  # ten examples in batches of five


def test_one_cluster_is_sigma_g2_and_a_cluster_each_is_nothing_to_the_last_bit() -> None:
    data = quadratics(20, 10, seed=3)
    for sample in (None, 7):
        one = measured(data, 10, cluster_of=torch.zeros(20, dtype=torch.int64), sample=sample)
        assert one.sigma_K2 == one.sigma_g2
        each = measured(data, 10, cluster_of=torch.arange(20), sample=sample)
        assert each.sigma_K2 == estimators.Estimate(0.0, 0.0)
        assert one.heterogeneity_within(torch.zeros(20, dtype=torch.int64)) == one.sigma_g2.value
        assert one.heterogeneity_within(torch.arange(20)) == 0.0


def check_estimates(
    estimates: list[estimators.Estimate], truth: float, overstated: float = 1.25
) -> None:
    """Unbiased, and an error that is what it says, or at most `overstated` times as large.

    The mean of n estimates has a standard deviation of spread/√n: four of them leave a chance of
    6e-5. The standard deviation of SEEDS values is itself known to about 1/√(2 SEEDS), 4 %, more
    with heavy tails: it may exceed the stated error by 20 %.
    """
    values = torch.tensor([e.value for e in estimates], dtype=torch.float64)
    errors = torch.tensor([e.standard_error for e in estimates], dtype=torch.float64)
    spread = float(values.std())
    assert abs(float(values.mean()) - truth) < 4 * spread / math.sqrt(len(estimates))
    stated = float(errors.square().mean().sqrt())
    assert spread / 1.2 < stated < overstated * spread
    # One by one: an estimate more than 4 of its own errors away is an exception.
    assert float((((values - truth) / errors).abs() > 4).double().mean()) < 0.05


def noises(data: FederatedDataset, dim: int, sgd: LocalSGD, seed: int) -> Tensor:
    flat = FlatModel(Quadratic(dim))
    gradients = ClientGradients(data, flat, quadratic_loss, sgd, flat.vector(), seed=seed)
    return torch.tensor([gradients.of(i).noise for i in range(data.num_clients)])


@pytest.mark.parametrize(
    ("sgd", "factor"),
    [
        (LocalSGD(lr=0.1, batch_size=2, epochs=1), 1 / 2 - 1 / 10),
        # Ten examples in batches of 4, 4 and 2; with `steps=2` the small batch never comes.
        (LocalSGD(lr=0.1, batch_size=4, epochs=2), (2 * (1 / 4) + 1 / 2) / 3 - 1 / 10),
        (LocalSGD(lr=0.1, batch_size=4, steps=2), 1 / 4 - 1 / 10),
        (LocalSGD(lr=0.1, batch_size=4, steps=4), (3 / 4 + 1 / 2) / 4 - 1 / 10),
    ],
)
def test_the_noise_of_batches_over_many_seeds(sgd: LocalSGD, factor: float) -> None:
    """sigma2 is the mean square of ten examples' offsets, so their variance S² is 10/9 of it."""
    data = quadratics(4, 10, num_clusters=2, sigma2=1.5)
    found = [estimators.mean_estimate(noises(data, 10, sgd, s), 4, noisy=True) for s in range(60)]
    truth = 1.5 * 10 / 9 * factor
    values = torch.tensor([e.value for e in found])
    assert abs(float(values.mean()) - truth) < 4 * float(values.std()) / math.sqrt(60)
    errors = torch.tensor([e.standard_error for e in found])
    assert float(errors.square().mean().sqrt()) == pytest.approx(float(values.std()), rel=0.25)


def test_measure_averages_the_noise_over_clients() -> None:
    data = quadratics(6, 10, num_clusters=3)
    expected = noises(data, 10, SGD5, seed=7)
    found = measured(data, 10, seed=7).sigma2
    assert found.value == pytest.approx(float(expected.mean()))
    assert found.standard_error == pytest.approx(float(expected.std()) / math.sqrt(6))


def test_steps_are_those_of_local_sgd() -> None:
    for n, sgd in itertools.product(
        (1, 5, 6, 11),
        (LocalSGD(lr=0.1, batch_size=5, epochs=3), LocalSGD(lr=0.1, batch_size=5, steps=7)),
    ):
        batches = list(local_training.batches(sgd, n, seed=0, round=0, client=0))
        assert steps_of(n, sgd) == len(batches)
        counted = [1 / len(batch) - 1 / n for batch in batches]
        assert noise_factor(n, sgd) == pytest.approx(sum(counted) / len(counted), abs=1e-12)


def test_a_single_batch_has_no_noise() -> None:
    found = measured(quadratics(6, 4, num_clusters=2), 4, local_sgd=LocalSGD(lr=1, batch_size=10, epochs=1))  # fmt: skip # noqa: E501
    assert found.sigma2 == estimators.Estimate(0.0, 0.0)


def drawn(x: Tensor, n: int, seed: int) -> Tensor:
    return torch.randperm(len(x), generator=stream(seed, "drawn"))[:n].sort().values


def estimate_all(
    x: Tensor, chosen: Tensor, clusters: Tensor
) -> tuple[estimators.Estimate, estimators.Estimate]:
    """σ_K² and ‖∇f‖² from the gradients of the clients drawn."""
    N, n, sizes = len(x), len(chosen), torch.bincount(clusters)
    seen, mine = x[chosen], clusters[chosen]
    within = torch.stack([
        (seen[mine == k] - seen[mine == k].mean(0)).square().sum() if (mine == k).any() else torch.zeros(()).double()  # noqa: E501
        for k in range(len(sizes))
    ])  # fmt: skip
    mean, spread = seen.mean(0), float((seen - seen.mean(0)).square().sum())
    return (
        estimators.Estimate(
            estimators.heterogeneity(within, torch.bincount(mine, minlength=len(sizes)), sizes),
            estimators.error_of_heterogeneity(seen, mine, sizes),
        ),
        estimators.Estimate(
            estimators.squared_norm(float(mean @ mean), spread, n, N),
            estimators.error_of_squared_norm(seen, N),
        ),
    )


@pytest.mark.parametrize("num_clusters", [1, 6])
@pytest.mark.parametrize("n", [30, 60])
def test_a_sample_of_unequal_clients_over_many_seeds(n: int, num_clusters: int) -> None:
    """n of 120 clients. With few pairs of one cluster in the sample, errors are overstated."""
    x = gradients_of(unequal_clients(120, 8))
    clusters = torch.arange(120) % num_clusters
    centre = torch.stack([x[clusters == k].mean(0) for k in range(num_clusters)])
    within = float((x - centre[clusters]).square().sum(1).mean())
    found = [estimate_all(x, drawn(x, n, seed), clusters) for seed in range(SEEDS)]
    overstated = 1.7 if n == 30 else 1.3  # without the finite-population factor: by √2 at 60
    check_estimates([one[0] for one in found], within, overstated)
    check_estimates([one[1] for one in found], float(x.mean(0).square().sum()), overstated)


def test_a_sample_of_clients_that_lie_equally_far() -> None:
    """All at one distance: the jackknife overstates the error, by √2 and some more with few."""
    data = quadratics(60, 10, num_clusters=12, sigma_g2=2.0, sigma_K2=0.4, sigma2=0.0)
    x = torch.stack([data.curvature * (0.0 - data.client(i)[0].mean(0)) for i in range(60)])
    one = torch.zeros(60, dtype=torch.int64)
    found = [estimate_all(x.double(), drawn(x, 20, seed), one)[0] for seed in range(SEEDS)]
    check_estimates(found, 2.0, overstated=2.0)


def test_measure_uses_these_estimates() -> None:
    data = unequal_clients(30, 8)
    clusters = torch.arange(30) % 4
    found = measured(data, 8, cluster_of=clusters, sample=11, seed=5)
    x = gradients_of(data)
    assert len(found.clients) == 11
    sigma_K2, norm2 = estimate_all(x, found.clients, clusters)
    sigma_g2, _ = estimate_all(x, found.clients, torch.zeros(30, dtype=torch.int64))
    losses = 0.5 * x[found.clients].square().sum(1)
    loss = estimators.Estimate(float(losses.mean()), float(losses.std()) * math.sqrt((1 - 11 / 30) / 11))  # fmt: skip # noqa: E501
    for mine, expected in (
        (found.sigma_K2, sigma_K2),
        (found.sigma_g2, sigma_g2),
        (found.gradient_norm2, norm2),
        (found.loss, loss),
    ):
        assert mine is not None
        assert mine.value == pytest.approx(expected.value, rel=1e-5)
        assert mine.standard_error == pytest.approx(expected.standard_error, rel=1e-4)
    assert len({measured(data, 8, sample=11, seed=s).clients[0].item() for s in range(9)}) > 1


def test_errors_from_sketches_are_close_to_those_from_whole_vectors() -> None:
    data = unequal_clients(40, 2000)
    exact = measured(data, 2000, sample=15, sketch_size=2000)
    rough = measured(data, 2000, sample=15, sketch_size=500)
    assert rough.sigma_g2.value == exact.sigma_g2.value
    assert rough.sigma_g2.standard_error == pytest.approx(exact.sigma_g2.standard_error, rel=0.3)
    # Sketches of nearly orthogonal gradients are less orthogonal: the error is overstated.
    ratio = rough.gradient_norm2.standard_error / exact.gradient_norm2.standard_error
    assert 0.7 < ratio < 2.5


def test_the_farthest_client_is_found_with_sketches_too() -> None:
    data = unequal_clients(50, 40)
    x = gradients_of(data)
    truth = float((x - x.mean(0)).square().sum(1).max())
    assert measured(data, 40, sketch_size=16).sigma_g2_max == pytest.approx(truth, rel=1e-5)


def test_sketched_heterogeneity_is_right_on_average() -> None:
    data = unequal_clients(60, 300)
    clusters = torch.arange(60) % 7
    x = gradients_of(data)
    centre = torch.stack([x[clusters == k].mean(0) for k in range(7)])
    truth = float((x - centre[clusters]).square().sum(1).mean())
    found = [
        measured(data, 300, sketch_size=32, seed=s).heterogeneity_within(clusters)
        for s in range(12)
    ]
    values = torch.tensor(found, dtype=torch.float64)
    assert float(values.std()) > 0  # it is an estimate
    assert abs(float(values.mean()) - truth) < 4 * float(values.std()) / math.sqrt(12)


def test_sketches_keep_squared_lengths_on_average_and_sums_exactly() -> None:
    x, y = torch.randn(2, 500, generator=stream(0, "x"))
    lengths = torch.stack([Sketch(500, 64, seed)(x).square().sum() for seed in range(200)])
    true = float(x.double().square().sum())
    # Var ‖sketch‖² ≤ 2 ‖x‖⁴ / 64
    assert abs(float(lengths.mean()) - true) < 4 * true * math.sqrt(2 / 64 / 200)
    assert float(lengths.std()) < 1.2 * true * math.sqrt(2 / 64)
    sketch = Sketch(500, 64, seed=1)
    torch.testing.assert_close(sketch(x) + sketch(y), sketch(x.double() + y.double()))
    assert torch.equal(Sketch(500, 500, seed=1)(x), x.double())
    assert not torch.equal(Sketch(500, 64, seed=2)(x), sketch(x))


def test_spread_of_weighted_vectors_far_from_zero() -> None:
    """Around a mean of 1e8 the difference of two squares would have no digit left."""
    x = 1e8 + torch.randn(30, 3, generator=stream(0, "far"), dtype=torch.float64)
    weights = torch.rand(30, generator=stream(1, "far"), dtype=torch.float64) + 0.1
    spread = Spread(3)
    for row, weight in zip(x, weights.tolist(), strict=True):
        spread.add(row, weight)
    mean = (weights[:, None] * x).sum(0) / weights.sum()
    expected = float((weights * (x - mean).square().sum(1)).sum())
    torch.testing.assert_close(spread.mean, mean, rtol=1e-15, atol=0)
    assert spread.sum_of_squares == pytest.approx(expected, rel=1e-6)


def small_classifier() -> tuple[FederatedDataset, nn.Module]:
    draw = stream(0, "classifier")
    parts = [
        (torch.randn(n, 5, generator=draw), torch.randint(3, (n,), generator=draw))
        for n in (7, 12, 600)
    ]
    return from_tensors(parts, num_classes=3), initialised(lambda: LogisticRegression(5, 3), 0)


def test_weight_decay_belongs_to_what_is_descended() -> None:
    """f_i + ½ λ‖w‖² has the gradient ∇f_i + λ w, the Hessian ∇²f_i + λ, and the same noise."""
    data, model = small_classifier()
    loss = nn.functional.cross_entropy
    plain, decayed = (
        measure(
            data,
            model,
            loss,
            local_sgd=LocalSGD(lr=0.1, batch_size=4, epochs=1, weight_decay=decay),
            smoothness_clients=3,
        )
        for decay in (0.0, 0.5)
    )
    w = FlatModel(model).vector().double()
    assert decayed.loss.value == pytest.approx(plain.loss.value + 0.25 * float(w @ w))
    assert decayed.sigma2 == plain.sigma2
    assert decayed.smoothness.curvature == pytest.approx(plain.smoothness.curvature + 0.5, rel=1e-3)
    shift = decayed.sketches - plain.sketches
    torch.testing.assert_close(shift, (0.5 * w).expand(3, -1))
    assert decayed.sigma_g2_max == pytest.approx(plain.sigma_g2_max)


def test_gradients_are_those_of_autograd_whatever_the_batches() -> None:
    data, model = small_classifier()
    flat = FlatModel(model)
    w = flat.vector()
    gradients = ClientGradients(data, flat, nn.functional.cross_entropy, SGD5, w)
    for client in range(3):
        x, y = data.client(client)
        model.zero_grad()
        flat.bind(w.clone())
        loss = nn.functional.cross_entropy(model(x), y)
        expected = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(model.parameters()))])  # fmt: skip # noqa: E501
        found = gradients.of(client)
        torch.testing.assert_close(found.gradient.float(), expected)
        torch.testing.assert_close(gradients.gradient(client, w).float(), expected)
        assert found.loss == pytest.approx(float(loss.detach()), rel=1e-5)


def test_numbers_that_no_client_has_are_refused() -> None:
    """They have no size to divide by: σ_K² of a sample would be NaN."""
    gap = torch.tensor([0, 0, 2, 2, 3, 3])
    with pytest.raises(ValueError, match="leaves out some numbers below 3"):
        measure(
            quadratics(6, 10, num_clusters=3), Quadratic(10), quadratic_loss, local_sgd=SGD5,
            cluster_of=gap, sample=4,
        )  # fmt: skip


def test_what_cannot_be_measured_is_refused() -> None:
    data = quadratics(10, 4, num_clusters=5)
    with pytest.raises(ValueError, match="sample=2: errors can be estimated from 3"):
        measured(data, 4, sample=2)
    with pytest.raises(ValueError, match="smoothness_clients=0"):
        measured(data, 4, smoothness_clients=0)
    with pytest.raises(ValueError, match=r"shape \(9,\)"):
        measured(data, 4, cluster_of=torch.arange(9))
    with pytest.raises(ValueError, match="below loss_lower_bound=1e\\+06"):
        measured(data, 4, loss_lower_bound=1e6)
    with pytest.raises(ValueError, match="client 0 is not finite"):
        measured(data, 4, w=torch.full((4,), float("nan")))


@pytest.mark.parametrize("n", [3, 5])
def test_over_every_possible_sample_the_mean_estimate_is_the_truth(n: int) -> None:
    x = torch.randn(6, 3, generator=stream(0, "six"), dtype=torch.float64)
    clusters = torch.tensor([0, 1, 0, 2, 1, 0])
    centre = torch.stack([x[clusters == k].mean(0) for k in range(3)])
    found = [
        estimate_all(x, torch.tensor(chosen), clusters)
        for chosen in itertools.combinations(range(6), n)
    ]
    within = sum(one[0].value for one in found) / len(found)
    norm2 = sum(one[1].value for one in found) / len(found)
    assert within == pytest.approx(float((x - centre[clusters]).square().sum(1).mean()), rel=1e-12)
    assert norm2 == pytest.approx(float(x.mean(0).square().sum()), rel=1e-12)
