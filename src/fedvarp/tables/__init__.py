"""Tables with one row per client, y_1 … y_N: the memory of the server.

A table knows vectors and clients' numbers, and nothing of rounds, models or optimisers. It has four
operations, `get`, `put`, `mean` and `exchange`, and one law that it keeps after any sequence of
puts, the lossy codecs included: ``mean() == get(all clients).mean(0)``.

- `MemoryTable`, `DiskTable`: one row per client.
- `ClusteredTable`: one row per cluster, over either.
- `codecs`: how a row is written down, whichever table holds it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
