"""The gradient of one client, its loss, its steps and the noise of its batches."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import nn

from fedvarp import FlatModel, LocalSGD
from fedvarp.clients import local_training
from fedvarp.clients.gradients import ClientGradients, noise_factor, steps_of
from fedvarp.data import quadratics
from small_problems import quadratic_gradients, small_classifier


def test_gradients_are_those_of_autograd_whatever_the_batches() -> None:
    data, model = small_classifier()
    flat = FlatModel(model)
    w = flat.vector()
    sgd = LocalSGD(lr=0.1, batch_size=5, epochs=1)
    gradients = ClientGradients(data, flat, nn.functional.cross_entropy, sgd, w)
    for client in range(3):
        x, y = data.client(client)
        model.zero_grad()
        flat.bind(w.clone())
        loss = nn.functional.cross_entropy(model(x), y)
        parts = torch.autograd.grad(loss, list(model.parameters()))
        expected = torch.cat([part.reshape(-1) for part in parts])
        found = gradients.of(client)
        torch.testing.assert_close(found.gradient.float(), expected)
        torch.testing.assert_close(gradients.gradient(client, w).float(), expected)
        assert found.loss == pytest.approx(float(loss.detach()), rel=1e-5)


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
    values = torch.tensor(
        [
            [quadratic_gradients(data, 10, sgd, seed).of(i).noise for i in range(4)]
            for seed in range(60)
        ]
    ).mean(1)
    truth = 1.5 * 10 / 9 * factor
    assert abs(float(values.mean()) - truth) < 4 * float(values.std()) / math.sqrt(60)


def test_a_single_batch_has_no_noise() -> None:
    sgd = LocalSGD(lr=1, batch_size=10, epochs=1)
    assert quadratic_gradients(quadratics(6, 4, num_clusters=2), 4, sgd).of(3).noise == 0


def test_steps_are_those_of_local_sgd() -> None:
    for n, sgd in itertools.product(
        (1, 5, 6, 11),
        (LocalSGD(lr=0.1, batch_size=5, epochs=3), LocalSGD(lr=0.1, batch_size=5, steps=7)),
    ):
        batches = list(local_training.batches(sgd, n, seed=0, round=0, client=0))
        assert steps_of(n, sgd) == len(batches)
        counted = [1 / len(batch) - 1 / n for batch in batches]
        assert noise_factor(n, sgd) == pytest.approx(sum(counted) / len(counted), abs=1e-12)
