"""Federated data sets: the paper's, some that need no download, and anybody's own.

The paper's tasks are `cifar10` and `shakespeare` (`fedvarp.data.download` fetches their files);
`digits`, `quadratics` and `logistic` need no files. Own data becomes a `FederatedDataset` through
one of the ``from_...`` functions; `fedvarp.data.partition` splits labelled examples over clients.
"""

from fedvarp.data.cifar10 import cifar10
from fedvarp.data.digits import digits
from fedvarp.data.errors import DataError
from fedvarp.data.federated_dataset import Examples, FederatedDataset
from fedvarp.data.own_data import (
    from_function,
    from_hugging_face,
    from_indices,
    from_partition,
    from_tensors,
)
from fedvarp.data.shakespeare import shakespeare
from fedvarp.data.synthetic import Quadratics, logistic, quadratics

__all__ = [
    "DataError",
    "Examples",
    "FederatedDataset",
    "Quadratics",
    "cifar10",
    "digits",
    "from_function",
    "from_hugging_face",
    "from_indices",
    "from_partition",
    "from_tensors",
    "logistic",
    "quadratics",
    "shakespeare",
]
