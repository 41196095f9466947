"""scikit-learn's 8 x 8 digits over 100 clients: federated learning that needs no download."""

from __future__ import annotations

from typing import Final

import torch

from fedvarp.data.federated_dataset import FederatedDataset
from fedvarp.data.own_data import from_partition
from fedvarp.data.partition import PartitionName, split
from fedvarp.randomness import stream

# Each digit occurs 174 to 183 times. With 160 of each the 200 shards are of 8 images of one digit;
# the other 197 images are the test set.
_TRAIN_IMAGES_PER_DIGIT: Final = 160
_BRIGHTEST: Final = 16.0


def digits(
    *,
    partition: PartitionName = "shards",
    num_clients: int = 100,
    shards_per_client: int = 2,
    alpha: float = 0.1,
    seed: int = 0,
) -> FederatedDataset:
    """1600 images over 100 clients with two label shards each; 197 test images.

    The arguments are those of `fedvarp.data.cifar10`; ``seed`` also keys which images are held out.

    Returns:
        Inputs are (n, 64) float32 pixels in [0, 1]. Clusters are clients with the same digits.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError(
            "The digits come with scikit-learn, which is not installed: "
            'pip install "fedvarp[digits]"'
        ) from error
    pixels, targets = load_digits(return_X_y=True)
    x = torch.from_numpy(pixels).float() / _BRIGHTEST  # (1797, 64)
    y = torch.from_numpy(targets).long()  # (1797,)

    generator = stream(seed, "held-out digits")
    train, test = [], []
    for digit in range(10):
        images = (y == digit).nonzero().flatten()
        images = images[torch.randperm(len(images), generator=generator)]
        train.append(images[:_TRAIN_IMAGES_PER_DIGIT])
        test.append(images[_TRAIN_IMAGES_PER_DIGIT:])
    train_rows, test_rows = torch.cat(train), torch.cat(test)

    parts, clusters = split(
        y[train_rows],
        partition,
        num_clients=num_clients,
        shards_per_client=shards_per_client,
        alpha=alpha,
        seed=seed,
    )
    return from_partition(
        x[train_rows],
        y[train_rows],
        parts,
        test=(x[test_rows], y[test_rows]),
        cluster_of=clusters.cluster_of,
        cluster_names=["+".join(map(str, labels)) or "all" for labels in clusters.label_sets],
        num_classes=10,
    )
