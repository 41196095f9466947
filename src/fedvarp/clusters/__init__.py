"""Which clients share a row of ClusterFedVARP's table.

- `by_labels`, `by_metadata`: clients grouped by something that is known about them.
- `by_gradients`: k-means on sketches of the clients' gradients or updates.
- `Reclustering`: the same again as training goes on, with the rows moved along.
- `names`: what "own", "labels" and "auto:K" mean in settings.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
