"""The algorithms, in the order of the paper.

| algorithm       | direction v                       | table update                              |
|-----------------|-----------------------------------|-------------------------------------------|
| FedAvg          | average(Δ_S)                      | none                                      |
| FedVARP         | mean() + average(Δ_S − get(S))    | put(S, Δ_S) afterwards                    |
| cluster_fedvarp | the same, over shared rows        | the same: `put` averages within a cluster |
| MIFA            | mean()                            | put(S, Δ_S) before                        |
| Scaffold        | average(Δ_S)                      | put(S, Δ_S − (mean() − get(S)))           |
"""

from fedvarp.algorithms.aggregator import Aggregator
from fedvarp.algorithms.fedavg import FedAvg
from fedvarp.algorithms.fedvarp import FedVARP, cluster_fedvarp
from fedvarp.algorithms.mifa import MIFA
from fedvarp.algorithms.scaffold import Scaffold

__all__ = ["MIFA", "Aggregator", "FedAvg", "FedVARP", "Scaffold", "cluster_fedvarp"]
