"""CIFAR-10 over many clients: label shards as in the paper, Dirichlet label mixes, or IID."""

from __future__ import annotations

import os
from typing import Final

import torch
from torch import Tensor

from fedvarp.data.augment import RandomCropAndFlip
from fedvarp.data.cifar10_files import Cifar10Images, read_cifar10
from fedvarp.data.federated_dataset import FederatedDataset
from fedvarp.data.locate import data_root
from fedvarp.data.own_data import from_partition
from fedvarp.data.partition import ALPHA, SHARDS_PER_CLIENT, PartitionName, split
from fedvarp.settings.bounds import Count, Positive, Seed
from fedvarp.settings.checked import checked

# Of the 50,000 training images, per channel (red, green, blue), pixels scaled to [0, 1].
CHANNEL_MEAN: Final = (0.4914, 0.4822, 0.4465)
CHANNEL_STD: Final = (0.2470, 0.2435, 0.2616)
_BLACK: Final = tuple(-m / s for m, s in zip(CHANNEL_MEAN, CHANNEL_STD, strict=True))


@checked
def cifar10(
    root: str | os.PathLike[str] | Cifar10Images | None = None,
    *,
    partition: PartitionName = "shards",
    num_clients: Count = 250,
    shards_per_client: Count = SHARDS_PER_CLIENT,
    alpha: Positive = ALPHA,
    seed: Seed = 0,
    augment: bool = False,
) -> FederatedDataset:
    """Splits CIFAR-10 over clients; the defaults are the paper's split.

    Args:
        root: The archive of the python batches, the extracted folder, or a folder with either; None
            for the folder named by the environment variable FEDVARP_DATA. Or the images that
            `fedvarp.data.cifar10_files.read_cifar10` has read, to split them in several ways.
        partition: How examples are split over clients: "shards" sorts them by label and deals each
            client some shards at random, "dirichlet" gives clients of equal size a label mix each,
            "iid" splits at random.
        num_clients: How many clients the examples are split over.
        shards_per_client: How many label shards a client gets, for the partition "shards".
        alpha: Concentration of the clients' label mixes, for the partition "dirichlet": the smaller
            it is, the fewer labels a client has.
        seed: Keys the split alone, so that runs with several seeds can share one federation.
        augment: Whether images are cropped (after 4 black pixels of padding) and mirrored at random
            while training.

    Returns:
        Inputs are float32 images (n, 3, 32, 32), normalised per channel. Clusters are clients with
        the same label set (shards), with the same labels in the majority (Dirichlet), or everybody
        (IID).

    Raises:
        ValueError: An argument is out of bounds, or such a split does not exist.
        DataError: The files are not there, or damaged.
    """
    if isinstance(root, Cifar10Images):
        images = root
    else:
        images = read_cifar10(data_root(root, download="download_cifar10"))
    parts, clusters = split(
        images.train_labels,
        partition,
        num_clients=num_clients,
        shards_per_client=shards_per_client,
        alpha=alpha,
        seed=seed,
    )
    return from_partition(
        images.train_pixels,
        images.train_labels,
        parts,
        prepare=normalised,
        test=(normalised(images.test_pixels), images.test_labels),
        cluster_of=clusters.cluster_of,
        cluster_names=[
            "+".join(images.label_names[label] for label in labels) or "all labels"
            for labels in clusters.label_sets
        ],
        augment=RandomCropAndFlip(fill=_BLACK) if augment else None,
        num_classes=len(images.label_names),
    )


def normalised(pixels: Tensor) -> Tensor:
    """Scales images to mean 0 and variance 1 per channel over the training set.

    Args:
        pixels: (n, 3, 32, 32) uint8.

    Returns:
        (n, 3, 32, 32) float32.
    """
    mean = torch.tensor(CHANNEL_MEAN).mul(255).view(3, 1, 1)
    std = torch.tensor(CHANNEL_STD).mul(255).view(3, 1, 1)
    return pixels.float().sub_(mean).div_(std)
