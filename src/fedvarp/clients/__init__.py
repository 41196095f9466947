"""What a client does in a round, and who is asked: Algorithm 1, samplers, availability."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
