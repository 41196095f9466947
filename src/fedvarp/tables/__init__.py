"""The table of client states: y_1 … y_N, the memory of the server.

Three operations, `get`, `put` and `mean`, and one law that every table keeps after any sequence of
puts, the lossy ones included: ``mean() == get(all clients).mean(0)``.

- `MemoryTable`, `DiskTable`: one row per client.
- `ClusteredTable`: one row per cluster, over either.
- `codecs`: how a row is written down, whichever table holds it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
