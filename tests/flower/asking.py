"""The strategies as most tests want them: names are asked for, and one node is enough.

Cohorts then follow the seed from the first round on, as those of the simulation do.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedvarp import flower as ours


@dataclass(kw_only=True, eq=False, repr=False)
class _Asking:
    ask_names: bool = True
    min_train_nodes: int = 1
    min_evaluate_nodes: int = 1
    min_available_nodes: int = 1


@dataclass(kw_only=True, eq=False, repr=False)
class FedAvg(_Asking, ours.FedAvg):
    """See above."""


@dataclass(kw_only=True, eq=False, repr=False)
class FedVARP(_Asking, ours.FedVARP):
    """See above."""


@dataclass(kw_only=True, eq=False, repr=False)
class ClusterFedVARP(_Asking, ours.ClusterFedVARP):
    """See above."""


@dataclass(kw_only=True, eq=False, repr=False)
class MIFA(_Asking, ours.MIFA):
    """See above."""


@dataclass(kw_only=True, eq=False, repr=False)
class Scaffold(_Asking, ours.Scaffold):
    """See above."""


@dataclass(kw_only=True, eq=False, repr=False)
class FedProx(_Asking, ours.FedProx):
    """See above."""


@dataclass(kw_only=True, eq=False, repr=False)
class FedDyn(_Asking, ours.FedDyn):
    """See above."""
