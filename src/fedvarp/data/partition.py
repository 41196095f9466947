"""Splits labelled examples over clients: label shards, Dirichlet label mixes, or at random.

Each function returns the rows of every client; every example belongs to exactly one client and no
client is empty.

>>> import torch
>>> labels = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3])
>>> parts = shards(labels, num_clients=2, shards_per_client=2)
>>> [labels[rows].tolist() for rows in parts]
[[3, 3, 0, 0], [1, 1, 2, 2]]
>>> clusters_by_labels(labels, parts).label_sets
[(0, 3), (1, 2)]
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, NamedTuple

import numpy as np
import torch
from pydantic import BeforeValidator, Field, InstanceOf
from torch import Tensor

from fedvarp.errors import InvalidError
from fedvarp.randomness import stream
from fedvarp.settings.bounds import Count, Positive, Seed
from fedvarp.settings.checked import checked
from fedvarp.tables import tensors

Labels = Annotated[
    Tensor,
    BeforeValidator(lambda given: tensors.whole_numbers("labels", given, of_what="example")),
]
"""(n,) int64, one for each example; lists and NumPy arrays are taken too."""
Partition = list[Tensor]
"""The rows of each client's examples, int64."""
PartitionName = Literal["shards", "dirichlet", "iid"]
"""The functions of this module that `split` knows."""

# Under Dirichlet(0.1) nearly every client has a label set of its own; the labels that make up most
# of its data are what it shares with others.
SHARDS_PER_CLIENT: Final = 2
"""The paper's."""
ALPHA: Final = 0.1
"""The usual concentration of Dirichlet label mixes."""
_MAIN_LABELS = 0.5


class Clusters(NamedTuple):
    """Clients grouped by the labels they hold."""

    cluster_of: Tensor  # (N,) int64
    label_sets: list[tuple[int, ...]]  # K sorted sets; empty tuple: no labels in particular


@checked
def shards(
    labels: Labels, *, num_clients: Count, shards_per_client: Count = 2, seed: Seed = 0
) -> Partition:
    """Sorts by label, cuts into equal shards, deals each client some of them at random.

    The split of McMahan et al. (2017) and of the paper: 500 shards of 100, two a client.

    Args:
        labels: (n,) the label of each example.
        num_clients: N.
        shards_per_client: How many shards a client gets.
        seed: Keys who gets which.

    Returns:
        The rows of each client.

    Raises:
        ValueError: The examples cannot be cut into so many equal shards.
    """
    _check_counts(labels, num_clients)
    num_shards = num_clients * shards_per_client
    if len(labels) % num_shards:
        raise InvalidError(_indivisible(len(labels), num_clients, shards_per_client))
    by_label = labels.argsort(stable=True).view(num_shards, -1)  # (shards, examples)
    dealt = torch.randperm(num_shards, generator=stream(seed, "shards"))
    return list(by_label[dealt].view(num_clients, -1))


@checked
def dirichlet(labels: Labels, *, num_clients: Count, alpha: Positive, seed: Seed = 0) -> Partition:
    """Clients of equal size, each with its own label mix q_i ~ Dirichlet(alpha, ..., alpha).

    As in Hsu et al. (2019): a client draws its examples from q_i without replacement, and once a
    label has run out, from the labels that are left in the proportions of q_i. Clients take their
    turn in random order, so that it is not the last ids who get the leftovers. alpha is the
    concentration of each label (not divided by their number). Sizes differ by at most one.

    Args:
        labels: (n,) the label of each example.
        num_clients: N.
        alpha: The smaller, the fewer labels a client has.
        seed: Keys the mixes and the draws from them.

    Returns:
        The rows of each client.

    Raises:
        ValueError: There are fewer examples than clients, or alpha is not positive.
    """
    _check_counts(labels, num_clients)
    draw = stream(seed, "dirichlet")
    # torch has no Dirichlet that takes a generator; NumPy's is keyed by 256 bits of ours.
    rng = np.random.default_rng(torch.randint(2**32, (8,), generator=draw).tolist())
    num_classes = int(labels.max()) + 1
    pools = [
        rows[torch.randperm(len(rows), generator=draw)]
        for rows in ((labels == c).nonzero().flatten() for c in range(num_classes))
    ]
    left = np.array([len(pool) for pool in pools])  # (classes,)
    mixes = rng.dirichlet(np.full(num_classes, alpha), size=num_clients)  # (N, classes)
    sizes = [len(part) for part in torch.arange(len(labels)).tensor_split(num_clients)]
    parts: Partition = [torch.empty(0, dtype=torch.int64)] * num_clients
    for i in torch.randperm(num_clients, generator=draw).tolist():
        counts = _draw_counts(sizes[i], mixes[i], left, rng)
        starts = [len(pool) - n for pool, n in zip(pools, left, strict=True)]
        parts[i] = torch.cat([p[s : s + n] for p, s, n in zip(pools, starts, counts, strict=True)])
        left = left - counts
    return parts


@checked
def iid(labels: Labels, *, num_clients: Count, seed: Seed = 0) -> Partition:
    """Shuffles and cuts into parts whose sizes differ by at most one; labels play no part.

    Args:
        labels: (n,) the label of each example.
        num_clients: N.
        seed: Keys the shuffle.

    Returns:
        The rows of each client.

    Raises:
        ValueError: There are fewer examples than clients.
    """
    _check_counts(labels, num_clients)
    shuffled = torch.randperm(len(labels), generator=stream(seed, "iid"))
    return list(shuffled.tensor_split(num_clients))


@checked
def clusters_by_labels(
    labels: Labels,
    partition: InstanceOf[Partition],
    coverage: Annotated[float, Field(gt=0, le=1)] = 1.0,
) -> Clusters:
    """Groups clients with the same labels.

    Args:
        labels: (n,) the label of each example.
        partition: The rows of each client.
        coverage: 1 compares whole label sets (the paper's clusters). Below 1, each client is known
            by the fewest of its most frequent labels that hold this share of its examples.

    Returns:
        The cluster of each client, and the labels of each cluster.

    Raises:
        ValueError: The coverage is no share above 0.
    """
    sets = [_main_labels(labels[rows], coverage) for rows in partition]
    label_sets = sorted(set(sets), key=lambda labels: (len(labels), labels))
    number = {labels: k for k, labels in enumerate(label_sets)}
    return Clusters(torch.tensor([number[labels] for labels in sets]), label_sets)


@checked
def split(
    labels: Labels,
    how: PartitionName,
    *,
    num_clients: Count,
    shards_per_client: Count = SHARDS_PER_CLIENT,
    alpha: Positive = ALPHA,
    seed: Seed,
) -> tuple[Partition, Clusters]:
    """Splits examples by the name of a partition, and finds its natural clusters.

    Shards: clients with the same label set. Dirichlet: clients with the same labels in the majority
    (the fewest labels that make up half of the client's data). IID: one cluster, for all are alike.

    Args:
        labels: (n,) the label of each example.
        how: The name of the partition.
        num_clients: N.
        shards_per_client: As in `shards`, which alone takes it.
        alpha: As in `dirichlet`, which alone takes it.
        seed: Keys the split.

    Returns:
        The rows of each client, and the clusters.

    Raises:
        ValueError: There is no such partition, it cannot be made of these examples, or it has no
            use for what was given.
    """
    for name, value, default, user in (
        ("shards_per_client", shards_per_client, SHARDS_PER_CLIENT, "shards"),
        ("alpha", alpha, ALPHA, "dirichlet"),
    ):
        if value != default and how != user:  # a default is no choice
            raise InvalidError(
                f'{name} = {value} has no effect with partition = "{how}": leave it out, or choose '
                f'partition = "{user}", which uses it.'
            )
    if how == "shards":
        parts = shards(
            labels,
            num_clients=num_clients,
            shards_per_client=shards_per_client,
            seed=seed,
        )
        return parts, clusters_by_labels(labels, parts)
    if how == "dirichlet":
        parts = dirichlet(labels, num_clients=num_clients, alpha=alpha, seed=seed)
        return parts, clusters_by_labels(labels, parts, coverage=_MAIN_LABELS)
    parts = iid(labels, num_clients=num_clients, seed=seed)
    return parts, Clusters(torch.zeros(num_clients, dtype=torch.int64), [()])


def _main_labels(labels: Tensor, coverage: float) -> tuple[int, ...]:
    counts = labels.bincount()
    ranked = counts.argsort(descending=True, stable=True)
    held_by_top = counts[ranked].cumsum(0)  # exact integers; the float target is rounded up safely
    enough = int((held_by_top < coverage * len(labels)).sum()) + 1
    return tuple(sorted(ranked[:enough].tolist()))


def _draw_counts(
    size: int, mix: np.ndarray, left: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """How many of each label one client takes: ``size`` in all, never more than are left."""
    counts = np.zeros_like(left)
    while (wanted := size - counts.sum()) > 0:
        weights = np.where(counts < left, mix, 0.0)
        if not weights.sum() > 0:  # every label this client wants is used up: take what there is
            weights = (left - counts).astype(float)
        counts += np.minimum(rng.multinomial(wanted, weights / weights.sum()), left - counts)
    return counts


def _check_counts(labels: Tensor, num_clients: int) -> None:
    if num_clients > len(labels):
        raise InvalidError(
            f"{len(labels)} examples cannot be split over {num_clients} clients: every client "
            f"needs at least one example. Choose 1 to {len(labels)} clients."
        )


def _indivisible(num_examples: int, num_clients: int, shards_per_client: int) -> str:
    wanted = num_clients * shards_per_client
    problem = (
        f"{num_examples} examples cannot be cut into {num_clients} clients x {shards_per_client} "
        f"= {wanted} equal shards (remainder {num_examples % wanted}). "
    )
    workable = [
        n
        for n in range(1, num_examples // shards_per_client + 1)
        if num_examples % (n * shards_per_client) == 0
    ]
    nearest = [
        *[n for n in workable if n < num_clients][-1:],
        *[n for n in workable if n > num_clients][:1],
    ]
    if nearest:
        return problem + (
            f"The nearest numbers of clients that work with {shards_per_client} shards each: "
            f"{' and '.join(map(str, nearest))}."
        )
    return problem + (
        f"No number of clients works with {shards_per_client} shards each. Leave out "
        f"{num_examples % wanted} examples, or change shards_per_client."
    )
