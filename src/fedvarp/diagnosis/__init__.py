"""Which error dominates a training, and what would help.

`diagnose` measures at the first model of a config or at the last checkpoint of a run; `advise` puts
the result into sentences, `as_text` into tables, and `draw` into a figure.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
