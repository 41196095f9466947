"""A run on disk: its files, whether it is finished, and whether it is the same run. No torch."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
