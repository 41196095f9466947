"""Who runs LocalSGD for the clients: the same protocol and figures, at different speeds."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
