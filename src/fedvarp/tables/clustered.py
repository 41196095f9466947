"""Clients of a cluster share one row: ClusterFedVARP is FedVARP over this table."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Annotated

import torch
from pydantic import SkipValidation
from torch import Tensor

from fedvarp.errors import InvalidError
from fedvarp.settings.checked import checked
from fedvarp.tables.base import ClientTable
from fedvarp.tables.blocks import blocks
from fedvarp.tables.checks import Beta, check_clients, check_rows, check_shares, check_weights
from fedvarp.tables.largest_entries import LargestEntries
from fedvarp.tables.row_table import RowTable
from fedvarp.tables.running_sum import digest_of
from fedvarp.tables.tensors import Weights, weights, whole_numbers


class ClusteredTable(ClientTable):
    """y_i is row c_i of a table with one row per cluster (Algorithm 3).

    Args:
        cluster_of: (N,) int64, c_i in 0 … K-1.
        rows: A table with K rows; where it keeps them and how is its own affair.
        client_weights: (N,) p_i of the objective Σ p_i f_i; None for 1/N each.
        clustering: How the clusters are made, if they are to change with time. A checkpoint then
            keeps the clusters themselves and asks only that they are made in the same way.

    Raises:
        ValueError: A cluster has no row, or the weights are not one a client.

    >>> from fedvarp import MemoryTable
    >>> table = ClusteredTable(torch.tensor([0, 0, 1]), MemoryTable(num_clients=2, dim=1))
    >>> table.put(torch.tensor([0, 1]), torch.tensor([[2.0], [4.0]]))
    >>> table.get(torch.tensor([0, 1, 2])).T
    tensor([[3., 3., 0.]])
    >>> table.mean()
    tensor([2.])
    """

    @checked
    def __init__(
        self,
        cluster_of: Annotated[Tensor, SkipValidation],
        rows: RowTable,
        client_weights: Weights | None = None,
        clustering: str | None = None,
    ) -> None:
        cluster_of = _clusters_of(cluster_of, rows.num_clients)
        self.cluster_of = cluster_of.cpu().clone()
        self.rows = rows
        self.num_clients = len(cluster_of)
        self.dim = rows.dim
        self.dtype = rows.dtype
        if client_weights is not None:
            client_weights = weights("client_weights", client_weights, len(cluster_of))
        self._client_weights = client_weights
        self._weighed: Tensor | None = None  # (N,) float64, what `weigh` was given
        self._total: float | None = None  # and what all clients count for
        self._clustering = clustering
        self._share_rows()

    def get(self, clients: Tensor) -> Tensor:
        """The rows of these clients' clusters, (M, d), a copy; see `ClientTable.get`."""
        check_clients(clients, self.num_clients)
        return self.rows.get(self._clusters(clients))

    def put(self, clients: Tensor, rows: Tensor, largest: LargestEntries | None = None) -> None:
        """Each cluster's row becomes the mean of its clients' rows; see `ClientTable.put`."""
        largest = check_rows(self, clients, rows, largest)
        self.rows.put(*_mean_by_cluster(self._clusters(clients), rows), largest)

    def mean(self) -> Tensor:
        """1/N Σ_j y_{c_j}, (d,), a copy: each row counts as often as it has clients."""
        return self.rows.mean()

    def exchange(
        self,
        clients: Tensor,
        rows: Tensor,
        a: Tensor,
        beta: Beta,
        largest: LargestEntries | None = None,
    ) -> Tensor:
        """v, and then each cluster's row is its mean Δ_i; see `ClientTable.exchange`.

        A cluster's clients share y, so Σ a_i (Δ_i − β·y) is (Σ a_i) (mean Δ_i − β·y) where their
        a_i are equal. Where they are not, Σ a_i (Δ_i − mean Δ_i) is left, and added.
        """
        largest = check_rows(self, clients, rows, largest)
        check_weights(a, beta, clients, self.dim)
        clusters = self._clusters(clients)
        distinct, means = _mean_by_cluster(clusters, rows)
        summed = _sum_by_cluster(a.double().cpu(), clusters, self.rows.num_clients)[distinct]
        rest = None
        if len(distinct) < len(clusters) and not bool((a == a[0]).all()):
            rest = a.to(rows) @ rows - summed.to(means) @ means
        v = self.rows.exchange(distinct, means, summed, beta, largest)
        return v if rest is None else v.add_(rest)

    def add_clients(self, clusters: Tensor) -> range:
        """Lets more clients in; the next use costs O(K·d), as rows weigh differently from now on.

        Args:
            clusters: (n,) int64, the cluster of each of them.

        Returns:
            Their numbers.

        Raises:
            ValueError: The table has client weights, or a cluster has no row.
        """
        if self._client_weights is not None:
            raise InvalidError(
                "This table has client weights; make a new ClusteredTable over the same rows "
                "with the clusters and weights of all clients."
            )
        clusters = _clusters_of(clusters, self.rows.num_clients)
        first = self.num_clients
        self._become(torch.cat([self.cluster_of, clusters.cpu()]))
        return range(first, self.num_clients)

    def drop_clients(self, count: int) -> None:
        """Lets the last clients go; their clusters' rows stay, and weigh less.

        The next use of the table costs O(K·d), as with `add_clients`.

        Args:
            count: How many.

        Raises:
            ValueError: The table has client weights, or nobody would go or stay.
        """
        if self._client_weights is not None or not 0 < count < self.num_clients:
            raise InvalidError(
                f"drop_clients({count}) of {self.num_clients}: at least one must go and one stay, "
                f"in a table without client weights."
            )
        self._become(self.cluster_of[:-count].clone())

    def _become(self, cluster_of: Tensor) -> None:
        """More or fewer clients at the end; newcomers count once until they are weighed."""
        if self._weighed is not None and self._total is not None:
            kept = self._weighed[: len(cluster_of)]
            ones = torch.ones(len(cluster_of) - len(kept), dtype=torch.float64)
            self._weighed = torch.cat([kept, ones])
            self._total += len(cluster_of) - self.num_clients
        self.cluster_of, self.num_clients = cluster_of, len(cluster_of)
        self._share_rows()

    def weigh(self, shares: Tensor, total: float) -> None:
        """The next use costs O(K·d) if a cluster counts otherwise now; see `ClientTable.weigh`."""
        check_shares(shares, total, self.num_clients)
        self._weighed, self._total = shares.clone(), total
        self._share_rows()

    def forget(self, clients: Tensor) -> None:
        """Lets go of the rows of these clients' clusters; see `ClientTable.forget`."""
        check_clients(clients, self.num_clients)
        self.rows.forget(torch.unique(self._clusters(clients)))

    def resize(self, num_clients: int) -> None:
        """Lets clients into cluster 0, or the last ones go; see `ClientTable.resize`."""
        more = num_clients - self.num_clients
        if more > 0:
            self.add_clients(torch.zeros(more, dtype=torch.int64))
        elif more < 0:
            self.drop_clients(-more)

    def move(self, clients: Tensor, clusters: Tensor) -> None:
        """Puts clients into other clusters, new ones among them; rows stay as they are.

        The next use of the table costs O(K·d), as with `add_clients`.

        Args:
            clients: (n,) int64.
            clusters: (n,) int64, where each of them goes.

        Raises:
            IndexError: A client is unknown.
        """
        check_clients(clients, self.num_clients)
        clusters = whole_numbers("clusters", clusters, len(clients))
        new_rows = int(clusters.max()) + 1 - self.rows.num_clients
        if new_rows > 0:
            self.rows.add_rows(new_rows)
        clusters = _clusters_of(clusters, self.rows.num_clients)
        self.cluster_of[clients.cpu()] = clusters.cpu()
        self._share_rows()

    def recluster(self, cluster_of: Tensor) -> None:
        """Puts all clients into other clusters; O(K·d), and `mean` stays what it was.

        The row of a new cluster becomes the mean of its clients' present rows, each counted as the
        objective counts the client: the mean over all clients is then the same before and after,
        to the accuracy of the codec.

        Args:
            cluster_of: (N,) int64, 0 … K-1.

        Raises:
            ValueError: A cluster has no row, or there is not one cluster a client.
        """
        cluster_of = whole_numbers("cluster_of", cluster_of, self.num_clients)
        cluster_of = _clusters_of(cluster_of, self.rows.num_clients)
        K = self.rows.num_clients
        cluster_of = cluster_of.cpu()
        moved = torch.zeros(K, K, dtype=torch.float64)  # weight of the clients from old k to new k
        moved.index_put_((cluster_of, self.cluster_of), self._weights(), accumulate=True)
        heads = torch.zeros(K, K, dtype=torch.float64)  # their number, where none of them counts
        heads.index_put_((cluster_of, self.cluster_of), torch.ones(len(cluster_of)).double(), True)
        weightless = moved.sum(1) == 0
        moved[weightless] = heads[weightless]
        shares = moved / moved.sum(1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
        clusters = torch.arange(K)
        before = self.rows.get(clusters)
        after = torch.empty_like(before)
        for here in blocks(self.dim):
            after[:, here] = shares.to(before.device) @ before[:, here].double()
        changed = (before != after).any(1).cpu()
        self.rows.put(clusters[changed], after[changed.to(after.device)])
        self.cluster_of = cluster_of.clone()
        self._share_rows()

    def _share_rows(self) -> None:
        shares = _sum_by_cluster(self._weights(), self.cluster_of, self.rows.num_clients)
        self.rows.share(shares, self._total)

    def _weights(self) -> Tensor:
        return self._fixed_weights() if self._weighed is None else self._weighed

    def _fixed_weights(self) -> Tensor:
        if self._client_weights is None:
            return torch.ones(self.num_clients, dtype=torch.float64)
        return self._client_weights.double().cpu()

    def state_dict(self) -> Mapping[str, Tensor]:
        """The clusters, if they change with time, and what clients count for, if that does."""
        changing = {} if self._clustering is None else {"cluster_of": self.cluster_of}
        if self._weighed is not None:
            changing["weighed"] = self._weighed
            changing["total"] = torch.tensor([self._total], dtype=torch.float64)
        return changing

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes the clusters back; the rows are those of these clusters already.

        Args:
            tensors: What `state_dict` gave.
        """
        if "weighed" in tensors:
            self._weighed, self._total = tensors["weighed"], float(tensors["total"])
        self.cluster_of = tensors.get("cluster_of", self.cluster_of)
        self._share_rows()

    @property
    def num_bytes(self) -> int:
        """Bytes of the rows written so far and of the running sum."""
        return self.rows.num_bytes

    def tables(self) -> tuple[RowTable, ...]:
        """The table of the clusters."""
        return (self.rows,)

    def describe(self) -> Mapping[str, object]:
        """What must be the same for a saved table to be read back into this one."""
        digest = hashlib.sha256(self.cluster_of.numpy().tobytes()).hexdigest()[:16]
        fixed = _sum_by_cluster(self._fixed_weights(), self.cluster_of, self.rows.num_clients)
        told = {
            **self.rows.describe(),
            "row_weights": digest_of(fixed),  # what they are weighed by is saved beside the rows
            "num_clients": self.num_clients,
            "num_clusters": self.rows.num_clients,
            "cluster_of": self._clustering or digest,
        }
        if self._clustering is not None:
            del told["row_weights"]  # the sizes of clusters, which change with them
        return told

    def _clusters(self, clients: Tensor) -> Tensor:
        return self.cluster_of[clients.cpu()]


def _clusters_of(given: Tensor, num_rows: int) -> Tensor:
    cluster_of = whole_numbers("cluster_of", given)
    low, high = int(cluster_of.min()), int(cluster_of.max())
    if low < 0 or high >= num_rows:
        raise InvalidError(
            f"cluster_of names clusters {low} … {high}, but the table has {num_rows} rows, "
            f"0 … {num_rows - 1}. Give it one row per cluster: "
            f"MemoryTable(num_clients={high + 1}, …)."
        )
    return cluster_of


def _sum_by_cluster(numbers: Tensor, clusters: Tensor, num_clusters: int) -> Tensor:
    return torch.zeros(num_clusters, dtype=numbers.dtype).index_add_(0, clusters, numbers)


def _mean_by_cluster(clusters: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The clusters that occur, sorted, and the mean of the rows of each."""
    distinct, place, count = torch.unique(clusters, return_inverse=True, return_counts=True)
    if len(distinct) == len(clusters):
        order = place.argsort()
        in_order = bool((order[1:] > order[:-1]).all())
        return distinct, rows if in_order else rows[order.to(rows.device)]
    means = torch.zeros(len(distinct), *rows.shape[1:], dtype=rows.dtype, device=rows.device)
    means.index_add_(0, place.to(rows.device), rows)
    return distinct, means.div_(count.to(rows)[:, None])
