"""The strategies as most tests want them: names are asked for, and one node is enough.

Cohorts then follow the seed from the first round on, as those of the simulation do.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from fedvarp import flower as ours

_ASKING: Final[dict[str, Any]] = {
    "ask_names": True,
    "min_train_nodes": 1,
    "min_evaluate_nodes": 1,
    "min_available_nodes": 1,
}

FedAvg = partial(ours.FedAvg, **_ASKING)
FedVARP = partial(ours.FedVARP, **_ASKING)
ClusterFedVARP = partial(ours.ClusterFedVARP, **_ASKING)
MIFA = partial(ours.MIFA, **_ASKING)
Scaffold = partial(ours.Scaffold, **_ASKING)
FedProx = partial(ours.FedProx, **_ASKING)
FedDyn = partial(ours.FedDyn, **_ASKING)
