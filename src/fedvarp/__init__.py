"""Federated learning in which few clients take part each round, and nothing is lost by that.

The public names: the algorithms, the table of client states they use, and the server that holds
them. Each is imported when it is first asked for, because torch takes seconds to load and
`fedvarp --help` should not wait for it.
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any, Final

from fedvarp.version import __version__

_HOMES: Final = {
    "MIFA": "algorithms",
    "SGD": "server_optimizers",
    "Aggregator": "algorithms",
    "Broadcast": "server",
    "Checkpoint": "checkpoint",
    "CheckpointError": "checkpoint",
    "ClientStates": "client_states",
    "FedAvg": "algorithms",
    "FedVARP": "algorithms",
    "FlatModel": "flat_model",
    "InMemoryStates": "client_states",
    "LocalSGD": "local_sgd",
    "Momentum": "server_optimizers",
    "OnDiskStates": "client_states",
    "Reply": "round_updates",
    "RoundReport": "server",
    "RoundUpdates": "round_updates",
    "Scaffold": "algorithms",
    "Server": "server",
    "ServerOptimizer": "server_optimizers",
    "SharedByCluster": "client_states",
    "SimulationResult": "round_loop",
    "Steady": "server_optimizers",
    "StoreError": "store",
    "cluster_fedvarp": "algorithms",
    "simulate": "simulation",
    "stream": "randomness",
}

__all__ = ["__version__", *_HOMES]

if TYPE_CHECKING:  # the same names, for type checkers and editors; a test compares the two
    from fedvarp.algorithms import MIFA as MIFA
    from fedvarp.algorithms import Aggregator as Aggregator
    from fedvarp.algorithms import FedAvg as FedAvg
    from fedvarp.algorithms import FedVARP as FedVARP
    from fedvarp.algorithms import Scaffold as Scaffold
    from fedvarp.algorithms import cluster_fedvarp as cluster_fedvarp
    from fedvarp.checkpoint import Checkpoint as Checkpoint
    from fedvarp.checkpoint import CheckpointError as CheckpointError
    from fedvarp.client_states import ClientStates as ClientStates
    from fedvarp.client_states import InMemoryStates as InMemoryStates
    from fedvarp.client_states import OnDiskStates as OnDiskStates
    from fedvarp.client_states import SharedByCluster as SharedByCluster
    from fedvarp.flat_model import FlatModel as FlatModel
    from fedvarp.local_sgd import LocalSGD as LocalSGD
    from fedvarp.randomness import stream as stream
    from fedvarp.round_loop import SimulationResult as SimulationResult
    from fedvarp.round_updates import Reply as Reply
    from fedvarp.round_updates import RoundUpdates as RoundUpdates
    from fedvarp.server import Broadcast as Broadcast
    from fedvarp.server import RoundReport as RoundReport
    from fedvarp.server import Server as Server
    from fedvarp.server_optimizers import SGD as SGD
    from fedvarp.server_optimizers import Momentum as Momentum
    from fedvarp.server_optimizers import ServerOptimizer as ServerOptimizer
    from fedvarp.server_optimizers import Steady as Steady
    from fedvarp.simulation import simulate as simulate
    from fedvarp.store import StoreError as StoreError
else:  # hidden from type checkers, which would take any name for known

    def __getattr__(name: str) -> Any:
        """A public name, or a module of the package: `fedvarp.data` after `import fedvarp`."""
        if name in _HOMES:
            value = getattr(importlib.import_module(f"fedvarp.{_HOMES[name]}"), name)
            globals()[name] = value  # the next time it is found without this function
            return value
        if not name.startswith("_") and importlib.util.find_spec(f"fedvarp.{name}"):
            return importlib.import_module(f"fedvarp.{name}")
        raise AttributeError(f"module 'fedvarp' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
