"""A run on disk: its directory, its files, and whether it is finished or the same. No torch."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
