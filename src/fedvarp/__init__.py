"""Federated learning in which few clients take part each round, and nothing is lost by that.

The public names: the algorithms, the table of client states they use, and the server that holds
them.
"""

from fedvarp.algorithms import MIFA, Aggregator, FedAvg, FedVARP, Scaffold, cluster_fedvarp
from fedvarp.checkpoint import Checkpoint, CheckpointError
from fedvarp.client_states import ClientStates, InMemoryStates, OnDiskStates, SharedByCluster
from fedvarp.flat_model import FlatModel
from fedvarp.local_sgd import LocalSGD
from fedvarp.randomness import stream
from fedvarp.round_updates import Reply, RoundUpdates
from fedvarp.server import Broadcast, RoundReport, Server
from fedvarp.server_optimizers import SGD, Momentum, ServerOptimizer
from fedvarp.simulation import SimulationResult, simulate
from fedvarp.store import StoreError
from fedvarp.version import __version__

__all__ = [
    "MIFA",
    "SGD",
    "Aggregator",
    "Broadcast",
    "Checkpoint",
    "CheckpointError",
    "ClientStates",
    "FedAvg",
    "FedVARP",
    "FlatModel",
    "InMemoryStates",
    "LocalSGD",
    "Momentum",
    "OnDiskStates",
    "Reply",
    "RoundReport",
    "RoundUpdates",
    "Scaffold",
    "Server",
    "ServerOptimizer",
    "SharedByCluster",
    "SimulationResult",
    "StoreError",
    "__version__",
    "cluster_fedvarp",
    "simulate",
    "stream",
]
