"""Federated learning in which few clients take part each round, and nothing is lost by that.

The public names are listed in `__init__.pyi`. Each is imported when it is first asked for: torch
takes seconds to load, and `fedvarp --help` should not wait for it. So are the rooms of the package:
`fedvarp.data` is there after `import fedvarp`.
"""

import lazy_loader

from fedvarp.version import __version__ as __version__

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
