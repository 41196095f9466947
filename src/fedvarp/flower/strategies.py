"""The five strategies. Each is one of the core's algorithms; nothing is implemented twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedvarp.flower.clusters import ClusterSource
from fedvarp.flower.settings import Weighting
from fedvarp.flower.strategy import ServerStrategy


@dataclass(kw_only=True, eq=False, repr=False)
class FedAvg(ServerStrategy):
    """The average of what came back (equation 2 of the paper).

    Every client of a round counts the same, as in the other strategies and in `fedvarp.simulate`;
    ``weighting="examples"`` weights by examples, as Flower's own FedAvg does.
    """

    algorithm: ClassVar[str] = "fedavg"

    weighting: Weighting = "uniform"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weighting not in ("uniform", "examples"):
            raise ValueError(f"weighting={self.weighting!r} must be 'uniform' or 'examples'.")

    @property
    def weighted_by(self) -> Weighting:
        """See `weighting`."""
        return self.weighting


@dataclass(kw_only=True, eq=False, repr=False)
class FedVARP(ServerStrategy):
    """Algorithm 2: the server replays each absent client's latest update. Any client will do."""

    algorithm: ClassVar[str] = "fedvarp"


@dataclass(kw_only=True, eq=False, repr=False)
class ClusterFedVARP(ServerStrategy):
    """Algorithm 3: the clients of a cluster share a row.

    Attributes:
        clusters: {name: cluster}, a function from a client's name to its cluster, or the key under
            which clients report their cluster in their metrics.
    """

    algorithm: ClassVar[str] = "cluster_fedvarp"

    clusters: ClusterSource

    @property
    def cluster_source(self) -> ClusterSource:
        """See `clusters`."""
        return self.clusters


@dataclass(kw_only=True, eq=False, repr=False)
class MIFA(ServerStrategy):
    """The plain mean of every client's latest update. Any client will do."""

    algorithm: ClassVar[str] = "mifa"


@dataclass(kw_only=True, eq=False, repr=False)
class Scaffold(ServerStrategy):
    """Clients correct their gradients, for which they need `fedvarp.flower.LocalSteps`."""

    algorithm: ClassVar[str] = "scaffold"
