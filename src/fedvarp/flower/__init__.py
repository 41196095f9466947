"""The same server behind Flower's `Strategy`: FedVARP in a real federation.

A Flower user changes one import and touches no client::

    from fedvarp.flower import FedVARP  # was: from flwr.serverapp.strategy import FedAvg

    strategy = FedVARP(num_clients=250, clients_per_round=5, seed=0, checkpoint="state")
    result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=1000)

Who a client is, and how cohorts can be the same in two runs although Flower's node ids differ, is
settled in `docs/decisions/flower-identity.md`.
"""

try:
    import flwr.serverapp.strategy  # noqa: F401  # tried here, for a message of our own
except ImportError as error:
    raise ImportError(
        'fedvarp.flower needs Flower, which is not installed: pip install "fedvarp[flower]"'
    ) from error

from fedvarp.flower.client import LocalSteps, answer_identity
from fedvarp.flower.strategies import MIFA, ClusterFedVARP, FedAvg, FedVARP, Scaffold
from fedvarp.flower.strategy import ServerStrategy

__all__ = [
    "MIFA",
    "ClusterFedVARP",
    "FedAvg",
    "FedVARP",
    "LocalSteps",
    "Scaffold",
    "ServerStrategy",
    "answer_identity",
]
