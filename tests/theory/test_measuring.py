"""Every measured constant against problems whose constants are known."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import pytest
import torch
from torch import nn

from fedvarp import FlatModel, LocalSGD
from fedvarp.data import FederatedDataset, quadratics
from fedvarp.models import Quadratic, quadratic_loss
from fedvarp.theory import Estimate, Measurements, measure
from small_problems import (
    gradients_of_unequal,
    mean_within,
    quadratic_gradients,
    small_classifier,
    unequal_clients,
)

SGD5 = LocalSGD(lr=0.1, batch_size=5, epochs=1)


def measured(data: FederatedDataset, dim: int, **changes: object) -> Measurements:
    settings: dict[str, object] = {"local_sgd": SGD5}
    return measure(data, Quadratic(dim), quadratic_loss, **(settings | changes))  # type: ignore[arg-type]


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
        assert each.sigma_K2 == Estimate.exact(0.0)


def test_the_noise_is_averaged_over_clients() -> None:
    data = quadratics(6, 10, num_clusters=3)
    gradients = quadratic_gradients(data, 10, SGD5, seed=7)
    expected = torch.tensor([gradients.of(i).noise for i in range(6)])
    found = measured(data, 10, seed=7).sigma2
    assert found.value == pytest.approx(float(expected.mean()))
    assert found.standard_error == pytest.approx(float(expected.std()) / math.sqrt(6))


def test_a_single_batch_has_no_noise() -> None:
    whole = LocalSGD(lr=1, batch_size=10, epochs=1)
    found = measured(quadratics(6, 4, num_clusters=2), 4, local_sgd=whole)
    assert found.sigma2 == Estimate.exact(0.0)


def test_a_sample_is_estimated_from_the_gradients_of_those_drawn() -> None:
    """σ_K² sums over pairs of one cluster: each weighed by the inverse of its chance to be drawn.

    Σ over ordered pairs of ‖x_i − x_j‖² / (2 N_k), over N, times N(N−1) / n(n−1).
    """
    data = unequal_clients(30, 8)
    clusters = torch.arange(30) % 4
    found = measured(data, 8, cluster_of=clusters, sample=11, seed=5)
    x, sizes = gradients_of_unequal(data), torch.bincount(clusters)
    chosen = found.clients.tolist()
    assert len(chosen) == 11

    def over_pairs(cluster_of: list[int], size_of: list[int]) -> float:
        total: float = sum(
            float((x[i] - x[j]).square().sum()) / (2 * size_of[cluster_of[i]])
            for i in chosen
            for j in chosen
            if cluster_of[i] == cluster_of[j]
        )
        return total / 30 * (30 * 29) / (11 * 10)

    seen = x[found.clients]
    mean, spread = seen.mean(0), float((seen - seen.mean(0)).square().sum())
    losses = 0.5 * seen.square().sum(1)
    assert found.sigma_K2 is not None
    assert found.sigma_K2.value == pytest.approx(
        over_pairs(clusters.tolist(), sizes.tolist()), rel=1e-5
    )
    assert found.sigma_g2.value == pytest.approx(over_pairs([0] * 30, [30]), rel=1e-5)
    assert found.gradient_norm2.value == pytest.approx(
        float(mean @ mean) - (1 / 11 - 1 / 30) * spread / 10, rel=1e-5
    )
    assert found.loss.value == pytest.approx(float(losses.mean()), rel=1e-5)
    assert found.loss.standard_error == pytest.approx(
        float(losses.std()) * math.sqrt((1 - 11 / 30) / 11), rel=1e-4
    )
    assert len({measured(data, 8, sample=11, seed=s).clients[0].item() for s in range(9)}) > 1


def test_standard_errors_are_those_of_leaving_each_client_out() -> None:
    """The jackknife by a loop: every estimate again without each of the clients drawn."""
    data = unequal_clients(30, 8)
    found = measured(data, 8, cluster_of=torch.zeros(30, dtype=torch.int64), sample=11, seed=5)
    seen = gradients_of_unequal(data)[found.clients]

    def error(estimates: list[float]) -> float:
        values = torch.tensor(estimates, dtype=torch.float64)
        squares = float((values - values.mean()).square().sum())
        return math.sqrt((1 - 11 / 30) * 10 / 11 * squares)

    spreads, lengths = [], []
    for left_out in range(11):
        rest = torch.cat([seen[:left_out], seen[left_out + 1 :]])
        spread = float((rest - rest.mean(0)).square().sum())
        spreads.append(spread / 9 * 29 / 30)
        lengths.append(float(rest.mean(0).square().sum()) - (1 / 10 - 1 / 30) * spread / 9)
    assert found.sigma_g2.standard_error == pytest.approx(error(spreads), rel=1e-4)
    assert found.gradient_norm2.standard_error == pytest.approx(error(lengths), rel=1e-4)


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
    x = gradients_of_unequal(data)
    truth = float((x - x.mean(0)).square().sum(1).max())
    assert measured(data, 40, sketch_size=16).sigma_g2_max == pytest.approx(truth, rel=1e-5)


def test_within_clusters_of_unequal_sizes() -> None:
    data = unequal_clients(20, 6)
    clusters = torch.tensor([0] * 11 + [1] * 8 + [2])
    found = measured(data, 6, cluster_of=clusters).sigma_K2
    assert found is not None
    assert found.value == pytest.approx(mean_within(gradients_of_unequal(data), clusters), rel=1e-5)


def test_weight_decay_belongs_to_what_is_descended() -> None:
    """f_i + ½ λ‖w‖² has the gradient ∇f_i + λ w, the Hessian ∇²f_i + λ, and the same noise."""
    data, model = small_classifier()
    plain, decayed = (
        measure(
            data,
            model,
            nn.functional.cross_entropy,
            local_sgd=LocalSGD(
                lr=0.1, batch_size=4, epochs=1, weight_decay=decay, normalise_steps=True
            ),
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


def test_with_unequal_clients_the_objective_is_that_of_plain_differences() -> None:
    """f̃_i = (τ_i/τ̄) f_i: 7, 12 and 600 examples in batches of 4 are 2, 3 and 150 steps."""
    data, model = small_classifier()
    plain, each_once = (
        measure(
            data,
            model,
            nn.functional.cross_entropy,
            local_sgd=LocalSGD(lr=0.1, batch_size=4, epochs=1, normalise_steps=normalised),
        )
        for normalised in (False, True)
    )
    factor = torch.tensor([2.0, 3.0, 150.0]).double() * 3 / 155
    gradients = factor[:, None] * each_once.sketches
    torch.testing.assert_close(plain.sketches, gradients, rtol=1e-5, atol=1e-7)
    mean = gradients.mean(0)
    assert plain.gradient_norm2.value == pytest.approx(float(mean @ mean), rel=1e-5)
    spread = (gradients - mean).square().sum(1)
    assert plain.sigma_g2.value == pytest.approx(float(spread.mean()), rel=1e-5)
    assert plain.sigma_g2_max == pytest.approx(float(spread.max()), rel=1e-5)
    assert not plain.equal_steps
    assert plain.num_steps == pytest.approx(155 / 3)
    once = each_once.smoothness.by_client
    expected = {client: float(factor[client]) * value for client, value in once.items()}
    assert plain.smoothness.by_client == pytest.approx(expected)


def test_sizes_that_only_loading_tells_are_counted() -> None:
    data, model = small_classifier()
    unknown = FederatedDataset(load=data.load, num_clients=3)
    sgd = LocalSGD(lr=0.1, batch_size=4, epochs=1)
    found = [
        measure(one, model, nn.functional.cross_entropy, local_sgd=sgd).as_json()
        for one in (data, unknown)
    ]
    assert found[0] == found[1]


def test_progress_is_shown_by_whoever_is_given() -> None:
    shown: list[tuple[str, int]] = []

    def track(items: Sequence[int], title: str) -> Iterable[int]:
        shown.append((title, len(items)))
        return items

    measured(quadratics(10, 4, num_clusters=5), 4, track=track)
    told = [("Measuring clients", 10), ("Looking for curvature", 10), ("Measuring curvature", 5)]
    assert shown == told


def test_numbers_that_no_client_has_are_refused() -> None:
    """They have no size to divide by: σ_K² of a sample would be NaN."""
    gap = torch.tensor([0, 0, 2, 2, 3, 3])
    with pytest.raises(ValueError, match=r"leaves out some numbers below 3.*by_metadata"):
        measured(quadratics(6, 10, num_clusters=3), 10, cluster_of=gap, sample=4)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sample": 2}, "sample=2.* 3 clients or more"),
        ({"cluster_of": torch.arange(9)}, r"shape \(9,\).*\(10,\)"),
        ({"loss_lower_bound": 1e6}, r"below loss_lower_bound=1e\+06"),
        ({"w": torch.full((4,), float("nan"))}, "client 0 is not finite.*diverged"),
    ],
)
def test_what_cannot_be_measured_is_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        measured(quadratics(10, 4, num_clusters=5), 4, **changes)
