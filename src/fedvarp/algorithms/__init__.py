"""The algorithms, in the order of the paper.

| algorithm       | direction v                       | table update                              |
|-----------------|-----------------------------------|-------------------------------------------|
| FedAvg          | average(Δ_S)                      | none                                      |
| FedVARP         | mean() + average(Δ_S − get(S))    | put(S, Δ_S) afterwards                    |
| cluster_fedvarp | the same, over shared rows        | the same: `put` averages within a cluster |
| MIFA            | mean()                            | put(S, Δ_S) before                        |
| Scaffold        | average(Δ_S)                      | put(S, Δ_S − (mean() − get(S)))           |
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
