"""The constants of a federation and its losses that the theorems speak of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import Field, InstanceOf

from fedvarp.errors import InvalidError
from fedvarp.settings.bounds import Count, NotNegative, Positive
from fedvarp.settings.checked import checked
from fedvarp.theory.participation import refuse_counts

_MEANING: Final = {
    "sigma2": "σ², the variance of a mini-batch gradient",
    "sigma_g2": "σ_g², the heterogeneity over clients",
    "sigma_K2": "σ_K², the heterogeneity within clusters; with one cluster it is sigma_g2, with a "
    "cluster for each client 0",
    "initial_gap": "f(w⁰) − f*",
}


@checked
@dataclass(frozen=True, kw_only=True)
class Problem:
    """What the theorems have to know of a problem, learning rates and rounds aside.

    `conditions` need the first four constants, and clusters for ClusterFedVARP; the bounds need the
    variances and the initial gap too. Constants that only another algorithm's theorem uses are
    ignored, so that the same problem serves all three. `Measurements.problem` makes one from what
    was measured.

    Attributes:
        num_clients: N.
        clients_per_round: M.
        num_steps: τ. The theorems take it to be the same for all clients; for a mean of unequal
            τ_i the bound is approximate.
        smoothness: L of every f_i.
        sigma2: σ², the variance of a mini-batch gradient.
        sigma_g2: σ_g², the mean over clients of ‖∇f_i − ∇f‖². The paper assumes a bound for every
            client, but its proofs use the mean only.
        sigma_K2: σ_K², the same within clusters; for cluster_fedvarp.
        initial_gap: f(w⁰) − f*.
        initial_gradient_norm2: ‖∇f(w⁰)‖², for the start-up part; at most 2 L · initial_gap, which
            stands in for it unless given.
        num_clusters: K, for cluster_fedvarp with clusters as equal as N allows.
        cluster_sizes: In place of `num_clusters`, the number of clients of each.

    Raises:
        ValueError: If a number is out of range, infinite or NaN, or the clusters are not those of
            N clients.
    """

    num_clients: Count
    clients_per_round: Count
    num_steps: Annotated[float, Field(ge=1)]
    smoothness: Positive
    sigma2: NotNegative | None = None
    sigma_g2: NotNegative | None = None
    sigma_K2: NotNegative | None = None
    initial_gap: NotNegative | None = None
    initial_gradient_norm2: NotNegative | None = None
    num_clusters: Count | None = None
    cluster_sizes: InstanceOf[Sequence[int]] | None = None

    def __post_init__(self) -> None:
        refuse_counts(self.num_clients, self.clients_per_round)
        self._refuse_clusters()

    def required(self, name: str) -> float:
        """Returns a constant that a bound cannot do without.

        Args:
            name: "sigma2", "sigma_g2", "sigma_K2" or "initial_gap".

        Returns:
            Its value.

        Raises:
            ValueError: If the problem was made without it.
        """
        value: float | None = getattr(self, name)
        if value is None:
            raise InvalidError(
                f"The bound needs {name}, which this problem was made without: {_MEANING[name]}."
            )
        return value

    def sizes_of_clusters(self) -> Sequence[int]:
        """Returns the number of clients of each cluster.

        Returns:
            K numbers that add up to N.

        Raises:
            ValueError: If the problem was made without clusters.
        """
        if self.cluster_sizes is not None:
            return self.cluster_sizes
        if self.num_clusters is None:
            raise InvalidError(
                "Theorem 3, on cluster_fedvarp, depends on the clusters: give num_clusters for "
                "clusters of one size, or cluster_sizes, the number of clients of each."
            )
        smaller, larger_ones = divmod(self.num_clients, self.num_clusters)
        return [smaller + 1] * larger_ones + [smaller] * (self.num_clusters - larger_ones)

    def _refuse_clusters(self) -> None:
        K, sizes, N = self.num_clusters, self.cluster_sizes, self.num_clients
        if K is not None and sizes is not None:
            raise InvalidError("Give num_clusters or cluster_sizes, not both: one follows.")
        if K is not None and not 1 <= K <= N:
            raise InvalidError(f"num_clusters={K}: {N} clients form at least 1 and at most {N}.")
        if sizes is not None and (min(sizes, default=0) < 1 or sum(sizes) != N):
            raise InvalidError(
                f"cluster_sizes add up to {sum(sizes)}, the smallest is {min(sizes, default=0)}: "
                f"together they are the {N} clients, and no cluster is empty. Leave clusters "
                f"without a client out."
            )
