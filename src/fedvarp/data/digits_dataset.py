"""scikit-learn's 8 x 8 digits over 100 clients: federated learning that needs no download."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from fedvarp.data.federated_dataset import FederatedDataset
from fedvarp.data.own_data import from_partition
from fedvarp.data.partition import ALPHA, SHARDS_PER_CLIENT, PartitionName, split
from fedvarp.randomness import stream
from fedvarp.settings.bounds import Count, Positive, Seed
from fedvarp.settings.checked import checked

# Each digit occurs 174 to 183 times. With 160 of each the 200 shards are of 8 images of one digit;
# the other 197 images are the test set.
_TRAIN_IMAGES_PER_DIGIT: Final = 160
_BRIGHTEST: Final = 16.0


@checked
def digits(
    *,
    partition: PartitionName = "shards",
    num_clients: Count = 100,
    shards_per_client: Count = SHARDS_PER_CLIENT,
    alpha: Positive = ALPHA,
    seed: Seed = 0,
) -> FederatedDataset:
    """Splits scikit-learn's digits over clients: 1600 images to train on, 197 to test on.

    Args:
        partition: How examples are split over clients: "shards" sorts them by label and deals each
            client some shards at random, "dirichlet" gives clients of equal size a label mix each,
            "iid" splits at random.
        num_clients: How many clients the examples are split over.
        shards_per_client: How many label shards a client gets, for the partition "shards".
        alpha: Concentration of the clients' label mixes, for the partition "dirichlet": the smaller
            it is, the fewer labels a client has.
        seed: Keys the split and which images are held out, and nothing else, so that runs with
            several seeds can share one federation.

    Returns:
        Inputs are (n, 64) float32 pixels in [0, 1]. Clusters are clients with the same digits.

    Raises:
        ValueError: An argument is out of bounds, or such a split does not exist.
        ImportError: scikit-learn is not installed.
    """
    pixels, targets = _images()
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


def _images() -> tuple[NDArray[Any], NDArray[Any]]:  # (1797, 64) pixels, (1797,) digits
    package = importlib.util.find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise ImportError(
            "The digits come with scikit-learn, which is not installed: "
            'pip install "fedvarp[digits]"'
        )
    # The file is read directly: importing scikit-learn takes as long as importing torch.
    file = Path(package.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    if not file.exists():
        from sklearn.datasets import load_digits

        pixels, targets = load_digits(return_X_y=True)
        return pixels, targets
    table = np.loadtxt(file, delimiter=",")
    return table[:, :-1], table[:, -1].astype(np.int64)
