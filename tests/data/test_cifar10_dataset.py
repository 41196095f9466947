"""CIFAR-10 over clients: the paper's split and others, on the real images."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
import torch

from fedvarp.data import cifar10
from fedvarp.data.cifar10_dataset import CHANNEL_MEAN, CHANNEL_STD, normalised
from fedvarp.data.cifar10_files import Cifar10Images
from fedvarp.randomness import stream


def test_normalised_is_pixel_minus_mean_over_std() -> None:
    pixels = torch.randint(256, (2, 3, 32, 32), generator=stream(0, "pixels")).byte()
    out = normalised(pixels)
    assert out.dtype == torch.float32
    for c in range(3):
        expected = (pixels[:, c].double() / 255 - CHANNEL_MEAN[c]) / CHANNEL_STD[c]
        assert torch.allclose(out[:, c].double(), expected, atol=1e-5)


def test_channel_constants_are_those_of_the_training_images(images: Cifar10Images) -> None:
    for c in range(3):
        histogram = images.train_pixels[:, c].flatten().bincount(minlength=256).double()
        level = torch.arange(256).double() / 255
        mean = (histogram * level).sum() / histogram.sum()
        std = ((histogram * (level - mean).square()).sum() / histogram.sum()).sqrt()
        assert mean.item() == pytest.approx(CHANNEL_MEAN[c], abs=6e-5)
        assert std.item() == pytest.approx(CHANNEL_STD[c], abs=6e-5)


def test_the_papers_split(images: Cifar10Images) -> None:
    data = cifar10(images)
    assert data.num_clients == 250
    assert data.num_examples is not None
    assert data.num_examples.tolist() == [200] * 250
    assert data.cluster_of is not None
    assert data.cluster_names is not None
    assert data.num_classes == 10
    assert data.test is not None
    assert data.test[0].shape == (10_000, 3, 32, 32)
    assert data.augment is None
    for i in range(0, 250, 10):
        x, y = data.client(i)
        assert x.shape == (200, 3, 32, 32)
        assert x.dtype == torch.float32
        held = [images.label_names[label] for label in sorted(set(y.tolist()))]
        assert len(held) in (1, 2)
        assert data.cluster_names[int(data.cluster_of[i])] == "+".join(held)
        assert all(count in (100, 200) for count in y.bincount().tolist() if count)
    assert 40 < len(data.cluster_names) <= 55


@pytest.mark.parametrize("partition", ["dirichlet", "iid"])
def test_other_splits(images: Cifar10Images, partition: Literal["dirichlet", "iid"]) -> None:
    data = cifar10(images, partition=partition, num_clients=100, alpha=0.1, seed=4, augment=True)
    assert data.num_examples is not None
    assert data.num_examples.tolist() == [500] * 100
    _, y = data.client(0)
    if partition == "iid":
        assert data.cluster_names == ["all labels"]
        assert y.bincount(minlength=10).min() > 20  # 50 expected, standard deviation 7
    else:
        assert y.bincount(minlength=10).max() > 150
    assert data.augment is not None
    x, _ = data.client(1)
    out = data.augment(x, stream(0, "augment"))
    assert out.shape == x.shape
    assert out[:, 2].min() >= -CHANNEL_MEAN[2] / CHANNEL_STD[2] - 1e-6  # no blue below black


def test_the_real_archive_through_the_public_function(real_data: Path) -> None:
    data = cifar10(real_data, num_clients=500, shards_per_client=1, seed=1)
    assert repr(data) == (
        "FederatedDataset(500 clients, 50,000 examples, 10 classes, 10 clusters, "
        "10,000 test examples)"
    )
