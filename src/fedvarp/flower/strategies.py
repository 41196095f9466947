"""The strategies. Each is one of the core's algorithms; nothing is implemented twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedvarp.algorithms.registry import PerLayer
from fedvarp.errors import InvalidError
from fedvarp.flower.rows import ClusterSource
from fedvarp.flower.settings import Weighting
from fedvarp.flower.strategy import ServerStrategy
from fedvarp.settings.bounds import BelowHalf, Momentum, NotNegative, Positive, Share


@dataclass(kw_only=True, eq=False, repr=False)
class FedAvg(ServerStrategy):
    """The average of what came back (equation 2 of the paper).

    It remembers nothing of single clients, and works with any client::

        strategy = FedAvg(clients_per_round=5, seed=0, checkpoint="state")
        result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=100)

    Where no update is clipped its numbers are those of Flower's own FedAvg. Beside that it has
    seeded cohorts, a checkpoint to go on from, and survives bad replies.

    All settings: see `StrategySettings`.
    """

    algorithm: ClassVar[str] = "fedavg"


@dataclass(kw_only=True, eq=False, repr=False)
class FedVARP(ServerStrategy):
    """The server uses the latest update of each client that is absent (Algorithm 2 of the paper).

    That takes away the noise of who happens to take part. Any client will do, unchanged::

        strategy = FedVARP(num_clients=250, clients_per_round=5, seed=0, checkpoint="state")
        result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=1000)

    The server keeps one update for each client, N times the size of the model: see `where` and
    `codec` if that is much. A client that should keep its row when its SuperNode is started again
    reports who it is: see `identity`.

    All settings: see `StrategySettings`.
    """

    algorithm: ClassVar[str] = "fedvarp"


@dataclass(kw_only=True, eq=False, repr=False)
class ClusterFedVARP(ServerStrategy):
    """FedVARP in which the clients of a cluster share a row (Algorithm 3 of the paper).

    With K clusters the server keeps K times the size of the model, however many clients there
    are::

        strategy = ClusterFedVARP(clusters="region", num_clients=10_000, clients_per_round=50)

    Attributes:
        clusters: {name: cluster}, a function from a client's name to its cluster, or the key under
            which clients report their cluster in their metrics. A client whose cluster nobody
            knows is not used.

    All other settings: see `StrategySettings`.
    """

    algorithm: ClassVar[str] = "cluster_fedvarp"

    clusters: ClusterSource


@dataclass(kw_only=True, eq=False, repr=False)
class FedStale(FedVARP):
    """FedVARP that believes its rows by half, or as you say (Rodio and Neglia, 2024).

    Attributes:
        beta: β, from 0 (FedAvg) to 1 (FedVARP).

    All other settings: see `StrategySettings`.
    """

    algorithm: ClassVar[str] = "fedstale"

    beta: Share = 0.5


@dataclass(kw_only=True, eq=False, repr=False)
class FedVARPAdaptive(FedVARP):
    """FedVARP that believes rows as far as they have proved right: see `fedvarp.MeasuredTable`.

    Where clients come back so seldom that their rows say nothing any more it is FedAvg, and where
    rows are good it is FedVARP, without anybody having to know which::

        strategy = FedVARPAdaptive(num_clients=10_000, clients_per_round=10, checkpoint="state")

    Attributes:
        beta: "per_layer": how far rows are believed is a number for each array; "one": for all.
        memory: What the rounds before count for, against the present one, when it is measured.

    All other settings: see `StrategySettings`.
    """

    algorithm: ClassVar[str] = "fedvarp_adaptive"

    beta: PerLayer = "per_layer"
    memory: Momentum = 0.95


@dataclass(kw_only=True, eq=False, repr=False)
class FedVARPMixed(FedVARPAdaptive):
    """FedVARP over the client's own row and its cluster's, each as far as it has proved right.

    The cluster's row is fresh but another client's; the client's own may be old, or none at all.
    Memory for N + K rows.

    Attributes:
        clusters: As in `ClusterFedVARP`.

    All other settings: see `FedVARPAdaptive` and `StrategySettings`.
    """

    algorithm: ClassVar[str] = "fedvarp_mixed"

    clusters: ClusterSource


@dataclass(kw_only=True, eq=False, repr=False)
class MIFA(ServerStrategy):
    """The plain mean of every client's latest update (Gu et al., 2021).

    The fresh updates weigh no more than the remembered ones, so that it is slow to follow them but
    not disturbed by who is absent, and for how long. Any client will do; memory as in `FedVARP`.

    All settings: see `StrategySettings`.
    """

    algorithm: ClassVar[str] = "mifa"


@dataclass(kw_only=True, eq=False, repr=False)
class Scaffold(ServerStrategy):
    """Clients correct each of their gradients by what they know of the others (SCAFFOLD).

    The server sends a correction along with the model, and needs the number of local steps:
    clients use `fedvarp.flower.LocalSteps`, three lines. A reply that does not report "num-steps"
    is not used, nor is a late one. Memory as in `FedVARP`.

    All settings: see `StrategySettings`.
    """

    algorithm: ClassVar[str] = "scaffold"


@dataclass(kw_only=True, eq=False, repr=False)
class FedProx(FedAvg):
    """FedAvg whose clients are held back by μ/2 ‖w_i − w‖² (FedProx).

    μ goes to the clients as "proximal-mu" in their configuration, as Flower's own FedProx sends it:
    clients written for that will do, unchanged; others use `fedvarp.flower.LocalSteps`, three
    lines. A client that does neither quietly trains as in FedAvg.

    Attributes:
        mu: μ; 0 is FedAvg.

    All other settings: see `FedAvg`.
    """

    algorithm: ClassVar[str] = "fedprox"

    mu: NotNegative = 0.01


@dataclass(kw_only=True, eq=False, repr=False)
class FedDyn(ServerStrategy):
    """Clients descend a loss that makes up for how they differ from the others (FedDyn).

    The server keeps h_i for each client and sends −h_i along with the model, and α as
    "proximal-mu" in the configuration: clients use `fedvarp.flower.LocalSteps`, three lines, with
    any optimiser. A reply that does not report "num-steps", as `LocalSteps` does, is not used, nor
    is a late one. Memory as in `FedVARP`.

    Attributes:
        alpha: α, how strongly clients are drawn back to the model they were sent.

    All other settings: see `StrategySettings`; `normalise_steps` is refused.
    """

    algorithm: ClassVar[str] = "feddyn"

    alpha: Positive = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.normalise_steps:
            raise InvalidError(
                "FedDyn: normalise_steps=True divides updates by the clients' steps, and FedDyn "
                "needs the models themselves. Each client counts once in it without."
            )


@dataclass(kw_only=True, eq=False, repr=False)
class Median(FedVARP):
    """FedVARP with the coordinate-wise median of a cohort in place of its mean (Yin et al., 2018).

    What a minority of a cohort of three or more says counts for nothing beyond the others' range.
    Every client counts the same, whatever its examples.

    Attributes:
        beta: β, how far rows are believed; 0 is the plain median of what came back.
        weighting: "uniform"; nothing else.

    All other settings: see `StrategySettings`.
    """

    algorithm: ClassVar[str] = "median"

    weighting: Weighting = "uniform"
    beta: Share = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weighting != "uniform":
            raise InvalidError(
                f"{type(self).__name__}: a trimmed mean or median counts every client of a cohort "
                f'the same; weighting must be "uniform".'
            )


@dataclass(kw_only=True, eq=False, repr=False)
class TrimmedMean(Median):
    """The same with the trimmed mean: the largest and smallest numbers of a cohort are left out.

    Attributes:
        trim: The share of the cohort that is left out at either end, at least one client.

    All other settings: see `Median` and `StrategySettings`.
    """

    algorithm: ClassVar[str] = "trimmed_mean"

    trim: BelowHalf = 0.1
