"""How unequally clients fare: the worst tenth of them, their spread, and each cluster."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import torch
from torch import Tensor

from fedvarp.runs.figures import higher_is_better

PerClient = Literal["summary", "all"]

_DECILE: Final = 10


def fairness(
    values: Mapping[str, Sequence[float]],
    clients: Tensor,
    cluster_of: Tensor | None,
    weights: Tensor,
    how: PerClient,
) -> dict[str, Any]:
    """Sums up what was measured at single clients.

    Args:
        values: By figure, one value for each of the clients; NaN where it has none.
        clients: (n,) int64, which clients these are.
        cluster_of: (N,) int64, the cluster of every client of the federation; None: there are none.
        weights: (n,) what each client counts for in the mean.
        how: "all" keeps every client's values too.

    Returns:
        For each figure such as ``train_accuracy``: the mean over clients by their weights;
        ``_worst_decile``, the mean over the tenth of clients that fare worst; ``_spread``, the
        standard deviation over clients; ``_worst_cluster``; and lists of numbers, None where there
        is none, in ``by_cluster`` and ``by_client``. Clients without a value are left out.
    """
    found: dict[str, Any] = {}
    by_cluster: dict[str, list[float | None]] = {}
    for name, each in values.items():
        all_of_them = torch.tensor(each, dtype=torch.float64)
        if name.endswith("loss"):  # a loss that is not finite is no lack of a value
            all_of_them = all_of_them.nan_to_num(nan=math.inf)
        known = ~all_of_them.isnan()
        some, share = all_of_them[known], weights[known]
        if not len(some):
            continue
        worst_first = some.sort(descending=not higher_is_better(name)).values
        found[name] = float(share @ some / share.sum())
        worst = worst_first[: math.ceil(len(some) / _DECILE)]
        found[f"{name}_worst_decile"] = float(worst.mean())
        found[f"{name}_spread"] = float(some.std(correction=0))
        if cluster_of is not None:
            means = _by_cluster(some, cluster_of[clients[known]], int(cluster_of.max()) + 1)
            there = [mean for mean in means if mean is not None]
            found[f"{name}_worst_cluster"] = (min if higher_is_better(name) else max)(there)
            by_cluster[name] = means
    if by_cluster:
        found["by_cluster"] = {name: _finite(means) for name, means in by_cluster.items()}
    if how == "all":
        who = {"client": clients.tolist()}
        found["by_client"] = who | {name: _finite(each) for name, each in values.items()}
    return found


def _by_cluster(values: Tensor, clusters: Tensor, num_clusters: int) -> list[float | None]:
    counts = torch.bincount(clusters, minlength=num_clusters)
    sums = torch.zeros(num_clusters, dtype=torch.float64).index_add_(0, clusters, values)
    return [
        total / count if count else None
        for total, count in zip(sums.tolist(), counts.tolist(), strict=True)
    ]


def _finite(values: Sequence[float | None]) -> list[float | None]:
    return [value if value is not None and math.isfinite(value) else None for value in values]
