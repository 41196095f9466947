"""The same server behind Flower's `Strategy`: FedVARP in a real federation.

A Flower user changes one import and touches no client::

    from fedvarp.flower import FedVARP  # was: from flwr.serverapp.strategy import FedAvg

    strategy = FedVARP(num_clients=250, clients_per_round=5, seed=0, checkpoint="state")
    result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=1000)

Who a client is, and how cohorts can be the same in two runs although Flower's node ids differ, is
settled in `docs/decisions/flower-identity.md`.
"""

import lazy_loader

try:
    import flwr.serverapp.strategy  # noqa: F401  # tried here, for a message of our own
except ImportError as error:
    raise ImportError(
        'fedvarp.flower needs Flower, which is not installed: pip install "fedvarp[flower]"'
    ) from error

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
