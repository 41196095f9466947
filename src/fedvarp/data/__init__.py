"""Whose examples: the paper's data sets, some that need no download, and anybody's own.

The paper's tasks are `cifar10` and `shakespeare` (`fedvarp.data.download` fetches their files);
`digits`, `quadratics` and `logistic` need no files. Own data becomes a `FederatedDataset` through
one of the ``from_...`` functions; `fedvarp.data.partition` splits labelled examples over clients.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
