"""The error of the server's step, against quadratics where every update has a closed form."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import mse_loss

from fedvarp import FlatModel, LocalSGD, stream
from fedvarp.clients import local_training
from fedvarp.clients.gradients import ClientGradients
from fedvarp.data import Quadratics, from_tensors, quadratics
from fedvarp.models import quadratic_loss
from fedvarp.theory import UpdateSpread, measure_updates
from small_problems import quadratic_gradients

N, DIM = 20, 10


def spread_of(data: Quadratics, sgd: LocalSGD, seed: int = 0, n: int = N) -> UpdateSpread:
    chosen = torch.randperm(N, generator=stream(seed, "chosen"))[:n].sort().values
    gradients = quadratic_gradients(data, DIM, sgd, seed)
    return measure_updates(gradients, chosen, data.cluster_of).spread


def gradients_at_zero(data: Quadratics) -> Tensor:
    return torch.stack([-data.curvature * data.client(i)[0].mean(0) for i in range(N)]).double()


def test_without_noise_progress_and_spread_are_exact() -> None:
    """τ steps at the rate η shrink w − c_i by (1 − ηh)^τ, so h_i = φ ∇f_i, φ = (1 − (1 − ηh)^τ)/(ητh).

    All have the same curvatures h, and so has the pooled data: there is no drift.
    """  # noqa: E501
    data = quadratics(N, DIM, sigma2=0.0, smoothness=2.0)
    eta, tau = 0.2, 6
    found = spread_of(data, LocalSGD(lr=eta, batch_size=1000, steps=tau))
    h = data.curvature.double()
    phi = (1 - (1 - eta * h) ** tau) / (eta * tau * h)
    g = gradients_at_zero(data)
    updates = phi * g
    assert found.noise == pytest.approx(0, abs=1e-9)
    assert found.drift == pytest.approx(0, abs=1e-9)
    assert found.progress == pytest.approx(float((updates - g).mean(0).square().sum()), rel=1e-4)
    offsets = updates - updates.mean(0)
    assert found.between_clients == pytest.approx(float(offsets.square().sum(1).mean()), rel=1e-4)
    clusters = updates.view(5, 4, DIM)  # clients of a cluster follow each other
    within = (clusters - clusters.mean(1, keepdim=True)).square().sum(2).mean()
    assert found.within_clusters == pytest.approx(float(within), rel=1e-4)


@pytest.mark.parametrize("n", [N, 8])
def test_with_noise_all_four_are_right_on_average(n: int) -> None:
    """One step: Δ_i is a batch gradient, so ν is the noise of a batch and there is no drift."""
    data = quadratics(N, DIM, sigma2=3.0, sigma_g2=2.0, sigma_K2=0.5)
    sgd = LocalSGD(lr=0.1, batch_size=2, steps=1)
    found = [spread_of(data, sgd, seed, n) for seed in range(16)]
    for name, truth in (
        ("noise", data.batch_noise(2)),
        ("between_clients", 2.0),
        ("within_clusters", 0.5),
        ("drift", 0.0),
    ):
        values = torch.tensor([getattr(one, name) for one in found], dtype=torch.float64)
        # An estimate cut off at zero has a bias of less than its own spread.
        slack = 0.1 * truth if n < N else 0.0
        assert abs(float(values.mean()) - truth) < 4 * float(values.std()) / math.sqrt(16) + slack


def test_errors_are_those_of_drawing_cohorts() -> None:
    """FedAvg and FedVARP over every cohort of 2 of 5, with states h_i + e_i drawn anew: by hand."""
    draw = stream(0, "errors")
    h = torch.randn(5, 3, generator=draw, dtype=torch.float64)
    mean = h.mean(0)
    between = float((h - mean).square().sum(1).mean())
    errors = UpdateSpread(0.0, between, 0.25).errors(5, 2)
    pairs = torch.combinations(torch.arange(5), 2)
    by_hand = (h[pairs].mean(1) - mean).square().sum(1).mean()
    assert errors["fedavg"].partial_participation == pytest.approx(float(by_hand))
    assert errors["fedavg"].total == pytest.approx(float(by_hand) + 0.25)
    assert errors["fedvarp"].partial_participation == 0
    # Noise alone: v = mean(e) + average over S of (e' − e), of variance ν (1/M + 1/M − 1/N).
    e, fresh = torch.randn(2, 20_000, 5, generator=draw, dtype=torch.float64)
    errors = UpdateSpread(1.0, 0.0, 0.0, within_clusters=0.0).errors(5, 2, [1] * 5)
    v = e.mean(1) + (fresh - e)[:, :2].mean(1)
    assert errors["fedvarp"].stochastic_gradient == pytest.approx(
        float(v.square().mean()), rel=0.05
    )
    assert errors["fedavg"].stochastic_gradient == 0.5
    assert errors["cluster_fedvarp"].stochastic_gradient == pytest.approx(
        errors["fedvarp"].stochastic_gradient
    )


def test_rows_as_they_are_against_every_cohort() -> None:
    """v = mean(y) + average over S of (Δ − y), for any y, over every cohort of 3 of 20."""
    data = quadratics(N, DIM, sigma2=0.0, smoothness=2.0)
    sgd = LocalSGD(lr=0.2, batch_size=10, steps=3)
    gradients = quadratic_gradients(data, DIM, sgd)
    y = torch.randn(N, DIM, generator=stream(3, "rows"))
    spread = measure_updates(
        gradients, torch.arange(N), data.cluster_of, row_of=lambda client: y[client]
    ).spread
    found = spread.errors_with_rows("fedvarp", N, 3)
    model, w = gradients.model, gradients.w
    updates = [
        local_training.train(
            sgd, model, quadratic_loss, w, data.client(i), seed=0, round=1, client=i
        ).delta
        for i in range(N)
    ]
    # Updates and rows are sums of three gradients; errors are those of one.
    h, y = torch.stack(updates).double() / 3, y.double() / 3
    cohorts = torch.combinations(torch.arange(N), 3)

    def by_hand(beta: float) -> float:
        v = beta * y.mean(0) + (h - beta * y)[cohorts].mean(1)
        return float((v - h.mean(0)).square().sum(1).mean())

    assert found is not None
    assert found.partial_participation == pytest.approx(by_hand(1.0), rel=1e-5)
    assert found.stochastic_gradient == pytest.approx(0, abs=1e-9)
    best = spread.best_beta_with_rows()
    part = spread.errors_with_part_of_rows(best, N, 3).partial_participation
    assert part == pytest.approx(by_hand(best), rel=1e-5)
    assert by_hand(best) <= min(by_hand(beta) for beta in (0.0, 0.5 * best, 0.5 + 0.5 * best, 1.0))


@settings(max_examples=50, deadline=None)
@given(noise=st.floats(0, 10), between=st.floats(0, 10), beta=st.floats(0, 1), M=st.integers(1, 12))
def test_the_best_beta_leaves_least(noise: float, between: float, beta: float, M: int) -> None:
    """β = 0 is FedAvg and β = 1 FedVARP; the best one is no worse than either, or any other."""
    spread = UpdateSpread(noise, between, 0.0)
    best = spread.fedvarp(12, M, spread.best_beta(12)).total
    assert best <= spread.fedvarp(12, M, beta).total * (1 + 1e-9) + 1e-12
    assert spread.fedvarp(12, M, 0.0).total == pytest.approx(spread.fedavg(12, M).total)


def test_a_part_of_fresh_rows_against_draws() -> None:
    """v = β ȳ + mean over S of (Δ − β y) with y = h + e: drawn 20,000 times."""
    draw = stream(2, "beta")
    h = torch.tensor([1.0, -1.0, 2.0, 0.0, -2.0], dtype=torch.float64)
    e, fresh = 0.7 * torch.randn(2, 20_000, 5, generator=draw, dtype=torch.float64)
    beta, y = 0.6, h + e
    everywhere = torch.stack(
        [
            beta * y.mean(1) + (h + fresh - beta * y)[:, pair].mean(1)
            for pair in torch.combinations(torch.arange(5), 2)
        ]
    )
    spread = UpdateSpread(0.49, float(h.var(unbiased=False)), 0.0)
    error = float((everywhere - h.mean()).square().mean())
    assert spread.fedvarp(5, 2, beta).total == pytest.approx(error, rel=0.03)


def test_what_rows_leave_of_each_parameter_adds_up_to_the_whole() -> None:
    """Rows that know the bias and nothing of the weights."""
    draw = stream(5, "parameters")
    parts = [(torch.randn(6, 2, generator=draw) + i, torch.ones(6, 1) * i) for i in range(4)]
    model = torch.nn.Linear(2, 1)
    flat, sgd = FlatModel(model), LocalSGD(lr=0.01, batch_size=6, steps=2)
    gradients = ClientGradients(from_tensors(parts), flat, mse_loss, sgd, flat.vector())

    def row_of(client: int) -> Tensor:
        update = local_training.train(
            sgd, flat, mse_loss, gradients.w, parts[client], seed=0, round=1, client=client
        ).delta
        flat.unflatten(update)["weight"].zero_()
        return update

    found = measure_updates(gradients, torch.arange(4), None, row_of=row_of)
    weight, bias = found.by_parameter["weight"], found.by_parameter["bias"]
    assert bias.around_rows == pytest.approx(0, abs=1e-9)
    assert bias.between_clients > 0.1
    assert weight.around_rows == pytest.approx(weight.between_clients)
    spread = found.spread
    assert spread.from_rows is not None
    assert weight.between_clients + bias.between_clients == pytest.approx(spread.between_clients)
    assert weight.around_rows + bias.around_rows == pytest.approx(spread.from_rows.around_rows)


def test_rows_of_noisy_clients_are_measured_without_bias() -> None:
    """One step: h_i is the gradient. Two noisy trainings each, a sample of 8 of 20."""
    data = quadratics(N, DIM, sigma2=3.0, sigma_g2=2.0, sigma_K2=0.5)
    y = torch.randn(N, DIM, generator=stream(4, "rows"))
    away = gradients_at_zero(data) - y
    truth = float((away - away.mean(0)).square().sum(1).mean())
    values = []
    for seed in range(16):
        sgd = LocalSGD(lr=0.1, batch_size=2, steps=1)
        gradients = quadratic_gradients(data, DIM, sgd, seed)
        chosen = torch.randperm(N, generator=stream(seed, "chosen"))[:8]
        found = measure_updates(gradients, chosen, None, row_of=lambda client: y[client]).spread
        assert found.from_rows is not None
        values.append(found.from_rows.around_rows)
    spread = torch.tensor(values, dtype=torch.float64)
    assert abs(float(spread.mean()) - truth) < 4 * float(spread.std()) / math.sqrt(16)
    assert float(spread.std()) < truth / 2  # or the line above could not fail


@pytest.mark.parametrize(("sizes", "M"), [([6], 3), ([3, 3], 1), ([3, 3], 2), ([4, 2], 2)])
def test_shared_rows_against_every_cohort(sizes: list[int], M: int) -> None:
    """Rows left by every cohort that meets their cluster, read by every cohort: by hand."""
    clusters = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    h = torch.randn(6, 3, generator=stream(1, "rows"), dtype=torch.float64)
    if sizes == [4, 2]:  # equally wide: the same sum of squares over N_k − 1
        for k in range(2):
            own = h[clusters == k] - h[clusters == k].mean(0)
            h[clusters == k] = own * math.sqrt((len(own) - 1) / float(own.square().sum()))
    within = sum(
        float((h[clusters == k] - h[clusters == k].mean(0)).square().sum())
        for k in range(len(sizes))
    )
    cohorts = list(torch.combinations(torch.arange(6), M))
    rows = [
        [S[clusters[S] == k] for S in cohorts if (clusters[S] == k).any()]
        for k in range(len(sizes))
    ]
    by_hand, of_noise, possible = 0.0, 0.0, 0
    for members in itertools.product(*rows):  # whose updates make up each row
        possible += 1
        y = torch.stack([h[own].mean(0) for own in members])[clusters]
        by_hand += float(
            sum((h - y)[S].mean(0).sub((h - y).mean(0)).square().sum() for S in cohorts)
        )
        for k, own in enumerate(members):  # noise of variance 1 in this row alone
            reads = (clusters == k).double()
            spread = sum((reads[S].mean() - reads.mean()) ** 2 for S in cohorts)
            of_noise += float(spread) / len(own)
    spreads = UpdateSpread(1.0, 9.0, 0.0, within_clusters=within / 6)
    found = spreads.errors(6, M, sizes)["cluster_fedvarp"]
    total = possible * len(cohorts)
    assert found.partial_participation == pytest.approx(by_hand / total)
    assert found.stochastic_gradient == pytest.approx(1 / M + of_noise / total)


def test_one_client_has_updates_too() -> None:
    data = from_tensors([(torch.ones(1, 4), torch.ones(1, 4))])
    gradients = quadratic_gradients(data, 4, LocalSGD(lr=0.1, batch_size=1, steps=1))
    found = measure_updates(gradients, torch.arange(1))
    assert (found.spread.noise, found.spread.between_clients, found.diverged) == (0, 0, 0)
    assert found.spread.drift == pytest.approx(0, abs=1e-12)


def test_clients_that_diverge_are_left_out_and_counted() -> None:
    parts = [(torch.ones(1, 4), torch.full((1, 4), h)) for h in (1.0, 1.0, 1e9)]
    sgd = LocalSGD(lr=0.1, batch_size=1, steps=40)
    gradients = quadratic_gradients(from_tensors(parts), 4, sgd)
    assert measure_updates(gradients, torch.arange(3)).diverged == 1
    with pytest.raises(ValueError, match=r"diverged at 1 of 2 clients.*client rate"):
        measure_updates(gradients, torch.tensor([0, 2]))
