"""The server: model, algorithm and optimiser in one object, the same in every deployment."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
