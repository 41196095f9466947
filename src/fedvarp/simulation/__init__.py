"""Many clients on one machine: `simulate`, the round loop, and what is recorded of it."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
